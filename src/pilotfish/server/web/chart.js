/** The chart of the calculator: what a round costs, and what it brings, by its draft length. */

import { roundSteps, tokensPerRound } from "./cost_model.js";
import { makeSvg } from "./dom.js";
import { number } from "./format.js";

const [WIDTH, HEIGHT] = [640, 300];
const EDGE = { left: 30, right: 10, top: 48, bottom: 42 };
// where the names of the lines stand
const NAMES_X = [30, 240];
const MOST_LENGTH = 31;

/** Return the SVG: two lines over draft lengths, and marks at the chosen and the best length. */
export function drawCurve({ curve, draftCost, acceptance, length, best }) {
  const last = Math.min(MOST_LENGTH, Math.max(16, length, best), Math.max(curve.widest - 1, 1));
  const lengths = Array.from({ length: last + 1 }, (_, i) => i);
  const cost = lengths.map((each) => roundSteps(curve, draftCost, each));
  const tokens = lengths.map((each) => tokensPerRound(acceptance, each));
  const highest = Math.max(2, ...tokens, ...cost);
  const x = (each) => EDGE.left + (each / last) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - (value / highest) * (HEIGHT - EDGE.top - EDGE.bottom);
  const line = (values, kind) =>
    makeSvg("polyline", { class: `line ${kind}`, points: values.map((v, i) => `${x(i)},${y(v)}`).join(" ") });
  const measured = lengths.filter((each) => curve.widths.includes(each + 1));
  const points = measured.map((each) => makeSvg("circle", { class: "point", cx: x(each), cy: y(cost[each]), r: 3 }));
  return makeSvg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": `Cost and tokens of a round by draft length. With ${length}: ${number(tokens[length])} tokens for ${number(cost[length])} steps.`,
    },
    ...grid(highest, x, y, last),
    line(cost, "cost"),
    line(tokens, "tokens"),
    ...points,
    ...mark(x(length), `${length} drafted`, "chosen", last, length),
    ...(best && best !== length ? mark(x(best), "best", "best", last, best) : []),
    ...name("tokens a round brings", "tokens", NAMES_X[0]),
    ...name("what it costs, in steps of the target", "cost", NAMES_X[1]),
  );
}

function grid(highest, x, y, last) {
  const step = [1, 2, 5, 10, 20, 50].find((each) => highest / each <= 6) ?? 100;
  const parts = [];
  for (let value = 0; value <= highest; value += step) {
    parts.push(makeSvg("line", { class: "grid", x1: x(0), x2: x(last), y1: y(value), y2: y(value) }));
    parts.push(text(x(0) - 8, y(value) + 4, String(value), "end"));
  }
  const every = last > 16 ? 4 : last > 8 ? 2 : 1;
  for (let length = 0; length <= last; length += every) parts.push(text(x(length), HEIGHT - EDGE.bottom + 18, String(length), "middle"));
  parts.push(text((x(0) + x(last)) / 2, HEIGHT - 6, "draft tokens in a round", "middle"));
  return parts;
}

function mark(place, words, kind, last, length) {
  const anchor = length > last / 2 ? "end" : "start";
  const beside = anchor === "end" ? -6 : 6;
  return [
    makeSvg("line", { class: `mark ${kind}`, x1: place, x2: place, y1: EDGE.top - 6, y2: HEIGHT - EDGE.bottom }),
    text(place + beside, kind === "best" ? EDGE.top + 16 : EDGE.top + 2, words, anchor),
  ];
}

/** Name a line above the chart, beside a piece of it. */
function name(words, kind, place) {
  const label = text(place + 34, 14, words, "start");
  label.classList.add("name");
  return [makeSvg("line", { class: `line ${kind}`, x1: place, x2: place + 26, y1: 10, y2: 10 }), label];
}

function text(x, y, words, anchor) {
  return makeSvg("text", { x, y, "text-anchor": anchor }, words);
}
