/** A reply on the page: its text, each part painted by the origin of the token it came from. */

import { hideDetails, showDetails } from "./details.js";
import { make } from "./dom.js";

/** Who may have proposed a token, in the order of the legend. */
export const ORIGINS = {
  target: "the target itself",
  suffix: "a copy of earlier text",
  model: "the draft model",
  ngram: "repeated words",
  prediction: "the prediction that was sent",
  forced: "nothing else allowed",
};

const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };

/**
 * The text shown is the content that the server sends, to the letter. Tokens come with texts of their
 * own, which may run ahead: a stop string may cut what they spell.
 */
export class ReplyView {
  constructor(label) {
    this.element = make("div", { class: "reply", role: "group", "aria-label": label });
    this.tokens = [];
    this.text = "";
    this.#listen();
  }

  // tokens whose text is not shown yet, or not all of it: [span, text that is left]
  #waiting = [];

  /** Add the tokens of a chunk, with their log-probabilities where there are any, and its content. */
  add(tokens, logprobs, content) {
    tokens.forEach((token, i) => {
      const span = make("span", { class: "token", tabindex: this.tokens.length ? "-1" : "0" });
      span.dataset.origin = token.origin in ORIGINS ? token.origin : "other";
      span.token = { ...token, logprob: logprobs[i] ?? null, place: this.tokens.length + 1 };
      this.tokens.push(span.token);
      this.#waiting.push([span, token.text]);
    });
    this.text += content;
    this.#show(content);
  }

  /** Mark where this reply begins to differ from another: at this token, counted from 0. */
  markDifference(index) {
    for (const span of this.#spans()) span.classList.toggle("differs", span.token.place === index + 1);
  }

  #show(content) {
    while (content && this.#waiting.length) {
      const [span, left] = this.#waiting[0];
      const shown = left.slice(0, content.length);
      // whatever the server does to a text, what it sends is what is shown
      if (!content.startsWith(shown)) break;
      if (shown && !span.isConnected) this.element.append(span);
      span.append(shown);
      content = content.slice(shown.length);
      this.#waiting[0][1] = left.slice(shown.length);
      if (shown.length === left.length) this.#waiting.shift();
    }
    if (content) this.element.append(content);
  }

  #spans() {
    return [...this.element.querySelectorAll(".token")];
  }

  #listen() {
    const tokenAt = (event) => event.target.closest?.(".token");
    this.element.addEventListener("pointerover", (event) => {
      const span = tokenAt(event);
      if (span) showDetails(span);
    });
    this.element.addEventListener("pointerout", (event) => tokenAt(event) && hideDetails());
    this.element.addEventListener("focusin", (event) => {
      const span = tokenAt(event);
      if (!span) return;
      for (const other of this.element.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
      span.tabIndex = 0;
      showDetails(span);
    });
    this.element.addEventListener("focusout", hideDetails);
    this.element.addEventListener("keydown", (event) => this.#move(event));
  }

  #move(event) {
    if (event.key === "Escape") hideDetails();
    const step = STEPS[event.key];
    const span = event.target.closest?.(".token");
    if (step === undefined || !span) return;
    const spans = this.#spans();
    const next = spans.indexOf(span) + step;
    spans[Math.min(Math.max(next, 0), spans.length - 1)].focus();
    event.preventDefault();
  }
}
