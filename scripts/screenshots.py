"""Takes the pictures of the web page that the docs show, with the default pair of models.

Starts `pilotfish serve`, drives the page in Chromium, and writes PNG files. Options: --out FOLDER
(default docs/images), --serve "WORDS", further options of `pilotfish serve`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDE = {"width": 1080, "height": 720}
NARROW = {"width": 360, "height": 720}
MOST_BYTES = 150_000
REPLY_MILLISECONDS = 60_000

EDIT = """Rename the variable x to total in this function, and change nothing else:

def sum_of_squares(numbers):
    x = 0
    for number in numbers:
        x = x + number * number
    return x"""
FUNCTION = "Write a Python function that merges two sorted lists, with a test."
QUESTION = "Why does a pilot fish swim with a shark? Two sentences."
OTHER_QUESTION = "Name three fish that live with sharks, with a sentence about each."


@contextmanager
def serving(options: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `pilotfish serve` on a free port; give its process and its address."""
    command = [sys.executable, "-m", "pilotfish", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://\S+", line):
                yield process, found[0]
                return
        raise SystemExit("error: pilotfish serve did not start:\n" + "".join(said))
    finally:
        process.kill()
        process.wait()


class Pictures:
    """Opens pages in one browser and writes what they look like."""

    def __init__(self, browser: Browser, address: str, folder: Path) -> None:
        self._browser = browser
        self._address = address
        self._folder = folder

    def page(self, view: str = "", *, size: Any = WIDE, scheme: Any = "light") -> Page:
        """Return a page of that size, on one of its views."""
        page = self._browser.new_page(viewport=size, color_scheme=scheme)
        page.set_default_timeout(REPLY_MILLISECONDS)
        page.goto(f"{self._address}/#{view}")
        page.wait_for_selector("[data-state=ready]")
        return page

    def take(self, page: Page, name: str) -> None:
        """Write a picture of what is in sight, from the top where the page is wide."""
        if page.viewport_size == WIDE:
            page.evaluate("scrollTo(0, 0); document.getElementById('side').scrollTop = 0")
        path = self._folder / f"page-{name}.png"
        page.screenshot(path=path, animations="disabled")
        num_bytes = path.stat().st_size
        print(f"{path.name}  {num_bytes / 1000:.0f} kB", file=sys.stderr)
        if num_bytes > MOST_BYTES:
            raise SystemExit(f"error: {path} has more than {MOST_BYTES} bytes")


def ask(page: Page, prompt: str, *, most_tokens: int = 120) -> None:
    """Send a prompt and wait for the end of its reply."""
    begin(page, prompt, most_tokens=most_tokens)
    page.wait_for_selector(".remark:has-text('seed')")


def begin(page: Page, prompt: str, *, most_tokens: int) -> None:
    """Send a prompt."""
    page.fill("#seed", "1")
    page.fill("#max-tokens", str(most_tokens))
    page.fill("#prompt", prompt)
    page.click("#send")


def take_prompts(pictures: Pictures) -> None:
    """Picture replies: with a token's details, in the dark, and on a narrow screen."""
    page = pictures.page()
    ask(page, FUNCTION, most_tokens=200)
    page.evaluate("scrollTo(0, 0)")
    words = page.locator(".token:not([data-origin=target])").filter(has_text=re.compile("[a-z]{4}"))
    words.nth(2).hover()
    pictures.take(page, "prompt")
    page = pictures.page(scheme="dark")
    ask(page, QUESTION)
    pictures.take(page, "dark")
    page = pictures.page(size=NARROW)
    ask(page, OTHER_QUESTION, most_tokens=70)
    page.locator(".turn").scroll_into_view_if_needed()
    pictures.take(page, "narrow")


def take_others(pictures: Pictures) -> None:
    """Picture the comparison and the calculator."""
    page = pictures.page("compare")
    page.fill("#max-tokens", "100")
    page.fill("#compare-prompt", EDIT)
    page.click("#compare-send")
    page.wait_for_selector("#verdict:not([hidden])")
    pictures.take(page, "compare")
    page = pictures.page("calculator")
    pictures.take(page, "calculator")


def take_error(pictures: Pictures, process: subprocess.Popen[str]) -> None:
    """Picture a server that goes away in the middle of a reply."""
    page = pictures.page()
    begin(page, "Tell a long story about a pilot fish and a shark.", most_tokens=400)
    page.locator(".token").nth(60).wait_for()
    process.kill()
    page.wait_for_selector(".trouble")
    pictures.take(page, "error")


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--serve", default="", help="further options of pilotfish serve")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        raise SystemExit("error: no Chromium\nhint: scripts/install dev")
    with (
        serving(shlex.split(arguments.serve)) as (process, address),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        pictures = Pictures(browser, address, arguments.out)
        take_prompts(pictures)
        take_others(pictures)
        take_error(pictures, process)
        browser.close()


if __name__ == "__main__":
    main()
