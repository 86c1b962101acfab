/** One reply from request to end: the view is filled, the figures are kept. */

import { streamChat } from "./api.js";

/** What is known of a reply while it comes; seconds are those of this page's clock. */
export class Progress {
  constructor() {
    this.sent = performance.now();
    this.first = null;
    this.last = null;
    this.passes = []; // the origins of the tokens of each
    this.stats = null;
    this.usage = null;
    this.finishReason = null;
  }

  get numTokens() {
    return this.passes.reduce((sum, origins) => sum + origins.length, 0);
  }

  get firstSeconds() {
    return this.first === null ? null : (this.first - this.sent) / 1000;
  }

  /** Return the seconds of writing: the server's own when it has said them. */
  get writingSeconds() {
    if (this.stats) return this.stats.decode_seconds;
    return this.first === null ? null : (this.last - this.first) / 1000;
  }

  /** Return tokens a second; the tokens of the first pass took time before they came. */
  get tokensPerSecond() {
    if (this.stats) return this.stats.tokens_per_second;
    const later = this.numTokens - (this.passes[0]?.length ?? 0);
    return this.writingSeconds > 0 ? later / this.writingSeconds : null;
  }

  get tokensPerRound() {
    if (this.stats) return this.stats.tokens_per_round;
    return this.passes.length ? this.numTokens / this.passes.length : null;
  }

  get acceptance() {
    return this.stats ? this.stats.acceptance_rate : null;
  }

  get plainSeconds() {
    return this.stats?.plain_seconds_estimate ?? null;
  }

  /** Take note of a pass. */
  saw(tokens) {
    this.last = performance.now();
    this.first ??= this.last;
    this.passes.push(tokens.map((token) => token.origin));
  }
}

/**
 * Stream one reply into a view; return its progress. `onChange` is told of every chunk. Raises what
 * streamChat raises; a cancelled reply ends with `finishReason` "cancelled".
 */
export async function run(body, view, { signal, onChange }) {
  const progress = new Progress();
  onChange(progress);
  try {
    for await (const chunk of streamChat(body, signal)) {
      take(chunk, view, progress);
      onChange(progress);
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      progress.finishReason = "failed";
      onChange(progress);
      throw error;
    }
    progress.finishReason = "cancelled";
  }
  onChange(progress);
  return progress;
}

function take(chunk, view, progress) {
  progress.usage = chunk.usage ?? progress.usage;
  progress.stats = chunk.speculation ?? progress.stats;
  const [choice] = chunk.choices;
  if (!choice) return;
  const { tokens = [] } = choice.speculation ?? {};
  if (tokens.length) progress.saw(tokens);
  view.add(tokens, choice.logprobs?.content ?? [], choice.delta.content ?? "");
  progress.finishReason = choice.finish_reason ?? progress.finishReason;
}
