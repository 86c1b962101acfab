"""Records plain replies of a target, and what a draft model would have said along them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.bench.recording import NO_DRAFT, PlainTimes, Recorded, Recording
from pilotfish.bench.runner import WARM_UP_PROMPT, WARM_UP_TOKENS, Clock, Progress
from pilotfish.bench.workload import Prompt
from pilotfish.config import Request, SpeculationConfig
from pilotfish.drafters.model import ModelDrafter
from pilotfish.engine.session import Session
from pilotfish.errors import PilotfishError, PromptError
from pilotfish.generation import TextEngine
from pilotfish.protocols import Cache, TargetModel
from pilotfish.types import FloatArray, RoundRecord, Segment, SessionView

# rows of a pass that reads what the reply was: wide ones take least time a token
_WIDTH = 32
# widths that are timed beside single tokens, once a reply
_TIMED_WIDTHS = (2, 4, 8, 16)


def record(
    plain: TextEngine,
    draft: TargetModel | None,
    prompts: Sequence[Prompt],
    *,
    request: Request,
    costs: PairCosts,
    seconds: float = math.inf,
    clock: Clock = time.perf_counter,
    progress: Progress | None = None,
) -> Recorded:
    """Return the target's plain reply to each prompt, and what the draft model says along it.

    plain    an engine that drafts nothing; a first, short reply of it is not kept
    costs    what passes take, as calibrated: so that a controller can decide beside the replies
    request  needs a seed. A sampled reply is recorded with its noise: the draft model's token is
             the one it would have drafted.
    seconds  a prompt that would end later than that is not begun, but for the first

    A prompt that fails is left out; PromptError if none is left.
    """
    recordings: list[Recording] = []
    errors: dict[str, str] = {}
    recorder = _Recorder(plain, draft, request=request, costs=costs, clock=clock)
    recorder.warm_up()
    start, num_asked = clock(), 0
    for number, prompt in enumerate(prompts):
        if number and (clock() - start) * (number + 1) / number > seconds:
            break
        if progress is not None:
            progress(number, len(prompts), prompt.id)
        num_asked += 1
        try:
            recordings.append(recorder.recording(prompt))
        except PilotfishError as error:
            errors[prompt.id] = str(error)
    if not recordings:
        first = next(iter(errors.values()), "there are none")
        raise PromptError(f"none of the {len(prompts)} prompts could be recorded: {first}")
    return Recorded(
        recordings=tuple(recordings),
        about={},
        errors=errors,
        num_left=len(prompts) - num_asked,
    )


class _Recorder:
    """Records replies of one pair."""

    def __init__(
        self,
        plain: TextEngine,
        draft: TargetModel | None,
        *,
        request: Request,
        costs: PairCosts,
        clock: Clock,
    ) -> None:
        self._plain = plain
        self._request = request
        self._clock = clock
        self._shadow = _Shadow(plain.engine.target, costs, clock)
        self._reader: _DraftReader | None = None
        if draft is not None:
            self._reader = _DraftReader(draft, vocab_size=plain.engine.target.vocab_size)

    def warm_up(self) -> None:
        """Give a short reply that is not kept."""
        request = replace(self._request, max_tokens=WARM_UP_TOKENS)
        with self._reply(self._plain.prompt_ids(WARM_UP_PROMPT, request), request):
            pass

    def recording(self, prompt: Prompt) -> Recording:
        """Return what was recorded of one prompt; raises what the session ended with."""
        ids = self._plain.prompt_ids(prompt.content, self._request)
        with self._reply(ids, self._request) as (session, times):
            said: list[tuple[int, float]] = []
            place = _middle(session)
            step, steps = _steps_by_width(self._plain.engine.target, session, place, self._clock)
            times = replace(times, context=place, steps=steps)
            if self._reader is not None:
                with self._reader.opened(session, self._clock) as draft_prompt_seconds:
                    said = self._reader.along(session)
                    draft_steps = self._reader.pass_seconds(place, self._clock) / step
                times = replace(times, draft_prompt=draft_prompt_seconds, draft_steps=draft_steps)
        return Recording(
            id=prompt.id,
            category=prompt.category,
            prompt=tuple(ids),
            reply=tuple(session.output_ids),
            draft=tuple(token for token, _ in said),
            draft_probabilities=tuple(probability for _, probability in said),
            end_ids=tuple(sorted(self._plain.tokenizer.end_ids)),
            max_tokens=self._request.max_tokens,
            times=times,
        )

    @contextmanager
    def _reply(self, ids: Sequence[int], request: Request) -> Iterator[tuple[Session, PlainTimes]]:
        """Give the session of a reply, decoded to its end, and the seconds that took; its cache is
        open until the block ends."""
        engine = self._plain.engine
        session = engine.start(
            ids,
            settings=request.settings,
            max_tokens=request.max_tokens,
            seed=request.seed,
            end_ids=self._plain.tokenizer.end_ids,
        )
        decode_seconds = 0.0
        try:
            with self._shadow.beside(session):
                while not session.done:
                    self._shadow.propose(session)
                    start = self._clock()
                    records = engine.step([session])
                    decode_seconds += self._clock() - start
                    self._shadow.observe(records)
            if session.error is not None:
                raise session.error
            times = PlainTimes(
                prompt=session.prefill_seconds,
                draft_prompt=0.0,
                target=sum(one.target_seconds for one in session.records),
                decode=decode_seconds,
                drafting=self._shadow.seconds,
            )
            yield session, times
        finally:
            engine.finish(session)


class _Shadow:
    """Drafts from the text and decides beside a plain reply, to know what that takes here; nothing
    of it is used. Between the passes of a real model this takes longer than on its own."""

    def __init__(self, target: TargetModel, costs: PairCosts, clock: Clock) -> None:
        from pilotfish import build  # not at the top: help needs no backend

        speculation = SpeculationConfig(drafter="suffix")
        self._drafter, self._controller = build.make_parts(
            target, None, speculation, backend="native", costs=lambda: costs
        )
        self._clock = clock
        self.seconds = 0.0

    @contextmanager
    def beside(self, session: Session) -> Iterator[None]:
        """Follow one reply."""
        self.seconds = 0.0
        clear = getattr(self._drafter, "clear", None)
        if clear is not None:
            clear()
        while self._drafter.prepare(session.view()):
            pass
        try:
            yield
        finally:
            self._drafter.forget(session.request_id)

    def propose(self, session: Session) -> None:
        """Do what a round does before its pass."""
        views = [session.view()]
        start = self._clock()
        self._drafter.propose(views, self._controller.draft_budgets(views))
        self.seconds += self._clock() - start

    def observe(self, records: Sequence[RoundRecord]) -> None:
        """Do what a round does after its pass."""
        start = self._clock()
        self._controller.observe(records)
        self.seconds += self._clock() - start


def _middle(session: Session) -> int:
    """Return a place about the middle of the reply that the widest timed pass can follow."""
    middle = session.num_prompt_tokens - 1 + len(session.emitted) // 2
    return max(0, min(middle, len(session.tokens) - _TIMED_WIDTHS[-1]))


def _steps_by_width(
    target: TargetModel, session: Session, place: int, clock: Clock
) -> tuple[float, dict[int, float]]:
    """Return the seconds of a step, and what passes of other widths take in steps: each beside
    two steps of its own, as the machine may be another a second later."""

    def seconds(width: int) -> float:
        session.cache.truncate(place)
        segment = Segment(session.cache, session.tokens[place : place + width])
        start = clock()
        target.forward([segment])
        return clock() - start

    most = min(target.max_width, len(session.tokens) - place)
    seconds(1)  # the first pass after another place warms up
    single = [seconds(1)]
    steps = {}
    for width in (width for width in _TIMED_WIDTHS if width <= most):
        wide = seconds(width)
        single.append(seconds(1))
        steps[width] = 2 * wide / (single[-2] + single[-1])
    return statistics.median(single), steps


class _DraftReader:
    """Says what a draft model would have drafted along replies that are known."""

    def __init__(self, draft: TargetModel, *, vocab_size: int) -> None:
        self._head = getattr(draft, "head", None)
        self._model = _ReadAhead(draft)
        # one drafter for all replies, as when it drafts: a head knows whose tokens were added
        self._drafter = ModelDrafter(
            self._model, vocab_size=vocab_size, min_survival=0.0, head=self._head
        )

    @contextmanager
    def opened(self, session: Session, clock: Clock) -> Iterator[float]:
        """Read the prompt of a reply and give the seconds that took."""
        if self._head is not None:
            # rows of a wide pass need an entry for what its later tokens add; the drafter rules
            # out, position by position, what the text has not shown yet
            self._head.extend(session.tokens)
        self._model.begin(session.tokens)
        try:
            start = clock()
            while self._drafter.prepare(_until(session.view(), session.num_prompt_tokens)):
                pass
            yield clock() - start
        finally:
            self._drafter.forget(session.request_id)
            self._model.end()

    def along(self, session: Session) -> list[tuple[int, float]]:
        """Return the draft model's token and largest probability at each position of the reply."""
        view = replace(session.view(), num_tokens_left=1)
        said: list[tuple[int, float]] = []
        for place in range(session.num_prompt_tokens, len(session.tokens)):
            (proposal,) = self._drafter.propose([_until(view, place)], [1])
            token = proposal.token_ids[0] if proposal.token_ids else NO_DRAFT
            said.append((token, proposal.probabilities[0] if proposal.probabilities else 0.0))
        return said

    def pass_seconds(self, place: int, clock: Clock) -> float:
        """Return the seconds of a pass over one token after `place` tokens, the middle of three."""
        return statistics.median(self._model.pass_seconds(place, clock) for _ in range(3))


