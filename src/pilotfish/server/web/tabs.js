/** Tabs: arrow keys move between them, the address keeps which one is open. */

import { byId } from "./dom.js";

const NAMES = ["prompt", "compare", "calculator"];

export function startTabs() {
  const tabs = NAMES.map((name) => byId(`tab-${name}`));
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => open(NAMES[i]));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step === undefined) return;
      const next = (i + step + NAMES.length) % NAMES.length;
      open(NAMES[next]);
      tabs[next].focus();
      event.preventDefault();
    });
  });
  window.addEventListener("hashchange", openFromAddress);
  openFromAddress();
}

function openFromAddress() {
  const name = location.hash.slice(1);
  open(NAMES.includes(name) ? name : NAMES[0]);
}

function open(name) {
  for (const each of NAMES) {
    const isOpen = each === name;
    byId(`panel-${each}`).hidden = !isOpen;
    byId(`tab-${each}`).setAttribute("aria-selected", String(isOpen));
    byId(`tab-${each}`).tabIndex = isOpen ? 0 : -1;
  }
  // figures belong to the prompt, settings to whatever asks the model
  byId("side").hidden = name === "calculator";
  byId("live").hidden = name !== "prompt";
  document.body.dataset.tab = name;
  if (location.hash.slice(1) !== name && (location.hash || name !== NAMES[0])) {
    history.replaceState(null, "", `#${name}`);
  }
}
