"""The API in words, in a real browser: all of the description, and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from support.page_server import PREFIX, PageServer

NewPage = Callable[..., Page]
KEY = "secret"


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.close()


@pytest.mark.parametrize("place", ["/docs", f"{PREFIX}/docs", f"{PREFIX}/docs/"])
def test_every_request_and_every_field_is_there(
    server: PageServer, new_page: NewPage, place: str
) -> None:
    page = new_page(server.url + place)
    description = httpx.get(f"{server.url}/openapi.json").json()
    headings = page.locator("#operations h2")
    operations = [
        f"{method.upper()} {path}"
        for path, methods in description["paths"].items()
        for method in methods
    ]
    expect(headings).to_have_text(operations)
    expect(page.locator("#contents a")).to_have_text(operations)
    chat = page.locator("section", has=page.get_by_role("heading", name="POST /v1/chat"))
    fields = chat.locator("tbody th code").all_text_contents()
    assert fields == list(description["components"]["schemas"]["ChatRequest"]["properties"])
    assert "from 0 to 2" in chat.locator("tr", has_text="temperature").inner_text()
    schemas = page.locator("#schemas h2").all_text_contents()
    assert schemas == list(description["components"]["schemas"])
    base = f"{server.url}{PREFIX if place.startswith(PREFIX) else ''}/v1"
    expect(page.locator("#base")).to_have_text(base)
    assert "[object" not in page.locator("body").inner_text()


def test_links_lead_to_what_they_name(server: PageServer, new_page: NewPage) -> None:
    page = new_page(f"{server.url}/docs")
    expect(page.locator("#operations h2").first).to_be_visible()
    lost = page.evaluate(
        """() => [...document.querySelectorAll('main a[href^="#"]')]
          .map(link => link.getAttribute("href").slice(1))
          .filter(id => !document.getElementById(id))"""
    )
    assert lost == []
    page.get_by_role("link", name="MessageAnswer").first.click()
    expect(page.locator("#schema-MessageAnswer")).to_be_in_viewport()


def test_the_description_fits_a_narrow_window(server: PageServer, new_page: NewPage) -> None:
    page = new_page(f"{server.url}/docs", viewport={"width": 360, "height": 640})
    expect(page.locator("#operations h2").first).to_be_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_a_key_is_asked_for_where_the_description_needs_one(new_page: NewPage) -> None:
    server = PageServer(api_key=KEY)
    try:
        page = new_page(f"{server.url}/docs")
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        expect(page.locator("#operations h2").first).to_be_visible()
    finally:
        server.close()


def test_a_slash_at_the_end_leads_to_the_page_below_any_prefix(server: PageServer) -> None:
    for prefix in ("", PREFIX):
        answer = httpx.get(f"{server.url}{prefix}/docs/")
        assert (answer.status_code, answer.headers["location"]) == (307, "../docs")
        assert httpx.head(f"{server.url}{prefix}/docs").status_code == 200
