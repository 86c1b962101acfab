/** Side by side: one prompt, plain and speculative, with one seed. */

import { connection } from "./connection.js";
import { byId, make } from "./dom.js";
import { count, number, seconds, times } from "./format.js";
import { ReplyView } from "./reply.js";
import { run } from "./run.js";
import { requestFor, settingsAreValid } from "./settings.js";
import { showTrouble, withKey } from "./trouble.js";

const SIDES = ["plain", "speculative"];
// times that are nearer to each other than this are called the same
const SAME_SHARE = 0.02;

const asked = new Set();
let running = null;

export function startCompareTab() {
  const form = byId("compare-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    compare();
  });
  byId("compare-prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("compare-cancel").addEventListener("click", () => running?.abort());
}

async function compare() {
  const prompt = byId("compare-prompt").value;
  if (running || !prompt.trim() || !settingsAreValid()) return;
  running = new AbortController();
  byId("compare-trouble").replaceChildren();
  showState();
  try {
    await withKey(() => runBoth(prompt, running.signal));
  } catch (error) {
    // one that failed takes the other with it
    running.abort();
    showTrouble(byId("compare-trouble"), error, compare);
    connection.check(error);
  } finally {
    running = null;
    showState();
  }
}

async function runBoth(prompt, signal) {
  const { model } = await connection.known();
  const body = requestFor([{ role: "user", content: prompt }], model);
  const plainBody = { ...body, speculation: { drafter: "none", report: true } };
  // "none" would compare plain decoding with itself
  if (body.speculation.drafter === "none") body.speculation.drafter = "auto";
  const verdict = byId("verdict");
  verdict.hidden = true;
  byId("columns").hidden = false;
  const views = SIDES.map(newView);
  const bodies = [plainBody, body];
  const start = (side) => runSide(SIDES[side], bodies[side], views[side], signal);
  const together = byId("compare-together").checked;
  const results = together ? await Promise.all([start(0), start(1)]) : [await start(0), await start(1)];
  verdict.hidden = false;
  if (signal.aborted) {
    verdict.replaceChildren(make("p", {}, "Cancelled: nothing to compare."));
    return;
  }
  const known = asked.has(prompt);
  asked.add(prompt);
  verdict.replaceChildren(textVerdict(views), timeVerdict(results, { together, known }));
}

function newView(side) {
  const view = new ReplyView(`${side} reply; arrow keys go from token to token`);
  byId(`${side}-reply`).replaceChildren(view.element);
  byId(`${side}-figures`).textContent = "waiting";
  return view;
}

async function runSide(side, body, view, signal) {
  if (signal.aborted) return null;
  return run(body, view, {
    signal,
    onChange: (progress) => {
      byId(`${side}-figures`).textContent = figuresOf(progress);
    },
  });
}

function figuresOf(progress) {
  const { numTokens, writingSeconds, tokensPerSecond, tokensPerRound } = progress;
  if (!numTokens) return "reading the prompt";
  const speed = `${count(numTokens, "token")} in ${seconds(writingSeconds)}, ${number(tokensPerSecond, 1)} tokens/s`;
  return `${speed}, ${number(tokensPerRound, 2)} a round`;
}

/** Say whether the texts are the same, token by token, and mark where they part. */
function textVerdict([plain, speculative]) {
  const [ours, theirs] = [plain.tokens, speculative.tokens];
  const longest = Math.max(ours.length, theirs.length);
  const index = Array.from({ length: longest }, (_, i) => i).find((i) => ours[i]?.id !== theirs[i]?.id);
  if (index === undefined) {
    return make("p", { class: "fine" }, make("strong", {}, `Same text: identical, ${count(longest, "token")}.`));
  }
  for (const view of [plain, speculative]) view.markDifference(index);
  const [one, other] = [ours, theirs].map((tokens) => (tokens[index] ? JSON.stringify(tokens[index].text) : "the end"));
  return make(
    "p",
    { class: "loss" },
    make("strong", {}, `Other text from token ${index + 1} on: `),
    `${one} plain, ${other} speculative. Kernels whose results change with the width of a pass can do that; `,
    `serving with --strict prevents it.`,
  );
}

function timeVerdict([plain, speculative], { together, known }) {
  const [ours, theirs] = [plain.writingSeconds, speculative.writingSeconds];
  const notes = [];
  if (together) notes.push("Both ran at once and shared the machine: times say little.");
  if (known) notes.push("This prompt was compared before: drafts may be copies of the earlier reply.");
  return make("p", {}, `${timeWords(ours, theirs)} ${notes.join(" ")}`);
}

function timeWords(plain, speculative) {
  const both = `${seconds(plain)} plain, ${seconds(speculative)} speculative`;
  if (!(plain > 0 && speculative > 0)) return `${both}: too short to compare.`;
  const ratio = plain / speculative;
  if (Math.abs(ratio - 1) <= SAME_SHARE) return `${both}: about the same, ${times(ratio)}.`;
  return ratio > 1 ? `${both}: ${times(ratio)} as fast.` : `${both}: slower here, ${times(ratio)} the speed of plain.`;
}

function showState() {
  byId("compare-cancel").hidden = running === null;
  byId("compare-send").disabled = running !== null;
}
