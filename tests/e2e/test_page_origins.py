"""A page of another origin calls the server from a real browser, with what OpenAI's client for
browsers sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from support.page_server import PageServer

ASK = """async url => {
  const names = ["arch", "lang", "os", "package-version", "retry-count", "runtime", "timeout"];
  const headers = Object.fromEntries(names.map(name => [`x-stainless-${name}`, "1"]));
  const body = JSON.stringify({ messages: [{ role: "user", content: "hi" }], max_tokens: 2 });
  try {
    const response = await fetch(url + "/v1/chat/completions", {
      method: "POST",
      headers: { ...headers, Authorization: "Bearer any", "Content-Type": "application/json" },
      body,
    });
    const { object } = await response.json();
    return { object, type: response.headers.get("content-type") };
  } catch (error) {
    return { object: error.name };
  }
}"""

# a frame without an origin of its own, as a file on disk has none
FRAME = """() => {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-scripts";
  frame.srcdoc = "x";
  const loaded = new Promise(resolve => frame.addEventListener("load", resolve));
  document.body.append(frame);
  return loaded.then(() => null);
}"""


@pytest.fixture(scope="module")
def home() -> Iterator[PageServer]:
    """Return the server that the page comes from; another port is another origin."""
    server = PageServer()
    yield server
    server.close()


def asked_from(browser: Browser, home: PageServer, server: PageServer) -> dict[str, Any]:
    """Return what a page of another server gets, and what a frame in it without an origin of its
    own gets."""
    page = browser.new_page()
    try:
        # a document without a policy; the pages of our own server may talk to nobody else
        page.goto(f"{home.url}/health")
        page.evaluate(FRAME)
        frame = page.wait_for_selector("iframe").content_frame()  # type: ignore[union-attr]
        assert frame is not None
        return {
            place: one.evaluate(ASK, server.url)
            for place, one in (("page", page), ("frame", frame))
        }
    finally:
        page.close()


REPLY = {"object": "chat.completion", "type": "application/json"}
KEPT_OUT = {"object": "TypeError"}


@pytest.mark.parametrize(
    ("allowed", "page", "frame"),
    [
        (("{home}",), REPLY, KEPT_OUT),
        (("*",), REPLY, REPLY),
        (("http://127.0.0.1:*", "null"), REPLY, REPLY),
        (("https://a.example",), KEPT_OUT, KEPT_OUT),
    ],
)
def test_a_page_reads_the_reply_where_its_origin_is_allowed(
    browser: Browser,
    home: PageServer,
    allowed: tuple[str, ...],
    page: dict[str, str],
    frame: dict[str, str],
) -> None:
    origins = tuple(one.format(home=home.url) for one in allowed)
    server = PageServer(cors_origins=origins, api_key="any")
    try:
        assert asked_from(browser, home, server) == {"page": page, "frame": frame}
    finally:
        server.close()
