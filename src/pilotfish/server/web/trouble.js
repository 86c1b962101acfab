/** Errors in words, with what to do; the key's dialog. */

import { setKey } from "./api.js";
import { byId, make } from "./dom.js";

const WORDS = {
  key: ["The key is missing or wrong.", "Give the key that the server was started with."],
  busy: ["The server is busy: too many requests wait.", "Try again in a moment."],
  stopping: ["The server is shutting down or cannot answer.", "This page goes on by itself once it is back."],
  unreachable: ["The server cannot be reached.", "Is it running? This page goes on by itself once it is back."],
  cut: ["The server went away in the middle of the reply.", "This page goes on by itself once it is back; then try again."],
  failed: ["The reply failed.", "Try again; if it fails again, the server's log says more."],
  refused: ["The server did not take the request.", "Change the prompt or the settings."],
  broken: ["The server made a mistake.", "Its log says more."],
  own: ["This page made a mistake.", "Load it again."],
};

/** Show an error in `place`, with a button that calls `retry`. */
export function showTrouble(place, error, retry) {
  const [title, advice] = WORDS[error.kind ?? "own"];
  const wait = error.retrySeconds ? `Try again in ${error.retrySeconds} s.` : advice;
  const again = make("button", { type: "button" }, "Try again");
  again.addEventListener("click", () => retry());
  place.replaceChildren(
    make(
      "div",
      { class: "trouble", role: "alert" },
      make("p", {}, make("strong", {}, title), ` ${wait}`),
      error.message ? make("p", { class: "said-by-server" }, error.message) : "",
      again,
    ),
  );
}

/** Ask for the API key; return whether one was given. */
export function askForKey() {
  const dialog = byId("key-dialog");
  const form = byId("key-form");
  const input = byId("key");
  dialog.returnValue = "";
  input.value = "";
  return new Promise((resolve) => {
    byId("key-cancel").onclick = () => dialog.close("");
    form.onsubmit = () => {
      setKey(input.value.trim());
      dialog.close("given");
    };
    dialog.onclose = () => resolve(dialog.returnValue === "given");
    dialog.showModal();
    input.focus();
  });
}

/** Return what `task` returns; where the server wants a key, ask for it and try again. */
export async function withKey(task) {
  for (;;) {
    try {
      return await task();
    } catch (error) {
      if (error.kind !== "key" || !(await askForKey())) throw error;
    }
  }
}
