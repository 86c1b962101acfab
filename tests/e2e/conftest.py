"""A real browser, and pages in it that may not complain."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# only a failure waits so long
PATIENCE_MILLISECONDS = 15_000
NewPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    assert program, "no Chromium; hint: scripts/install dev, or apt-get install chromium"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        expect.set_options(timeout=PATIENCE_MILLISECONDS)
        yield started
        started.close()


@pytest.fixture
def new_page(browser: Browser) -> Iterator[NewPage]:
    """Open pages; at the end none may have complained, or asked another origin for anything."""
    opened: list[tuple[Page, str]] = []
    complaints: list[str] = []
    asked: set[str] = set()

    def open_page(url: str, **options: Any) -> Page:
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.add(request.url))
        page.goto(url)
        opened.append((page, url))
        return page

    yield open_page
    for page, _ in opened:
        page.context.close()
    # the browser itself writes a line for each answer that is an error
    ours = [text for text in complaints if "Failed to load resource" not in text]
    assert ours == []
    origins = {re.match(r"https?://[^/]+", url)[0] for url in asked}  # type: ignore[index]
    assert origins <= {re.match(r"https?://[^/]+", url)[0] for _, url in opened}  # type: ignore[index]
