/** Whether the server is there, and what it says of itself. */

import { getInfo, isReady } from "./api.js";
import { byId } from "./dom.js";
import { withKey } from "./trouble.js";

const LOST = ["unreachable", "cut", "stopping"];
const FIRST_WAIT_SECONDS = 0.5;
const MOST_WAIT_SECONDS = 5;

class Connection extends EventTarget {
  info = null;
  #isWaiting = false;

  /** Return what the server says of itself, asked once; ServerTrouble if it does not say. */
  async known() {
    if (!this.info) {
      this.info = await getInfo();
      this.#show("ready", "connected");
      this.dispatchEvent(new Event("info"));
    }
    return this.info;
  }

  /** Ask the server who it is, with the key it wants; where it is away, wait for it. */
  async open() {
    try {
      await withKey(() => this.known());
    } catch (error) {
      if (error.kind === "key") this.#show("locked", "needs a key");
      else this.#waitForServer();
    }
  }

  /** Look after the connection when a request failed in a way that may mean the server is gone. */
  check(error) {
    if (LOST.includes(error.kind)) this.#waitForServer();
  }

  async #waitForServer() {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    this.#show("away", "not reachable");
    let wait = FIRST_WAIT_SECONDS;
    // a server that is going may still answer at first
    do {
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait));
      wait = Math.min(2 * wait, MOST_WAIT_SECONDS);
    } while (!(await isReady()));
    this.#isWaiting = false;
    // another server may have taken the place of the first
    this.info = null;
    await this.open();
  }

  #show(state, words) {
    const place = byId("connection");
    place.dataset.state = state;
    place.textContent = words;
  }
}

export const connection = new Connection();