def _until(view: SessionView, length: int) -> SessionView:
    """Return the view as it was when the text had so many tokens."""
    return replace(view, tokens=view.tokens[:length])


class _Place:
    """How far a drafter believes that its model has read."""

    def __init__(self) -> None:
        self.length = 0

    def __len__(self) -> int:
        return self.length

    def truncate(self, length: int) -> None:
        assert length == self.length, "what is known to be the text is never taken back"

    def prefix(self, length: int) -> _Place:
        copy = _Place()
        copy.length = length
        return copy

    def close(self) -> None:
        """The model behind it is closed at the end of the text."""


class _ReadAhead:
    """A model that is asked token by token along a text it knows, and reads it in wide passes."""

    def __init__(self, model: TargetModel) -> None:
        self._model = model
        self._text: Sequence[int] = ()
        self._cache: Cache | None = None
        self._rows: FloatArray = np.empty((0, 0), dtype=np.float32)
        self._first_row = 0
        self.vocab_size = model.vocab_size
        self.context_size = model.context_size
        self.max_width = model.max_width

    def begin(self, text: Sequence[int]) -> None:
        """Take up another text."""
        self._text = text[: self.context_size]
        self._cache = self._model.new_cache()

    def end(self) -> None:
        """Give the text's place back."""
        if self._cache is not None:
            self._cache.close()

    def pass_seconds(self, place: int, clock: Clock) -> float:
        """Return the seconds of a pass over one token of the text, wherever that was read to."""
        assert self._cache is not None, "no text was begun"
        place = max(0, min(place, len(self._cache) - 1))
        self._cache.truncate(place)
        start = clock()
        self._model.forward([Segment(self._cache, self._text[place : place + 1])])
        return clock() - start

    def new_cache(self) -> _Place:
        return _Place()

    def forward(self, segments: Sequence[Segment]) -> list[FloatArray]:
        (segment,) = segments
        place, cache = segment.cache, self._cache
        assert isinstance(place, _Place), "not a place in this text"
        assert cache is not None, "no text was begun"
        place.length += len(segment.token_ids)
        if not segment.num_rows:
            return self._model.forward([replace(segment, cache=cache)])
        while len(cache) < place.length:
            self._first_row = len(cache)
            width = min(_WIDTH, self._model.max_width)
            chunk = self._text[self._first_row : self._first_row + width]
            (self._rows,) = self._model.forward([Segment(cache, chunk)])
        row = place.length - 1 - self._first_row
        return [self._rows[row : row + 1]]
