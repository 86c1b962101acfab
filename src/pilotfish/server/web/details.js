/** What is known of one token, in a box beside it. */

import { byId, make } from "./dom.js";
import { number, percent } from "./format.js";

let shown = null; // the span whose token is described

// a box that stays while its token moves would point at another
document.addEventListener("scroll", () => shown && putBeside(shown), { passive: true, capture: true });

/** Show the details of the token that a span stands for. */
export function showDetails(span) {
  const box = byId("token-details");
  const { origin, id, text, place, logprob } = span.token;
  const facts = [
    ["token", JSON.stringify(text)],
    ["id", String(id)],
    ["place", String(place)],
  ];
  if (logprob) facts.push(["log-probability", `${number(logprob.logprob, 3)} (${chance(logprob.logprob)})`]);
  const list = make("dl", {});
  for (const [name, value] of facts) list.append(make("dt", {}, name), make("dd", {}, value));
  const swatch = make("span", { class: "swatch" }, origin);
  swatch.dataset.origin = span.dataset.origin;
  box.replaceChildren(make("p", { class: "origin" }, "proposed by ", swatch), list, alternatives(logprob?.top_logprobs ?? []));
  box.hidden = false;
  putBeside(span);
  hideFrom(shown);
  shown = span;
  span.setAttribute("aria-describedby", box.id);
}

/** Hide the box; safe to repeat. */
export function hideDetails() {
  byId("token-details").hidden = true;
  hideFrom(shown);
  shown = null;
}

function hideFrom(span) {
  span?.removeAttribute("aria-describedby");
}

function chance(logprob) {
  const share = Math.exp(logprob);
  return share > 0 && share < 0.005 ? "below 1 %" : percent(share);
}

function alternatives(top) {
  if (!top.length) return "";
  const rows = top.map((each) => {
    const bar = make("span", { class: "bar" });
    bar.style.inlineSize = `${100 * Math.exp(each.logprob)}%`;
    return make(
      "tr",
      {},
      make("th", { scope: "row" }, JSON.stringify(each.token)),
      make("td", {}, chance(each.logprob)),
      make("td", { class: "bars" }, bar),
    );
  });
  return make("table", {}, make("caption", {}, "most likely here"), make("tbody", {}, ...rows));
}

function putBeside(span) {
  const box = byId("token-details");
  const around = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const room = { width: document.documentElement.clientWidth, height: window.innerHeight };
  const left = Math.min(Math.max(around.left, 8), room.width - box.offsetWidth - 8);
  const below = around.bottom + 8;
  const top = below + box.offsetHeight > room.height ? around.top - box.offsetHeight - 8 : below;
  box.style.left = `${Math.max(left, 8)}px`;
  box.style.top = `${Math.max(top, 8)}px`;
}
