"""The state of one request: its tokens, its cache, and the only code that changes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pilotfish.errors import ContextLengthExceeded, PromptError
from pilotfish.protocols import Cache, Constraint
from pilotfish.sampling import Sampler, Stream, TokenHistory, draw, token_logprobs, uniform
from pilotfish.types import (
    Distribution,
    DraftWish,
    EmittedToken,
    FloatArray,
    Proposal,
    RoundRecord,
    SamplingSettings,
    Segment,
    SessionView,
    StopReason,
    TokenLogprobs,
    Verdict,
)
from pilotfish.verify import clip_to_stop, verify_match, verify_token


def never_stops(token_id: int) -> bool:
    """Return False: the stop detector of a request without stop strings."""
    return False


def require_room(prompt: Sequence[int], context_size: int) -> int:
    """Return the most tokens a reply to the prompt may have; raises PromptError for none, and
    ContextLengthExceeded."""
    if not prompt:
        raise PromptError("the prompt is empty", hint="give at least one token")
    room = context_size + 1 - len(prompt)
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {len(prompt)} tokens and the context holds {context_size}",
            hint="shorten the prompt or raise --ctx",
        )
    return room


class Session:
    """One request while it runs.

    Invariant before and after every round: `len(cache) == len(tokens) - 1`; the last token is
    *pending*, chosen and not yet scored.
    """

    def __init__(
        self,
        request_id: int,
        prompt: Sequence[int],
        cache: Cache,
        *,
        settings: SamplingSettings,
        seed: int,
        end_ids: frozenset[int],
        num_tokens_left: int,
        completes_stop: Callable[[int], bool] = never_stops,
        verify_rule: str = "match",
        wish: DraftWish | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.cache = cache
        self.settings = settings
        self.seed = seed
        self.end_ids = end_ids
        self.num_prompt_tokens = len(prompt)
        self.num_tokens_left = num_tokens_left
        self.emitted: list[EmittedToken] = []
        # of the prompt's tokens but the first, where they are wanted
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.records: list[RoundRecord] = []
        self.stop_reason: StopReason | None = None
        self.error: Exception | None = None
        self.drafting_error: Exception | None = None
        self.prefill_seconds = 0.0
        self.draft_prefill_seconds = 0.0
        # tokens of the prompt that another sequence had read before
        self.num_reused_tokens = len(cache)
        self.is_prepared = False
        self.wish = wish or DraftWish()
        self.constraint = constraint
        self._sampler = Sampler(settings, seed, end_ids, constraint)
        self._history = TokenHistory(prompt, num_prompt_tokens=len(prompt))
        self._completes_stop = completes_stop
        self._verify_rule = verify_rule

    @property
    def done(self) -> bool:
        """Return whether the reply has ended, for whatever reason."""
        return self.stop_reason is not None

    @property
    def is_read(self) -> bool:
        """Return whether the prompt is read, all but its last token, by target and drafters."""
        return self.is_prepared and len(self.cache) == len(self.tokens) - 1

    @property
    def output_ids(self) -> list[int]:
        """Return the ids of the reply so far."""
        return self.tokens[self.num_prompt_tokens :]

    def view(self) -> SessionView:
        """Return what drafters and controllers may know."""
        return SessionView(
            self.request_id,
            self.tokens,
            self.num_prompt_tokens,
            self.settings,
            self.seed,
            len(self.records),
            self.end_ids,
            self._verify_rule == "token",
            self.num_tokens_left,
            self.wish,
            self.constraint,
        )

    def note_prompt(self, rows: FloatArray, start: int) -> None:
        """Keep what rows [n, vocab] after the tokens from `start` on say of those that follow."""
        wanted = self.settings.prompt_logprobs
        assert wanted is not None, "prompts are scored where that is asked for"
        following = self.tokens[start + 1 : start + 1 + len(rows)]
        self.prompt_logprobs += [
            token_logprobs(row, token, wanted) for row, token in zip(rows, following, strict=True)
        ]

    def segment(self, proposal: Proposal) -> Segment:
        """Return the pending token and the proposal as one segment, every row wanted."""
        return Segment(self.cache, [self.tokens[-1], *proposal.token_ids])

    def verify(self, rows: FloatArray, proposal: Proposal) -> Verdict:
        """Decide how many draft tokens stand; rows [1 + drafted, vocab]."""
        self._history.truncate(len(self.tokens))
        if self._verify_rule == "token":
            return self._verify_token(rows, proposal)

        def choose(index: int) -> int:
            return self._sampler.choose(rows[index], self._history_with(proposal, index))

        return verify_match(proposal, choose)

    def _verify_token(self, rows: FloatArray, proposal: Proposal) -> Verdict:
        num_tokens, round_index = len(self.tokens), len(self.records)

        def key(index: int, stream: Stream) -> int:
            return self._sampler.key(num_tokens + index, stream, round_index)

        def target_law(index: int) -> Distribution:
            return self._sampler.law(rows[index], self._history_with(proposal, index))

        def accept(index: int, chance: float) -> bool:
            return uniform(key(index, Stream.ACCEPTANCE)) < chance

        def draw_from(index: int, law: Distribution) -> int:
            return draw(law, key(index, Stream.CORRECTION))

        return verify_token(proposal, target_law=target_law, accept=accept, draw=draw_from)

    def _history_with(self, proposal: Proposal, num_drafts: int) -> TokenHistory:
        """Return the history of the row after so many draft tokens; rows are asked in order."""
        num_tried = len(self._history) - len(self.tokens)
        self._history.extend(proposal.token_ids[num_tried:num_drafts])
        return self._history

    def commit(self, rows: FloatArray, proposal: Proposal, verdict: Verdict) -> list[EmittedToken]:
        """Append what the round emits, cut the cache, and return the emitted tokens.

        The only place that changes a session: end tokens, stop strings, the limit, usage,
        logprobs and the cache all follow one cut.
        """
        clip = clip_to_stop(
            verdict.tokens(proposal),
            end_ids=self.end_ids,
            num_tokens_left=self.num_tokens_left,
            completes_stop=self._completes_stop,
        )
        wanted = self.settings.logprobs
        emitted = [
            EmittedToken(
                token,
                proposal.source if index < verdict.num_accepted else "target",
                None if wanted is None else token_logprobs(rows[index], token, wanted),
            )
            for index, token in enumerate(clip.tokens)
        ]
        self._history.truncate(len(self.tokens))
        self._history.extend(clip.tokens)
        self.tokens.extend(clip.tokens)
        self.num_tokens_left -= len(clip.tokens)
        self.emitted.extend(emitted)
        self.stop_reason = clip.reason
        self.cache.truncate(len(self.tokens) - 1)
        assert emitted, "every round must emit a token"
        assert len(self.cache) == len(self.tokens) - 1, "the last token must be pending"
        return emitted

    def fail(self, error: Exception) -> None:
        """End the session with an error; what was emitted stays."""
        self.error = error
        self.stop_reason = StopReason.ERROR

    def cancel(self) -> None:
        """End the session between two rounds."""
        if not self.done:
            self.stop_reason = StopReason.CANCELLED


def checked_rows(rows: FloatArray, *, num_rows: int, vocab_size: int) -> FloatArray:
    """Return the rows unchanged after checking that their shape is [num_rows, vocab_size]."""
    assert rows.shape == (num_rows, vocab_size), f"rows {rows.shape}, not {(num_rows, vocab_size)}"
    assert rows.dtype == np.float32, f"rows of {rows.dtype}"
    return rows
