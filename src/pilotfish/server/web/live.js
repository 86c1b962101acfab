/** The panel beside a reply: figures, tokens by pass, and the legend of origins with its counts. */

import { byId, make, makeSvg } from "./dom.js";
import { number, percent, seconds, times } from "./format.js";
import { ORIGINS } from "./reply.js";

const NUM_PASSES = 48;
const [BAR, GAP, ROW] = [5, 1, 4];
const MOST_ROWS = 12;
const PAUSE_MILLISECONDS = 100;
// shown when there are any
const RARE = ["ngram", "prediction"];

let shownAt = 0;

/** Show what is known of a reply so far; while it comes, not at every chunk. */
export function showLive(progress) {
  const now = performance.now();
  // drawing takes time from a model on the same machine
  if (!progress.finishReason && now - shownAt < PAUSE_MILLISECONDS) return;
  shownAt = now;
  const figures = {
    speed: number(progress.tokensPerSecond, 1),
    "tokens-per-round": number(progress.tokensPerRound, 2),
    acceptance: percent(progress.acceptance),
    first: seconds(progress.firstSeconds),
    seconds: seconds(progress.writingSeconds),
    plain: seconds(progress.plainSeconds),
  };
  for (const [name, text] of Object.entries(figures)) byId(`live-${name}`).textContent = text;
  byId("live-note").textContent = noteOf(progress);
  showPasses(progress.passes);
  showLegend(progress.passes.flat());
}

function noteOf({ plainSeconds, writingSeconds, stats, finishReason }) {
  if (!stats) return finishReason ? "" : "Figures of the server come with the end.";
  const why = stats.speculation?.reason ? ` Drafting: ${stats.speculation.reason}.` : "";
  if (plainSeconds === null) return `What plain decoding takes was not measured here.${why}`;
  const ratio = plainSeconds / writingSeconds;
  const gain = ratio >= 1 ? `${times(ratio)} as fast as plain` : `a loss: ${times(ratio)} the speed of plain`;
  return `By estimate ${gain}.${why}`;
}

/** Draw a stack for each of the last passes: one box a token, coloured by its origin. */
function showPasses(passes) {
  const shown = passes.slice(-NUM_PASSES);
  const height = MOST_ROWS * ROW;
  const boxes = shown.flatMap((origins, column) =>
    origins.slice(0, MOST_ROWS).map((origin, row) =>
      makeSvg("rect", {
        "data-origin": origin,
        x: column * (BAR + GAP),
        y: height - (row + 1) * ROW,
        width: BAR,
        height: ROW - GAP,
      }),
    ),
  );
  byId("passes").replaceChildren(
    makeSvg("svg", { viewBox: `0 0 ${NUM_PASSES * (BAR + GAP)} ${height}` }, ...boxes),
  );
}

function showLegend(origins) {
  const shown = Object.entries(ORIGINS).filter(([origin]) => !RARE.includes(origin) || origins.includes(origin));
  const rows = shown.map(([origin, meaning]) => {
    const amount = origins.filter((each) => each === origin).length;
    const swatch = make("span", { class: "swatch" }, origin);
    swatch.dataset.origin = origin;
    const share = origins.length ? percent(amount / origins.length) : "";
    return make(
      "li",
      {},
      swatch,
      make("span", { class: "quiet" }, meaning),
      make("span", { class: "amount" }, origins.length ? `${amount}` : ""),
      make("span", { class: "amount quiet" }, share),
    );
  });
  byId("legend").replaceChildren(...rows);
}
