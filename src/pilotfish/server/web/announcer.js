/** Reads a growing reply to those who listen: whole sentences, and not too many at once. */

import { byId, make } from "./dom.js";

const PAUSE_SECONDS = 3;

export class Announcer {
  #numSaid = 0;
  #nextAt = 0;

  /** Take a reply as it is so far. */
  add(reply) {
    if (performance.now() < this.#nextAt) return;
    const unsaid = reply.slice(this.#numSaid);
    const end = unsaid.search(/[.!?\n][^.!?\n]*$/) + 1;
    if (!end) return;
    this.#say(unsaid.slice(0, end));
    this.#numSaid += end;
  }

  /** Say what is left of a reply, and how it ended. */
  finish(reply, remark) {
    this.#say(`${reply.slice(this.#numSaid)} ${remark}`);
  }

  #say(text) {
    byId("announcer").replaceChildren(make("span", {}, text));
    this.#nextAt = performance.now() + 1000 * PAUSE_SECONDS;
  }
}
