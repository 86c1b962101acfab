/** Puts the page together. */

import { startCalculator } from "./calculator.js";
import { startCompareTab } from "./compare.js";
import { connection } from "./connection.js";
import { byId } from "./dom.js";
import { startPromptTab } from "./prompt.js";
import { startTabs } from "./tabs.js";

startTabs();
startPromptTab();
startCompareTab();
startCalculator();

connection.addEventListener("info", () => {
  const { model, draft, speculation, version } = connection.info;
  const drafts = draft ? `drafts by ${draft}` : "no draft model";
  byId("models").textContent = `${model}, ${speculation.on ? drafts : "drafting off"}`;
  byId("models").title = `pilotfish ${version}: ${speculation.reason}`;
  for (const option of byId("drafter").options) {
    const isNamed = !["auto", "none"].includes(option.value);
    option.disabled = isNamed && !(speculation.drafters ?? [option.value]).includes(option.value);
  }
});
connection.open();
