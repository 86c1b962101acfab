"""Runs plain decoding and other modes prompt by prompt, and keeps what each reply took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pilotfish.bench.workload import Prompt
from pilotfish.config import DRAFTERS, Request, SpeculationConfig
from pilotfish.errors import ConfigError, PilotfishError, PromptError, near_name
from pilotfish.generation import TextEngine
from pilotfish.types import RoundRecord, require, require_number

if TYPE_CHECKING:
    from pilotfish.build import ModelPair
    from pilotfish.calibration import Progress as MeasureProgress

PLAIN = "none"
# the prompts of a benchmark come without predictions
_DRAFTERS = tuple(name for name in DRAFTERS if name != "prediction")
WARM_UP_PROMPT = "Count from one to twenty in words, then back from twenty to one."
WARM_UP_TOKENS = 16

Clock = Callable[[], float]
Progress = Callable[[int, int, str], None]
"""Called with prompts done, prompts in all, and the id of the prompt that is next."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to decode: a drafter, and how many tokens it drafts in every round.

    Without `num_drafts` the controller decides on that.
    """

    drafter: str
    num_drafts: int | None = None

    @property
    def name(self) -> str:
        """Return the mode as it is written: suffix, or suffix:7."""
        return self.drafter if self.num_drafts is None else f"{self.drafter}:{self.num_drafts}"

    def speculation(self, base: SpeculationConfig) -> SpeculationConfig:
        """Return the configuration of the mode; what it does not say is that of `base`."""
        controller = "auto" if self.num_drafts is None else "fixed"
        return replace(
            base,
            drafter=self.drafter,
            controller=controller,
            num_speculative_tokens=self.num_drafts,
        )


def parse_modes(text: str) -> list[Mode]:
    """Return the modes of a list such as "auto,suffix:7", without plain decoding, which every
    benchmark has; ConfigError names the one that is none."""
    modes: dict[str, Mode] = {}
    for word in text.split(","):
        name, colon, number = word.strip().partition(":")
        if name not in _DRAFTERS:
            near = near_name(name, _DRAFTERS)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(_DRAFTERS)}"
            raise ConfigError(f"unknown mode: {word.strip()!r}", hint=hint)
        if colon and (name == PLAIN or not number.isdecimal() or int(number) == 0):
            raise ConfigError(
                f"unknown mode: {word.strip()!r}",
                hint="a number is how many tokens a drafter drafts in a round, as in suffix:7",
            )
        mode = Mode(name, int(number) if colon else None)
        if name != PLAIN:
            modes[mode.name] = mode
    return list(modes.values())


def mode_engines(
    pair: ModelPair,
    modes: Sequence[Mode],
    base: SpeculationConfig,
    *,
    progress: MeasureProgress | None = None,
) -> dict[str, TextEngine]:
    """Return an engine for plain decoding and one for each mode, on the same loaded models.

    Only the pair is to be closed. An engine keeps what it learns for as long as it lives, but no
    texts: each reads its prompts itself, and none takes the places of others. `progress` is told of
    measuring what passes cost.
    """
    from pilotfish import build  # not at the top: help needs no backend

    pair.config = replace(pair.config, kept_sequences=0)
    every = [Mode(PLAIN), *modes]
    return {
        mode.name: build.text_engine(pair, mode.speculation(base), progress=progress)
        for mode in every
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSettings:
    """How often each prompt is answered, and how. `request` needs a seed: it is that of every
    reply, so that every mode is to say the same.

    keep_store  leave replies of the past where drafters find them; else each run begins without
    """

    rounds: int = 2
    keep_store: bool = False
    request: Request = field(default_factory=lambda: Request(max_tokens=128, seed=0))

    def __post_init__(self) -> None:
        require_number("rounds", self.rounds, wanted := "a whole number above 0", whole=True)
        require(self.rounds > 0, "rounds", self.rounds, wanted)
        require(self.request.seed is not None, "seed", None, "a whole number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One reply of one mode.

    prompt_seconds        what the target took to read the prompt
    draft_prompt_seconds  what the drafter took to read it
    decode_seconds        from then to the last token, the controller's learning included
    repeated              whether the drafter may remember a reply to the same prompt
    drafting_error        why the drafter gave up; the reply went on without
    """

    mode: str
    prompt_index: int
    round_index: int
    records: tuple[RoundRecord, ...]
    output_ids: tuple[int, ...]
    prompt_seconds: float
    draft_prompt_seconds: float
    decode_seconds: float
    repeated: bool = False
    drafting_error: str = ""

    @property
    def seconds_per_token(self) -> float:
        """Return the time of decoding by token."""
        return self.decode_seconds / len(self.output_ids)

    @property
    def total_seconds_per_token(self) -> float:
        """Return the time of the whole request by token: both models read the prompt first."""
        reading = self.prompt_seconds + self.draft_prompt_seconds
        return (reading + self.decode_seconds) / len(self.output_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """What a benchmark measured. Prompts are named by their index.

    modes              without plain decoding
    num_prompt_tokens  by prompt, of those that could be written
    runs               of the prompts without an error, in the order in which they were made
    errors             why a prompt was skipped, by prompt
    """

    prompts: tuple[Prompt, ...]
    modes: tuple[str, ...]
    settings: BenchSettings
    num_prompt_tokens: Mapping[int, int]
    runs: tuple[Run, ...]
    errors: Mapping[int, str]


def run_benchmark(
    engines: Mapping[str, TextEngine],
    prompts: Sequence[Prompt],
    settings: BenchSettings,
    *,
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
) -> BenchResult:
    """Answer every prompt with every engine, `settings.rounds` times; return what it took.

    `engines` are named by mode, plain decoding among them. One prompt is answered by all of them
    before the next; who begins changes with the prompt and the round. All get the same limits. A
    first, short reply of each is not measured. A prompt that fails with one of them is left out
    with all; PromptError if none is left.
    """
    bench = _Running(engines, prompts, settings, clock)
    bench.warm_up()
    total = settings.rounds * len(prompts)
    for number in range(total):
        round_index, index = divmod(number, len(prompts))
        if progress is not None:
            progress(number, total, prompts[index].id)
        bench.answer(index, round_index)
    if progress is not None:
        progress(total, total, "")
    return bench.result()


class _Running:
    """A benchmark while it runs."""

    def __init__(
        self,
        engines: Mapping[str, TextEngine],
        prompts: Sequence[Prompt],
        settings: BenchSettings,
        clock: Clock,
    ) -> None:
        self._engines = engines
        self._prompts = prompts
        self._settings = settings
        self._clock = clock
        self._ids: dict[int, list[int]] = {}
        self._runs: list[Run] = []
        self._errors: dict[int, PilotfishError] = {}
        self._seen: set[tuple[str, tuple[int, ...]]] = set()

    def warm_up(self) -> None:
        """Let every engine give a short reply that is not measured and not remembered."""
        request = replace(self._settings.request, max_tokens=WARM_UP_TOKENS)
        for name, engine in self._engines.items():
            ids = engine.prompt_ids(WARM_UP_PROMPT, request)
            self._run(name, ids, request, place=(0, 0))
            clear_store(engine)
        self._seen.clear()

    def answer(self, index: int, round_index: int) -> None:
        """Answer one prompt with every engine, unless it has failed before."""
        if index in self._errors:
            return
        request = self._settings.request
        names = list(self._engines)
        first = (index + round_index) % len(names)
        try:
            if index not in self._ids:
                content = self._prompts[index].content
                self._ids[index] = self._engines[PLAIN].prompt_ids(content, request)
            ids = self._ids[index]
            for name in names[first:] + names[:first]:
                self._runs.append(self._run(name, ids, request, place=(index, round_index)))
        except PilotfishError as error:
            self._errors[index] = error

    def result(self) -> BenchResult:
        """Return what was measured; PromptError if every prompt failed."""
        if len(self._errors) == len(self._prompts):
            first = next(iter(self._errors.values()), None)
            raise PromptError(
                f"none of the {len(self._prompts)} prompts could be answered: {first}",
                hint="" if first is None else first.hint,
            )
        return BenchResult(
            prompts=tuple(self._prompts),
            modes=tuple(name for name in self._engines if name != PLAIN),
            settings=self._settings,
            num_prompt_tokens={index: len(ids) for index, ids in self._ids.items()},
            runs=tuple(run for run in self._runs if run.prompt_index not in self._errors),
            errors={index: str(error) for index, error in self._errors.items()},
        )

    def _run(
        self, name: str, prompt_ids: list[int], request: Request, *, place: tuple[int, int]
    ) -> Run:
        """Return one reply of an engine; raises what the session ended with."""
        text_engine = self._engines[name]
        engine = text_engine.engine
        if not self._settings.keep_store:
            clear_store(text_engine)
        session = engine.start(
            prompt_ids,
            settings=request.settings,
            max_tokens=request.max_tokens,
            seed=request.seed,
            end_ids=text_engine.tokenizer.end_ids,
        )
        try:
            # our own clock: a controller learns after the last reading of the engine's
            start = self._clock()
            while not session.done:
                engine.step([session])
            decode_seconds = self._clock() - start
        finally:
            engine.finish(session)
        if session.error is not None:
            raise session.error
        asked = (name, tuple(prompt_ids))
        repeated = self._settings.keep_store and asked in self._seen
        self._seen.add(asked)
        drafting_error = session.drafting_error
        return Run(
            mode=name,
            prompt_index=place[0],
            round_index=place[1],
            records=tuple(session.records),
            output_ids=tuple(session.output_ids),
            prompt_seconds=session.prefill_seconds - session.draft_prefill_seconds,
            draft_prompt_seconds=session.draft_prefill_seconds,
            decode_seconds=decode_seconds,
            repeated=repeated,
            drafting_error="" if drafting_error is None else str(drafting_error),
        )


def clear_store(engine: TextEngine) -> None:
    """Empty what an engine's drafter keeps of past replies, if it keeps any."""
    clear = getattr(engine.engine.drafter, "clear", None)
    if clear is not None:
        clear()
