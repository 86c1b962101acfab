/** The prompt tab: a conversation, one reply at a time. */

import { Announcer } from "./announcer.js";
import { connection } from "./connection.js";
import { byId, make } from "./dom.js";
import { count, seconds } from "./format.js";
import { showLive } from "./live.js";
import { ReplyView } from "./reply.js";
import { Progress, run } from "./run.js";
import { requestFor, settingsAreValid } from "./settings.js";
import { showTrouble, withKey } from "./trouble.js";

const ENDS = { length: "it reached the most tokens", cancelled: "cancelled" };

// what a chunk may add to the height of a reply
const MOST_GROWTH_PIXELS = 150;

let messages = [];
let running = null; // the AbortController of the reply that is being written

export function startPromptTab() {
  const [form, box] = [byId("prompt-form"), byId("prompt")];
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(box.value);
  });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("cancel").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", clear);
  for (const example of document.querySelectorAll(".example")) {
    example.addEventListener("click", () => send(example.textContent));
  }
  showLive(nothingYet());
}

function nothingYet() {
  return Object.assign(new Progress(), { finishReason: "none" });
}

async function send(prompt) {
  if (running || !prompt.trim() || !settingsAreValid()) return;
  const [box, place] = [byId("prompt"), byId("prompt-trouble")];
  place.replaceChildren();
  const turn = addTurn(prompt);
  running = new AbortController();
  const { signal } = running;
  showState();
  box.value = "";
  try {
    await withKey(() => answer(prompt, turn, signal));
  } catch (error) {
    turn.fail();
    if (!box.value) box.value = prompt;
    showTrouble(place, error, () => {
      turn.element.remove();
      box.value = "";
      send(prompt);
    });
    connection.check(error);
  } finally {
    running = null;
    showState();
  }
}

async function answer(prompt, turn, signal) {
  const asked = [...messages, { role: "user", content: prompt }];
  const { model } = await connection.known();
  const body = requestFor(asked, model);
  const view = turn.begin();
  const announcer = new Announcer();
  const progress = await run(body, view, {
    signal,
    onChange: (now) => {
      announcer.add(view.text);
      showLive(now);
      followEnd();
    },
  });
  messages = view.text ? [...asked, { role: "assistant", content: view.text }] : messages;
  const remark = remarkOn(progress, body.seed);
  turn.end(remark);
  announcer.finish(view.text, remark);
}

function remarkOn({ numTokens, finishReason, writingSeconds, usage }, seed) {
  const parts = [count(numTokens, "token")];
  if (writingSeconds !== null) parts[0] += ` in ${seconds(writingSeconds)}`;
  if (finishReason in ENDS) parts.push(ENDS[finishReason]);
  if (usage) {
    const reused = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt of ${count(usage.prompt_tokens, "token")}${reused ? `, ${reused} of them read before` : ""}`);
  }
  return [...parts, `seed ${seed}`].join("; ");
}

/** Show a turn of the conversation; what it returns fills the reply. */
function addTurn(prompt) {
  const remark = make("p", { class: "quiet remark" });
  const place = make("div", { "aria-busy": "true" });
  const element = make(
    "article",
    { class: "turn" },
    make("h2", { class: "who" }, "You"),
    make("p", { class: "asked" }, prompt),
    make("h2", { class: "who" }, connection.info?.model ?? "Reply"),
    place,
    remark,
  );
  byId("conversation").append(element);
  const over = (text) => {
    place.setAttribute("aria-busy", "false");
    remark.textContent = text;
  };
  return {
    element,
    begin() {
      const view = new ReplyView("Reply; arrow keys go from token to token");
      place.replaceChildren(view.element);
      return view;
    },
    end: over,
    fail: () => over("not finished; it is not part of the conversation"),
  };
}

function clear() {
  running?.abort();
  messages = [];
  byId("conversation").replaceChildren();
  byId("prompt-trouble").replaceChildren();
  showLive(nothingYet());
  showState();
  byId("prompt").focus();
}

function showState() {
  const turns = byId("conversation").childElementCount;
  byId("beginning").hidden = turns > 0;
  byId("clear").hidden = turns === 0 || running !== null;
  byId("cancel").hidden = running === null;
  byId("send").disabled = running !== null;
}

/** Keep the end of the reply in sight while it grows, unless the reader has scrolled away. */
function followEnd() {
  const form = byId("prompt-form");
  const below = form.getBoundingClientRect().bottom - window.innerHeight;
  if (below > 0 && below < MOST_GROWTH_PIXELS) form.scrollIntoView({ block: "end" });
}
