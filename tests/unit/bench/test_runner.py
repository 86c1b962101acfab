"""The runner: who answers when, what is measured, what is forgotten, what fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pilotfish import build
from pilotfish.backends.scripted import FakeClock, random_logits
from pilotfish.bench.runner import (
    PLAIN,
    BenchResult,
    BenchSettings,
    Mode,
    mode_engines,
    parse_modes,
    run_benchmark,
)
from pilotfish.bench.workload import Prompt
from pilotfish.config import EngineConfig, ModelConfig, Request, SpeculationConfig
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.errors import ConfigError, PromptError
from pilotfish.generation import TextEngine
from pilotfish.types import RoundRecord, SamplingSettings, SessionView
from support.bench_engines import avoids, engine, knows, prompt_seconds
from support.drafters import RaisingDrafter

PROMPTS = [Prompt("one", "chat", "hello"), Prompt("two", "story", "once upon")]


def settings(**options: Any) -> BenchSettings:
    own = {name: options.pop(name) for name in ("rounds", "keep_store") if name in options}
    request = Request.from_options({"max_tokens": 12, "seed": 0, **options})
    return BenchSettings(**{"rounds": 1, **own}, request=request)


def run(
    clock: FakeClock, engines: dict[str, TextEngine], prompts: Any = PROMPTS, **options: Any
) -> BenchResult:
    return run_benchmark(engines, prompts, settings(**options), clock=clock)


def test_modes_are_read_from_a_list_and_plain_decoding_is_no_mode_of_its_own() -> None:
    assert parse_modes("auto, suffix:7,none,ngram,auto") == [
        Mode("auto"),
        Mode("suffix", 7),
        Mode("ngram"),
    ]
    assert [mode.name for mode in parse_modes("suffix:07,model")] == ["suffix:7", "model"]
    assert parse_modes("none") == []


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("sufix", "suffix"),
        ("magic", "known: "),
        ("auto,", "known: "),
        ("suffix:0", "suffix:7"),
        ("suffix:-1", "suffix:7"),
        ("suffix:", "suffix:7"),
        ("suffix:x", "suffix:7"),
        ("none:3", "suffix:7"),
    ],
)
def test_an_unknown_mode_is_named_with_advice(text: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="unknown mode: ") as caught:
        parse_modes(text)
    assert hint in caught.value.hint


def test_a_number_fixes_the_drafts_of_a_round_and_else_the_controller_decides() -> None:
    base = SpeculationConfig(strict=True, num_speculative_tokens=2)
    auto, fixed = Mode("auto").speculation(base), Mode("suffix", 7).speculation(base)
    assert (auto.drafter, auto.controller, auto.num_speculative_tokens) == ("auto", "auto", None)
    assert (fixed.drafter, fixed.controller, fixed.num_speculative_tokens) == ("suffix", "fixed", 7)
    assert auto.strict
    assert fixed.strict


def test_every_mode_gets_an_engine_over_the_same_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, str]] = []

    def text_engine(pair: Any, speculation: SpeculationConfig, **_: Any) -> Any:
        asked.append((pair, speculation.drafter))
        return SimpleNamespace()

    monkeypatch.setattr(build, "text_engine", text_engine)
    config = EngineConfig(target=ModelConfig(reference="any"), kept_sequences=3)
    pair: Any = SimpleNamespace(config=config)
    engines = mode_engines(pair, parse_modes("suffix,auto"), SpeculationConfig())
    assert list(engines) == [PLAIN, "suffix", "auto"]
    assert asked == [(pair, PLAIN), (pair, "suffix"), (pair, "auto")]
    assert pair.config.kept_sequences == 0


def test_modes_take_turns_at_each_prompt_and_at_beginning() -> None:
    clock = FakeClock()
    result = run(clock, {PLAIN: engine(clock), "self": engine(clock, knows())}, rounds=2)
    order = [(one.round_index, one.prompt_index, one.mode) for one in result.runs]
    assert order == [
        (0, 0, PLAIN),
        (0, 0, "self"),
        (0, 1, "self"),
        (0, 1, PLAIN),
        (1, 0, "self"),
        (1, 0, PLAIN),
        (1, 1, PLAIN),
        (1, 1, "self"),
    ]
    assert result.modes == ("self",)


def test_every_mode_gives_the_same_number_of_tokens_and_ids() -> None:
    clock = FakeClock()
    engines = {
        PLAIN: engine(clock),
        "self": engine(clock, knows()),
        "never": engine(clock, avoids()),
    }
    ids = {one.output_ids for one in run(clock, engines).runs}
    assert ids == {tuple(range(117, 129))}, "what follows the t of assistant"


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_a_seed_gives_sampled_replies_that_are_the_same_in_every_mode_and_round(
    temperature: float,
) -> None:
    clock = FakeClock()
    logits = random_logits(258, scale=1.0)
    engines = {
        PLAIN: engine(clock, logits=logits),
        "suffix": engine(clock, SuffixDrafter(min_probability=0), logits=logits),
        "never": engine(clock, avoids(), logits=logits),
    }
    result = run(clock, engines, PROMPTS[:1], temperature=temperature, rounds=2, max_tokens=40)
    assert len(result.runs) == 6
    assert len({one.output_ids for one in result.runs}) == 1


class SlowParts:
    """A drafter and a controller whose every act takes time on the clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._drafter = knows()

    def prepare(self, view: SessionView) -> bool:
        self._clock.advance(2.0)
        return False

    def propose(self, views: Any, budgets: Any) -> Any:
        self._clock.advance(0.25)
        return self._drafter.propose(views, budgets)

    def forget(self, request_id: int) -> None:
        self._clock.advance(100.0)

    def draft_budgets(self, views: Any) -> list[int]:
        self._clock.advance(0.125)
        return [3 for _ in views]

    def observe(self, records: list[RoundRecord]) -> None:
        self._clock.advance(0.5)


