/** What the page says to the server: addresses, the key, errors, streams. */

import { eventsOf } from "./sse.js";

// the modules lie in a folder beside the API, whatever the prefix the page was opened under
const ROOT = new URL("../", import.meta.url);
const KEY = "pilotfish-api-key";

/** A request that did not end well. `kind` is one of those in trouble.js. */
export class ServerTrouble extends Error {
  constructor(kind, message = "", retrySeconds = null) {
    super(message);
    this.kind = kind;
    this.retrySeconds = retrySeconds;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

const KINDS = { 401: "key", 429: "busy", 502: "unreachable", 503: "stopping", 504: "failed" };
// errors that come in the middle of a stream have codes in place of a status
const STOPPING = ["shutting_down", "cancelled"];

/** Return the response to a request below the page; ServerTrouble if it is none to use. */
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { cache: "no-store", ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerTrouble("unreachable");
  }
  if (response.ok) return response;
  const kind = KINDS[response.status] ?? (response.status < 500 ? "refused" : "broken");
  const retry = Number(response.headers.get("Retry-After"));
  throw new ServerTrouble(kind, await messageOf(response), retry > 0 ? retry : null);
}

function troubleOf({ code, message }) {
  return new ServerTrouble(STOPPING.includes(code) ? "stopping" : "failed", String(message));
}

async function messageOf(response) {
  try {
    return String((await response.json()).error.message);
  } catch {
    return `status ${response.status}`;
  }
}

/** Return what the server says of itself: models, what passes cost. */
export async function getInfo() {
  return (await ask("pilotfish/info")).json();
}

/** Return the description of the API, in OpenAPI's form. */
export async function getDescription() {
  return (await ask("openapi.json")).json();
}

/** Return the address of a path of this server, as other programs write it. */
export function rootAddress(path) {
  return new URL(path, ROOT).href;
}

/** Return whether the server answers and takes requests. */
export async function isReady() {
  try {
    await ask("health");
    return true;
  } catch {
    return false;
  }
}

/** Yield the chunks of a streamed chat completion; ServerTrouble if it fails or breaks off. */
export async function* streamChat(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  try {
    for await (const data of eventsOf(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw troubleOf(chunk.error);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerTrouble) throw error;
    throw new ServerTrouble("cut");
  }
  throw new ServerTrouble("cut");
}
