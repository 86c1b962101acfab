/** Server-sent events out of text that arrives in pieces, cut anywhere. */

export class EventParser {
  #rest = "";
  #data = [];

  /** Return the data of the events that this piece completes, in order. */
  feed(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?!$)/);
    // a line end may have been cut in two, so a carriage return at the end waits, too
    this.#rest = lines.pop();
    const events = [];
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(5).replace(/^ /, ""));
      }
    }
    return events;
  }
}

/** Yield the data of the events of a response; characters may be cut between chunks, too. */
export async function* eventsOf(response) {
  const parser = new EventParser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
