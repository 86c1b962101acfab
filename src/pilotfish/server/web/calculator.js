/** The calculator: what drafting brings and costs on this machine, by the closed forms. */

import { drawCurve } from "./chart.js";
import { connection } from "./connection.js";
import { CostCurve, bestLength, breakEven, predictedCosts, speedup, tokensPerRound } from "./cost_model.js";
import { byId, make } from "./dom.js";
import { UNKNOWN, count, large, number, times } from "./format.js";

const LONGEST = 16;
const LENGTHS_WITHOUT_CURVE = 31;
const INPUTS = ["acceptance", "draft-length", "draft-cost", "price"];

const COSTS = [
  ["Latency", null],
  ["ms a token", (costs) => number(costs.latency.seconds_per_token && 1000 * costs.latency.seconds_per_token, 1)],
  ["speedup", (costs) => times(costs.latency.speedup)],
  ["Compute, for each token", null],
  ["passes of the target", (costs) => number(costs.compute.target_passes_per_token)],
  ["rows it evaluates", (costs) => number(costs.compute.verified_rows_per_token)],
  ["rows in vain", (costs) => number(costs.compute.wasted_rows_per_token)],
  ["passes of the draft model", (costs) => number(costs.compute.draft_passes_per_token)],
  ["operations", (costs) => large(costs.compute.flops_per_token, "FLOP")],
  ["memory read", (costs) => large(costs.compute.bytes_read_per_token, "B")],
  ["Serving", null],
  ["memory held", (costs) => large(costs.serving.memory_bytes, "B")],
  ["tokens a second", (costs) => number(costs.serving.tokens_per_second, 1)],
  ["price of a million tokens", (costs) => number(costs.serving.price_per_million_tokens, 2)],
];

export function startCalculator() {
  for (const id of INPUTS) byId(id).addEventListener("input", show);
  byId("calculator-form").addEventListener("submit", (event) => event.preventDefault());
  connection.addEventListener("info", () => {
    const { curve, draft_cost_ratio: ratio } = connection.info;
    byId("draft-length").max = curve ? Math.max(1, curve.widths.at(-1) - 1) : LENGTHS_WITHOUT_CURVE;
    if (ratio !== null) {
      byId("draft-cost").max = Math.max(1, Math.ceil(2 * ratio));
      byId("draft-cost").value = ratio;
    }
    show();
  });
  show();
}

/** Return what the machine's side of the forms is: measured where the server knows it. */
function machineOf(info) {
  const measured = info?.curve ?? null;
  const draftCost = Number(byId("draft-cost").value);
  const price = byId("price").value;
  return {
    curve: measured ? new CostCurve(measured.widths, measured.ratios) : CostCurve.flat(),
    isMeasured: measured !== null,
    draftCost,
    stepSeconds: measured?.step_seconds ?? null,
    context: measured?.context ?? 0,
    target: info?.sizes.target ?? null,
    draft: draftCost > 0 ? (info?.sizes.draft ?? null) : null,
    pricePerHour: price === "" ? null : Number(price),
  };
}

function show() {
  const acceptance = Number(byId("acceptance").value);
  const length = Number(byId("draft-length").value);
  const machine = machineOf(connection.info);
  const { curve, draftCost } = machine;
  const longest = machine.isMeasured ? Math.min(LONGEST, curve.widest - 1) : LONGEST;
  const best = bestLength(acceptance, curve, draftCost, longest);
  const found = {
    length,
    best,
    longest,
    gain: speedup(acceptance, length, curve, draftCost),
    bestGain: speedup(acceptance, best, curve, draftCost),
    even: length ? breakEven(length, curve, draftCost) : easiest(longest, curve, draftCost),
  };
  byId("calc-tokens").textContent = number(tokensPerRound(acceptance, length), 2);
  byId("calc-speedup").textContent = times(found.gain);
  byId("calc-speedup").dataset.grade = found.gain < 1 ? "loss" : "fine";
  byId("calc-best").textContent = best ? String(best) : "none";
  byId("calc-break-even").textContent = found.even === null ? "never" : number(found.even, 2);
  byId("calculator-summary").textContent = sentence(found);
  showInputs({ acceptance: number(acceptance), "draft-length": length, "draft-cost": number(draftCost) });
  byId("chart").replaceChildren(drawCurve({ curve, draftCost, acceptance, length, best }));
  byId("curve-about").textContent = aboutCurve(machine);
  showCosts(acceptance, length, machine);
}

/** Return the lowest acceptance that any length breaks even at. */
function easiest(longest, curve, draftCost) {
  const each = Array.from({ length: longest }, (_, i) => breakEven(i + 1, curve, draftCost));
  const known = each.filter((one) => one !== null);
  return known.length ? Math.min(...known) : null;
}

function sentence({ length, best, longest, gain, bestGain, even }) {
  const bestWords = best
    ? `Best is ${count(best, "token")} with ${times(bestGain)}.`
    : `No length up to ${longest} gains: leave drafting off.`;
  if (length === 0) return `Nothing is drafted: plain decoding. ${bestWords}`;
  const drafting = `Drafting ${count(length, "token")}`;
  const limit = even === null ? "no acceptance makes it pay" : `it pays above an acceptance of ${number(even)}`;
  if (gain < 1) return `${drafting} loses: ${times(gain)}; ${limit}. ${bestWords}`;
  return `${drafting} gives ${times(gain)}; ${limit}.${length === best ? "" : ` ${bestWords}`}`;
}

function showInputs(texts) {
  for (const [id, text] of Object.entries(texts)) {
    document.querySelector(`output[for="${id}"]`).textContent = String(text);
  }
}

function aboutCurve({ isMeasured, stepSeconds, context }) {
  if (!isMeasured) {
    return "What passes cost was not measured by this server (it does not decide by cost), so every pass costs one step here.";
  }
  return `Costs are those measured on this machine after ${context} tokens; a step of the target takes ${number(1000 * stepSeconds, 1)} ms. Drafting pays where the tokens lie above the cost.`;
}

function showCosts(acceptance, length, machine) {
  const ways = [0, length].map((each) => predictedCosts(acceptance, each, machine));
  const rows = COSTS.map(([label, read]) => {
    if (!read) return make("tr", { class: "group" }, make("th", { scope: "rowgroup", colspan: "3" }, label));
    const cells = ways.map((costs) => make("td", {}, read(costs) ?? UNKNOWN));
    return make("tr", {}, make("th", { scope: "row" }, label), ...cells);
  });
  byId("costs").tBodies[0].replaceChildren(...rows);
}