def test_reading_the_prompt_is_apart_and_decoding_holds_all_the_rest_but_the_end() -> None:
    clock = FakeClock()
    parts = SlowParts(clock)
    engines = {PLAIN: engine(clock), "slow": engine(clock, parts, controller=parts)}
    result = run(clock, engines, PROMPTS[:1])
    plain, slow = result.runs
    reading = prompt_seconds(engines[PLAIN], range(result.num_prompt_tokens[0]))
    assert plain.prompt_seconds == pytest.approx(reading)
    assert plain.draft_prompt_seconds == 0
    assert plain.decode_seconds == pytest.approx(12.0)
    assert slow.prompt_seconds == pytest.approx(reading)
    assert slow.draft_prompt_seconds == 2.0
    # three rounds of four tokens: a pass of four rows, a draft, a plan, and what is learnt
    assert slow.decode_seconds == pytest.approx(3 * (1.15 + 0.25 + 0.125 + 0.5))
    assert slow.seconds_per_token == pytest.approx(slow.decode_seconds / 12)
    assert slow.total_seconds_per_token == pytest.approx((reading + 2.0 + slow.decode_seconds) / 12)


def test_replies_of_the_past_are_forgotten_before_every_run() -> None:
    clock = FakeClock()
    engines = {PLAIN: engine(clock), "suffix": engine(clock, SuffixDrafter())}
    repeated = run(clock, engines, PROMPTS[:1], rounds=5)
    five = [Prompt(str(i), "chat", "hello") for i in range(5)]
    different = run(clock, engines, five)
    # a reply that counts gives nothing to look up in itself
    seconds = [one.decode_seconds for one in repeated.runs + different.runs]
    assert seconds == pytest.approx([12.0] * 20)
    assert not any(one.repeated for one in repeated.runs + different.runs)


def test_a_kept_store_makes_repeated_prompts_fast_and_they_are_marked() -> None:
    clock = FakeClock()
    engines = {PLAIN: engine(clock), "suffix": engine(clock, SuffixDrafter())}
    result = run(clock, engines, [*PROMPTS[:1], Prompt("copy", "chat", "hello")], keep_store=True)
    first, copy = (one for one in result.runs if one.mode == "suffix")
    assert (first.repeated, first.decode_seconds) == (False, pytest.approx(12.0))
    assert copy.repeated
    assert copy.decode_seconds < 6.0
    assert [one.repeated for one in result.runs if one.mode == PLAIN] == [False, True]


def test_a_prompt_that_does_not_fit_is_skipped_in_every_mode_and_round() -> None:
    clock = FakeClock()
    prompts = [*PROMPTS, Prompt("long", "chat", "x" * 300)]
    small = {"context_size": 200}
    engines = {PLAIN: engine(clock, **small), "self": engine(clock, knows(), **small)}
    result = run(clock, engines, prompts, rounds=2)
    assert set(result.errors) == {2}
    assert "context holds 200" in result.errors[2]
    assert {one.prompt_index for one in result.runs} == {0, 1}
    assert len(result.runs) == 8


def test_a_prompt_that_fails_late_is_left_out_whole() -> None:
    clock = FakeClock()
    warm_up, reply = 1 + 16, 1 + 12  # passes over the prompt and of decoding
    failing = engine(clock, fail_at=warm_up + 3 * reply + 5)
    result = run(clock, {PLAIN: failing, "self": engine(clock, knows())}, rounds=2)
    assert list(result.errors) == [1]
    assert "fails in pass" in result.errors[1]
    assert [one.prompt_index for one in result.runs] == [0, 0, 0, 0]


def test_a_benchmark_in_which_every_prompt_fails_is_an_error() -> None:
    clock = FakeClock()
    prompts = [Prompt("long", "chat", "x" * 300)]
    with pytest.raises(PromptError, match="none of the 1 prompts") as caught:
        run(clock, {PLAIN: engine(clock, context_size=200)}, prompts)
    assert "context" in str(caught.value)
    assert caught.value.hint


def test_a_drafter_that_breaks_costs_drafts_and_is_told() -> None:
    clock = FakeClock()
    engines = {PLAIN: engine(clock), "broken": engine(clock, RaisingDrafter())}
    result = run(clock, engines, PROMPTS[:1])
    errors = {one.mode: one.drafting_error for one in result.runs}
    assert errors == {PLAIN: "", "broken": "the drafter broke"}


def test_progress_names_the_prompt_that_is_next_and_ends_complete() -> None:
    clock = FakeClock()
    seen: list[tuple[int, int, str]] = []
    run_benchmark(
        {PLAIN: engine(clock)},
        PROMPTS,
        settings(rounds=2),
        clock=clock,
        progress=lambda done, total, name: seen.append((done, total, name)),
    )
    assert seen == [(0, 4, "one"), (1, 4, "two"), (2, 4, "one"), (3, 4, "two"), (4, 4, "")]


@pytest.mark.parametrize("rounds", [0, -1, 1.5, "many"])
def test_settings_need_rounds_and_a_seed(rounds: Any) -> None:
    with pytest.raises(ConfigError, match="rounds must be a whole number above 0"):
        BenchSettings(rounds=rounds)
    with pytest.raises(ConfigError, match="seed must be"):
        BenchSettings(request=Request(settings=SamplingSettings()))


def test_the_defaults_are_two_greedy_rounds_of_128_tokens() -> None:
    chosen = BenchSettings()
    assert (chosen.rounds, chosen.request.max_tokens, chosen.request.seed) == (2, 128, 0)
    assert chosen.request.settings.greedy
    assert not chosen.keep_store
