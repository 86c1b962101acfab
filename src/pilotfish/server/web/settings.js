/** The settings as fields of a request. */

import { byId } from "./dom.js";

const TOP_LOGPROBS = 5;
// seeds that a person can read out and type again
const SEEDS = 1_000_000;

const NUMBERS = { temperature: "temperature", "top-p": "top_p", "max-tokens": "max_tokens", seed: "seed" };

/** Return whether all settings can be sent; where not, the browser says which and why. */
export function settingsAreValid() {
  const form = byId("settings-form");
  if (form.checkValidity()) return true;
  byId("settings").open = true;
  return form.reportValidity();
}

/** Return a request for the conversation so far. A seed is always sent, so that a reply can be had again. */
export function requestFor(messages, model) {
  const system = byId("system").value.trim();
  const body = {
    model,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    seed: Math.floor(Math.random() * SEEDS),
    speculation: { drafter: byId("drafter").value, report: true },
    // what a model thinks is painted like all it says
    reasoning_format: "none",
  };
  for (const [id, name] of Object.entries(NUMBERS)) {
    if (byId(id).value !== "") body[name] = Number(byId(id).value);
  }
  const most = byId("draft-tokens").value;
  if (most !== "") body.speculation.num_speculative_tokens = Number(most);
  if (byId("logprobs").checked) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  return body;
}
