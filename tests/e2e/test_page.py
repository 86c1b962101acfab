"""The page in a real browser, against a real server over a scripted model."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from pilotfish.accounting.cost_curve import CostCurve
from pilotfish.accounting.cost_model import (
    RoundCosts,
    best_length,
    break_even_acceptance,
    expected_tokens_per_round,
    speedup,
)
from pilotfish.accounting.costs import predicted_costs
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.server.limits import ServiceLimits
from support.page_server import PREFIX, SIZES, PageServer
from support.scripted_pair import STAIRCASE

LEAST_CONTRAST = 4.5
CONTRASTS = (Path(__file__).parents[1] / "support" / "contrasts.js").read_text()
# rows that a held model is let through one by one while a test waits for something
MOST_ROWS = 2000
NewPage = Callable[..., Page]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.close()


@pytest.fixture
def server(shared_server: PageServer) -> Iterator[PageServer]:
    """Return the server as if it were new: nothing is held, no reply is remembered."""
    controller = shared_server.engine.engine.controller
    assert isinstance(controller, CostAwareController)
    controller.clear()
    model, outcomes = shared_server.model, shared_server.outcomes
    yield shared_server
    model.let()
    model.text, model.extra_seconds = "", 0.0
    outcomes.all, outcomes.then = [], lambda: None


def ask(page: Page, prompt: str = "Hello there", *, most_tokens: int = 60) -> None:
    """Send a prompt, and return when its reply has begun."""
    page.fill("#max-tokens", str(most_tokens))
    page.fill("#prompt", prompt)
    page.press("#prompt", "Control+Enter")


def last_remark(page: Page) -> Any:
    return page.locator(".remark").last


def reply_text(page: Page, place: str = ".turn:last-child .reply") -> str:
    text: str = page.locator(place).evaluate("place => place.textContent")
    return text


def plain_text(server: PageServer, prompt: str, *, most_tokens: int) -> str:
    """Return what the API says without drafts."""
    body = {
        "model": "scripted",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": most_tokens,
        "speculation": {"drafter": "none"},
    }
    answer = httpx.post(server.url + "/v1/chat/completions", json=body).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def test_a_reply_is_painted_token_by_token_and_reads_as_the_plain_one(
    server: PageServer, new_page: NewPage
) -> None:
    page = new_page(server.url)
    ask(page, most_tokens=60)
    expect(last_remark(page)).to_contain_text("60 tokens")
    assert reply_text(page) == plain_text(server, "Hello there", most_tokens=60)
    origins = page.eval_on_selector_all(".token", "all => all.map(each => each.token.origin)")
    counts = Counter(origins)
    assert len(origins) == 60
    assert min(counts["target"], counts["suffix"], counts["model"]) > 0
    legend = page.locator("#legend li").all_inner_texts()
    shown = {line.split("\n")[0]: line.split("\n")[2] for line in legend}
    assert shown == {name: str(counts[name]) for name in ("target", "suffix", "model", "forced")}
    styles = page.eval_on_selector_all(
        "#legend .swatch",
        "all => all.map(getComputedStyle).map(s => s.textDecorationLine + s.textDecorationStyle)",
    )
    assert len(set(styles)) == len(styles), "origins are told apart by more than colour"


def test_figures_of_a_reply_are_those_of_the_server(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url)
    # a browser keeps what was streamed for whoever asks later only as long as it likes
    page.evaluate(
        """() => {
          const ask = window.fetch;
          window.answers = [];
          window.fetch = async (...request) => {
            const answer = await ask(...request);
            if (answer.url.includes("completions")) window.answers.push(answer.clone().text());
            return answer;
          };
        }"""
    )
    ask(page, most_tokens=60)
    expect(last_remark(page)).to_contain_text("60 tokens")
    [answer] = page.evaluate("() => Promise.all(window.answers)")
    events = answer.split("\n\n")
    chunks = [json.loads(each.removeprefix("data: ")) for each in events if "{" in each]
    [stats] = [chunk["speculation"] for chunk in chunks if "speculation" in chunk]
    assert page.inner_text("#live-tokens-per-round") == f"{stats['tokens_per_round']:.2f}"
    assert page.inner_text("#live-acceptance") == f"{100 * stats['acceptance_rate']:.0f} %"
    assert page.inner_text("#live-speed") == f"{stats['tokens_per_second']:.1f}"
    assert page.inner_text("#live-seconds") == f"{stats['decode_seconds']:.2f} s"
    assert page.inner_text("#live-plain") == f"{stats['plain_seconds_estimate']:.2f} s"
    assert page.locator("#passes rect").count() > stats["rounds"]
    expect(page.locator("#live-first")).to_have_text(re.compile(r"\d (ms|s)$"))


def test_a_token_shows_who_proposed_it_and_what_else_was_likely(
    server: PageServer, new_page: NewPage
) -> None:
    page = new_page(server.url)
    ask(page)
    expect(last_remark(page)).to_contain_text("60 tokens")
    span = page.locator('.token[data-origin="model"]').first
    box = page.locator("#token-details")
    span.hover()
    expect(box).to_contain_text("proposed by model")
    expect(box).to_contain_text(f"id{ord(span.inner_text())}")
    expect(box).to_contain_text("(100 %)")
    assert box.locator("tbody tr").count() == 5
    page.mouse.move(0, 0)
    expect(box).to_be_hidden()
    first = page.locator(".token").first
    first.focus()
    expect(box).to_contain_text("place1")
    page.keyboard.press("ArrowRight")
    expect(box).to_contain_text("place2")
    page.keyboard.press("End")
    expect(box).to_contain_text("place60")
    assert page.evaluate("document.activeElement.getAttribute('aria-describedby')")
    assert page.locator('.token[tabindex="0"]').count() == 1
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()


def test_a_conversation_goes_on_until_it_is_cleared(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url)
    bodies: list[Any] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    page.fill("#system", "Be brief.")
    page.fill("#seed", "7")
    for prompt in ("one", "two"):
        ask(page, prompt, most_tokens=20)
        expect(last_remark(page)).to_contain_text("seed 7")
    first = page.locator(".reply").first.inner_text()
    assert bodies[1]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "two"},
    ]
    page.click("#clear")
    expect(page.locator(".turn")).to_have_count(0)
    ask(page, "three", most_tokens=20)
    expect(last_remark(page)).to_contain_text("20 tokens")
    assert [each["content"] for each in bodies[2]["messages"]] == ["Be brief.", "three"]


def test_settings_are_sent_as_they_are_typed_and_checked_before(
    server: PageServer, new_page: NewPage
) -> None:
    page = new_page(server.url)
    bodies: list[Any] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    page.fill("#top-p", "2")
    ask(page, most_tokens=20)
    assert page.evaluate("document.activeElement.id") == "top-p"
    assert bodies == []
    page.fill("#top-p", "0.9")
    page.fill("#temperature", "0.5")
    page.fill("#draft-tokens", "3")
    page.select_option("#drafter", "suffix")
    page.uncheck("#logprobs")
    ask(page, most_tokens=20)
    expect(last_remark(page)).to_contain_text("20 tokens")
    sent = bodies[0]
    assert (sent["top_p"], sent["temperature"], sent["max_tokens"]) == (0.9, 0.5, 20)
    wish = {"drafter": "suffix", "num_speculative_tokens": 3, "report": True}
    assert sent["speculation"] == wish
    assert "logprobs" not in sent


def test_text_that_looks_like_markup_stays_text(server: PageServer, new_page: NewPage) -> None:
    server.model.text = "<img src=x onerror=alert(1)><b>&amp;</b>"
    page = new_page(server.url)
    ask(page, "<script>alert(2)</script>", most_tokens=80)
    expect(last_remark(page)).to_contain_text("80 tokens")
    assert "<img src=x onerror=alert(1)><b>&amp;</b>" in reply_text(page)
    assert page.inner_text(".asked") == "<script>alert(2)</script>"
    # tokens of this model are bytes; others are whole words
    page.evaluate(
        """async () => {
          const { ReplyView } = await import(new URL('assets/reply.js', document.baseURI));
          const view = new ReplyView('reply');
          document.querySelector('main').append(view.element);
          const top = [{ token: '<b>bold</b>', logprob: -1 }];
          const token = { id: 1, text: '<b>bold</b>', origin: '<b>suffix</b>' };
          view.add([token], [{ logprob: -1, top_logprobs: top }], '<b>bold</b> <b>more</b>');
          view.element.querySelector('.token').focus();
        }"""
    )
    expect(page.locator("#token-details")).to_contain_text('"<b>bold</b>"')
    assert reply_text(page, "main > .reply") == "<b>bold</b> <b>more</b>"
    assert page.locator("main img, main script, main b, #token-details b").count() == 0


def passes_until(server: PageServer, is_so: Callable[[], bool]) -> bool:
    """Let the held model go on row by row until something is so; return whether it came to be."""
    tick = threading.Event()
    for _ in range(MOST_ROWS):
        if is_so():
            return True
        server.model.let(1)
        tick.wait(0.005)
    return False


def test_cancelling_frees_the_place_and_keeps_what_was_written(
    server: PageServer, new_page: NewPage
) -> None:
    page = new_page(server.url)
    for cancel in (lambda: page.click("#cancel"), lambda: page.keyboard.press("Escape")):
        server.model.let(30)
        ask(page, most_tokens=3000)
        page.wait_for_selector(".turn:last-child .token")
        assert server.service.state.num_running == 1
        cancel()
        expect(last_remark(page)).to_contain_text("cancelled")
        expect(page.locator("#cancel")).to_be_hidden()
        assert passes_until(server, lambda: server.service.state.num_running == 0)
        assert 0 < len(reply_text(page)) < 100
    assert server.outcomes.all == ["cancelled", "cancelled"]
    server.model.let()
    ask(page, "and now?", most_tokens=10)
    expect(last_remark(page)).to_contain_text("10 tokens")


def compare(page: Page, *, most_tokens: int = 60) -> Any:
    page.click("#tab-compare")
    page.fill("#max-tokens", str(most_tokens))
    page.click("#compare-send")
    expect(page.locator("#compare-send")).to_be_enabled()
    verdict = page.locator("#verdict")
    expect(verdict).to_be_visible()
    return verdict


def test_side_by_side_is_the_same_text_sooner(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url)
    bodies: list[Any] = []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    verdict = compare(page)
    expect(verdict).to_contain_text("Same text: identical, 60 tokens.")
    said = re.search(
        r"([\d.]+) s plain, ([\d.]+) s speculative: ([\d.]+)x as fast", verdict.inner_text()
    )
    assert said is not None, verdict.inner_text()
    plain, speculative, ratio = map(float, said.groups())
    assert plain == 60.0, "a step takes a second of the scripted clock"
    assert ratio == pytest.approx(plain / speculative, abs=0.01)
    assert ratio > 1.2
    assert reply_text(page, "#plain-reply") == reply_text(page, "#speculative-reply")
    assert [body["speculation"]["drafter"] for body in bodies] == ["none", "auto"]
    assert bodies[0]["seed"] == bodies[1]["seed"]
    expect(compare(page)).to_contain_text("was compared before")


def test_side_by_side_names_a_difference_and_a_loss(server: PageServer, new_page: NewPage) -> None:
    """The model is made to write something else, and more slowly, once the plain reply is there."""
    server.model.text = "abcdefghij"

    def change() -> None:
        server.model.text = "abcdXfghij"
        server.model.extra_seconds = 5.0

    server.outcomes.then = change
    page = new_page(server.url)
    verdict = compare(page, most_tokens=30)
    plain, speculative = (reply_text(page, f"#{side}-reply") for side in ("plain", "speculative"))
    place = next(i for i in range(30) if plain[i] != speculative[i])
    expect(verdict).to_contain_text(f"Other text from token {place + 1} on: ")
    expect(verdict).to_contain_text('"e" plain, "X" speculative')
    expect(verdict).to_contain_text("slower here, 0.")
    marked = page.locator(".differs").all_inner_texts()
    assert marked == ["e", "X"]


def test_the_calculator_says_what_accounting_says(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url)
    grid = list(product((0.0, 0.35, 0.8, 0.97, 1.0), (0, 1, 3, 4, 16, 70), (0.0, 0.12, 0.6)))
    curves = {
        "flat": CostCurve.flat(1.0),
        "staircase": STAIRCASE,
        "few": CostCurve.from_ratios({1: 1.0, 4: 1.1, 8: 1.45, 13: 1.9}),
    }
    for name, curve in curves.items():
        ratios = list(curve.ratios().values())
        cases = [{"acceptance": a, "length": k, "draftCost": c, "best": 16} for a, k, c in grid]
        machine = {
            "stepSeconds": 0.03, "context": 256, "pricePerHour": 2.5,
            "target": asdict(SIZES["target"]), "draft": asdict(SIZES["draft"]),
        }  # fmt: skip
        found = page.evaluate(
            """async ({widths, ratios, cases, machine}) => {
              const forms = await import(new URL('assets/cost_model.js', document.baseURI));
              const curve = new forms.CostCurve(widths, ratios);
              return cases.map(({acceptance, length, draftCost, best}) => ({
                tokens: forms.tokensPerRound(acceptance, length),
                speedup: forms.speedup(acceptance, length, curve, draftCost),
                best: forms.bestLength(acceptance, curve, draftCost, best),
                even: forms.breakEven(length, curve, draftCost),
                costs: forms.predictedCosts(acceptance, length, {
                  ...machine, curve, draftCost, draft: draftCost > 0 ? machine.draft : null,
                }),
              }));
            }""",
            {"widths": list(curve.widths), "ratios": ratios, "cases": cases, "machine": machine},
        )
        for (acceptance, length, ratio), got in zip(grid, found, strict=True):
            assert got == expected(curve, acceptance, length, ratio), (name, acceptance, length)


def expected(curve: CostCurve, acceptance: float, length: int, ratio: float) -> Any:
    """Return what the page should find, by the forms of `accounting`."""
    steps = RoundCosts(curve=curve, draft_seconds=ratio)
    seconds = RoundCosts(curve=curve.scaled(0.03), draft_seconds=0.03 * ratio, context=256)
    costs = predicted_costs(
        acceptance,
        length,
        seconds,
        target=SIZES["target"],
        draft=SIZES["draft"] if ratio > 0 else None,
        price_per_hour=2.5,
    ).to_dict()
    del costs["serving"]["energy_joules_per_token"]
    figures = {
        "tokens": expected_tokens_per_round(acceptance, length),
        "speedup": speedup(acceptance, length, steps),
        "best": best_length(acceptance, steps),
        "even": break_even_acceptance(length, steps),
    }
    close = {cost: pytest.approx(values, rel=1e-9) for cost, values in costs.items()}
    return {name: value and pytest.approx(value, rel=1e-9) for name, value in figures.items()} | {
        "costs": close
    }


def test_the_calculator_follows_its_sliders(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url + "/#calculator")
    expect(page.locator("#curve-about")).to_contain_text("measured on this machine")
    info = httpx.get(server.url + "/pilotfish/info").json()
    ratios = dict(zip(info["curve"]["widths"], info["curve"]["ratios"], strict=True))
    curve = CostCurve.from_ratios(ratios)
    page.focus("#acceptance")
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    page.focus("#draft-length")
    page.keyboard.press("ArrowRight")
    # a slider takes the measured ratio in steps of its own
    shown = float(page.input_value("#draft-cost"))
    costs = RoundCosts(curve=curve, draft_seconds=shown)
    assert page.inner_text("#calc-tokens") == f"{expected_tokens_per_round(0.8, 5):.2f}"
    assert page.inner_text("#calc-speedup") == f"{speedup(0.8, 5, costs):.2f}x"
    assert page.inner_text("#calc-best") == str(best_length(0.8, costs))
    assert page.inner_text("#calc-break-even") == f"{break_even_acceptance(5, costs):.2f}"
    page.focus("#acceptance")
    page.keyboard.press("Home")
    expect(page.locator("#calculator-summary")).to_contain_text("loses: ")
    expect(page.locator("#calculator-summary")).to_contain_text("leave drafting off")
    assert page.locator("#chart polyline").count() == 2
    assert page.locator("#costs tbody tr").count() == 14


def test_the_page_outlives_its_server(new_page: NewPage) -> None:
    first = PageServer()
    try:
        page = new_page(first.url)
        expect(page.locator("#connection")).to_have_text("connected")
        first.model.let(20)
        ask(page, most_tokens=100)
        page.wait_for_selector(".token")
    finally:
        first.close()
    trouble = page.locator("#prompt-trouble [role=alert]")
    expect(trouble).to_contain_text("went away in the middle of the reply")
    expect(page.locator("#connection")).to_have_text("not reachable")
    assert page.input_value("#prompt") == "Hello there", "nothing that was typed is lost"
    trouble.get_by_role("button").click()
    expect(trouble).to_contain_text("cannot be reached")
    second = PageServer(port=first.port)
    try:
        expect(page.locator("#connection")).to_have_text("connected")
        trouble.get_by_role("button").click()
        expect(last_remark(page)).to_contain_text("100 tokens")
        expect(trouble).to_have_count(0)
        expect(page.locator(".turn")).to_have_count(1)
    finally:
        second.close()


def test_a_full_server_and_one_that_shuts_down_are_named(new_page: NewPage) -> None:
    server = PageServer(limits=ServiceLimits(max_running=1, max_waiting=0))
    try:
        server.model.let(20)
        busy, page = new_page(server.url), new_page(server.url)
        ask(busy)
        busy.wait_for_selector(".token")
        ask(page)
        trouble = page.locator("#prompt-trouble [role=alert]")
        expect(trouble).to_contain_text(re.compile(r"busy.*Try again in \d+ s"))
        draining = server.drain()
        trouble.get_by_role("button").click()
        expect(trouble).to_contain_text("shutting down")
        server.model.let()
        expect(last_remark(busy)).to_contain_text("60 tokens")
        draining.result(timeout=5)
    finally:
        server.close()


def test_a_request_that_the_server_refuses_is_shown_in_its_words(
    server: PageServer, new_page: NewPage
) -> None:
    page = new_page(server.url)
    ask(page, "x" * 5000)
    trouble = page.locator("#prompt-trouble [role=alert]")
    expect(trouble).to_contain_text("did not take the request")
    expect(trouble).to_contain_text("the context holds 4096")
    page.fill("#prompt", "short")
    page.press("#prompt", "Control+Enter")
    expect(last_remark(page)).to_contain_text("60 tokens")


def test_the_key_is_asked_for_and_kept_in_the_tab_alone(new_page: NewPage) -> None:
    server = PageServer(api_key="right-key")
    try:
        page = new_page(server.url)
        dialog = page.locator("#key-dialog")
        expect(dialog).to_be_visible()
        page.fill("#key", "wrong-key")
        page.keyboard.press("Enter")
        expect(page.locator("#key")).to_have_value("")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#connection")).to_have_text("needs a key")
        ask(page, most_tokens=20)
        expect(dialog).to_be_visible()
        page.fill("#key", "right-key")
        page.click("text=Use this key")
        expect(last_remark(page)).to_contain_text("20 tokens")
        expect(page.locator("#connection")).to_have_text("connected")
        kept = page.evaluate(
            "[Object.values(sessionStorage), localStorage.length, document.cookie]"
        )
        assert kept == [["right-key"], 0, ""]
        assert "right-key" not in page.content()
    finally:
        server.close()


def test_everything_is_done_with_the_keyboard_and_focus_is_seen(
    server: PageServer, new_page: NewPage
) -> None:
    page = new_page(server.url)
    expect(page.locator("#connection")).to_have_text("connected")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "tab-prompt"
    reached: list[str] = []
    while len(reached) < 30:
        name, outline = page.evaluate(
            """() => {
              const e = document.activeElement;
              return [e.id || e.className || e.localName, getComputedStyle(e).outlineStyle];
            }"""
        )
        if name == "body":
            break
        assert outline != "none", name
        reached.append(name)
        page.keyboard.press("Tab")
    for name in ("example", "prompt", "send", "system", "seed", "drafter", "logprobs"):
        assert name in reached
    page.fill("#max-tokens", "20")
    page.focus("#prompt")
    page.keyboard.type("Hello")
    page.keyboard.press("Control+Enter")
    expect(last_remark(page)).to_contain_text("20 tokens")
    page.focus("#tab-prompt")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-compare"
    expect(page.locator("#panel-compare")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#panel-calculator")).to_be_visible()
    unnamed = page.eval_on_selector_all(
        "input, textarea, select",
        "all => all.filter(each => !each.labels.length).map(each => each.id)",
    )
    assert unnamed == []


def test_listeners_hear_the_reply_and_its_end(server: PageServer, new_page: NewPage) -> None:
    server.model.text = "It is so. "
    page = new_page(server.url)
    ask(page, most_tokens=40)
    expect(page.locator("#announcer")).to_contain_text(re.compile(r"It is so.*40 tokens"))
    assert page.get_attribute("#announcer", "aria-live") == "polite"
    assert page.locator(".turn [aria-busy=false]").count() == 1


def test_all_text_can_be_read_in_light_and_dark(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url)
    measured: dict[str, list[tuple[float, str]]] = {"light": [], "dark": []}

    def measure() -> None:
        for scheme, found in measured.items():
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
            found += page.evaluate(CONTRASTS)

    ask(page)
    expect(last_remark(page)).to_contain_text("60 tokens")
    page.locator(".token[data-origin=model]").first.hover()
    measure()
    ask(page, "x" * 5000)
    page.wait_for_selector(".trouble")
    measure()
    compare(page)
    measure()
    page.click("#tab-calculator")
    measure()
    for found in measured.values():
        assert len(found) > 150
        assert [each for each in found if each[0] < LEAST_CONTRAST] == []
        # the measure itself: the text of a page is much darker, or lighter, than its ground
        assert max(ratio for ratio, _ in found) > 12


def test_a_narrow_screen_needs_no_sideways_scrolling(server: PageServer, new_page: NewPage) -> None:
    server.model.text = "awordwithoutanyspace"
    page = new_page(server.url, viewport={"width": 360, "height": 640})
    ask(page, most_tokens=200)
    expect(last_remark(page)).to_contain_text("200 tokens")
    for tab in ("prompt", "compare", "calculator"):
        page.click(f"#tab-{tab}")
        if tab == "compare":
            compare(page, most_tokens=100)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, tab


def test_the_page_works_below_another_path(server: PageServer, new_page: NewPage) -> None:
    page = new_page(f"{server.url}{PREFIX}/")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    expect(page.locator("#connection")).to_have_text("connected")
    ask(page, most_tokens=20)
    expect(last_remark(page)).to_contain_text("20 tokens")
    assert [url for url in asked if not url.startswith(server.url + PREFIX)] == []


def test_motion_is_left_out_where_it_is_not_wanted(server: PageServer, new_page: NewPage) -> None:
    page = new_page(server.url)
    server.model.let(20)
    ask(page)
    page.wait_for_selector(".token")
    style = "getComputedStyle(document.querySelector('.reply'), '::after').animationName"
    assert page.evaluate(style) == "breathe"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(style) == "none"
    server.model.let()
    expect(last_remark(page)).to_contain_text("60 tokens")


def test_events_are_the_same_however_their_bytes_are_cut(
    server: PageServer, new_page: NewPage
) -> None:
    """Line ends, characters of several bytes and events are cut at every place, in two and more."""
    page = new_page(server.url)
    text = (
        "data: é\r\ndata: ü\r\n\r\n: a remark\ndata:1\ndata: 2\n\nid: 5\n\ndata: 鱼🐟\r\rdata: lost"
    )
    found = page.evaluate(
        """async (text) => {
          const { eventsOf } = await import(new URL('assets/sse.js', document.baseURI));
          const bytes = new TextEncoder().encode(text);
          const read = async (cuts) => {
            const stream = new ReadableStream({ start(out) {
              const pieces = [0, ...cuts].map((from, i) => bytes.slice(from, cuts[i]));
              for (const piece of pieces) out.enqueue(piece);
              out.close();
            } });
            const events = [];
            for await (const data of eventsOf(new Response(stream))) events.push(data);
            return JSON.stringify(events);
          };
          const all = new Set();
          for (let i = 1; i < bytes.length; i += 1) {
            all.add(await read([i]));
            for (let j = i + 1; j < bytes.length; j += 7) all.add(await read([i, j]));
          }
          all.add(await read([...bytes.keys()].slice(1)));
          return [...all];
        }""",
        text,
    )
    assert [json.loads(each) for each in found] == [["é\nü", "1\n2", "鱼🐟"]]
