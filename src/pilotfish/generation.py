"""From text to text: prompts, replies and streams on top of the engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pilotfish.accounting.decisions import speculation_dict
from pilotfish.accounting.metrics import prediction_tokens, reply_stats
from pilotfish.config import Request, RequestOptions
from pilotfish.engine.engine import Engine
from pilotfish.engine.scheduler import Job, Scheduler
from pilotfish.engine.session import Session
from pilotfish.errors import ConfigError, PilotfishError, PromptError
from pilotfish.grammar import Grammar, JsonGrammars
from pilotfish.replies import Facts, NamedLogprobs, NamedToken, Piece, Reply, Usage
from pilotfish.text import (
    ReplyText,
    Tokenizer,
    TokenTexts,
    as_messages,
    as_prompts,
    chat_prompt,
    fill_prompt_ids,
    prediction_ids,
    raw_prompt_ids,
)
from pilotfish.types import StopReason

if TYPE_CHECKING:
    from typing import Unpack

__all__ = [
    "Facts",
    "NamedLogprobs",
    "NamedToken",
    "Piece",
    "Prompt",
    "Reply",
    "ReplyStream",
    "RunningReply",
    "TextEngine",
    "Usage",
    "check_prepared",
    "prompt_ids",
]

_LOG = logging.getLogger("pilotfish")
# messages may differ in a number only, and replies are many
_MOST_FAILURES = 8

Prompt = str | Sequence[Mapping[str, Any]]

# a pass of more replies costs as much as two passes
_MOST_TOGETHER = 64


def check_prepared(request: Request, grammar: Grammar | None) -> None:
    """Raise PilotfishError if the schema that a request asks for was not compiled."""
    if request.json_schema is not None and grammar is None:
        raise PilotfishError(
            "the request has a json_schema and no grammar", hint="pass what prepare_grammar returns"
        )


def prompt_ids(prompt: Prompt, request: Request, tokenizer: Tokenizer) -> list[int]:
    """Return the token ids of a prompt: chat messages, a user's text, or raw text."""
    if request.raw:
        if not isinstance(prompt, str):
            kind = type(prompt).__name__
            raise PromptError(
                f"a raw prompt must be text, got {kind}", hint="leave raw out for messages"
            )
        if request.suffix:
            return fill_prompt_ids(prompt, request.suffix, tokenizer)
        return raw_prompt_ids(prompt, tokenizer)
    messages = as_messages(prompt)
    if request.system is not None:
        messages = [{"role": "system", "content": request.system}, *messages]
    return chat_prompt(
        messages,
        tokenizer=tokenizer,
        template_options=request.template_options,
        continue_final_message=request.continue_final_message,
    ).token_ids


class RunningReply:
    """A reply while it is made: the session, and the text of its tokens so far.

    Whoever drives it reads the prompt and takes rounds with the engine (`engine.read`,
    `engine.step`), takes the pieces, and finishes the session.
    """

    def __init__(self, owner: TextEngine, session: Session, text: ReplyText) -> None:
        self.session = session
        self._owner = owner
        self._text = text
        self._num_taken = 0

    def take(self) -> Piece | None:
        """Return what was added since the last call, or None where no token was."""
        tokens = tuple(self.session.emitted[self._num_taken :])
        of_prompt = () if self._num_taken else tuple(self.session.prompt_logprobs)
        self._num_taken += len(tokens)
        text = self._text.take()
        if self.session.done:
            text += self._text.finish()
        return Piece(text, tokens, of_prompt) if tokens or text else None

    @property
    def reply(self) -> Reply:
        """Return the finished reply; PilotfishError while it is still made."""
        if not self.session.done:
            raise PilotfishError(
                "the reply has not ended", hint="iterate to the end, or close the stream, first"
            )
        self._text.finish()
        return self._owner.make_reply(self.session, self._text)


class ReplyStream:
    """An iterator over the pieces of one reply; `reply` is there when it has ended.

    Closing it early cancels the request; the reply then ends with what was emitted. A stream that
    is dropped is closed. It is no generator: one would hold the stream that holds it, and a loop
    that is left would keep its slot until the garbage collector runs.
    """

    def __init__(self, engine: Engine, running: RunningReply) -> None:
        self._engine = engine
        self._running = running
        self._is_over = False

    def __enter__(self) -> ReplyStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> ReplyStream:
        return self

    def __next__(self) -> Piece:
        session = self._running.session
        try:
            while not session.done:
                self._engine.step([session])
                if session.done:
                    self._engine.finish(session)
                if (piece := self._running.take()) is not None:
                    return piece
        except BaseException:
            self.close()
            raise
        is_first_end, self._is_over = not self._is_over, True
        if session.error is not None and is_first_end:
            raise session.error
        raise StopIteration

    def close(self) -> None:
        """Stop generating now."""
        self._is_over = True
        self._engine.finish(self._running.session)

    @property
    def reply(self) -> Reply:
        """Return the finished reply; PilotfishError while the stream is still running."""
        return self._running.reply


class TextEngine:
    """A target model with its drafter, ready to answer: what `pilotfish.load` returns.

    Several threads may generate at once. As many replies are made at a time as it was loaded with
    sessions for (`max_sessions`); the others wait their turn. Use it as a context manager, or
    `close()` it, to free the models.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        facts: Facts | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.facts = facts or Facts()
        self._close = close
        self._failures: dict[str, None] = {}
        self._token_texts = TokenTexts(tokenizer)
        self._grammars = JsonGrammars(tokenizer)

    def __enter__(self) -> TextEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the models; safe to repeat."""
        self._close()

    def clear(self) -> None:
        """Forget the texts of all requests: past replies, from which drafts are copied, and kept
        prompts. What was learned about costs stays. Replies that are being made go on."""
        self.engine.clear()

    def prompt_ids(self, prompt: Prompt, request: Request) -> list[int]:
        """Return the token ids of a prompt: chat messages, a user's text, or raw text."""
        return prompt_ids(prompt, request, self.tokenizer)

    @property
    def notices(self) -> tuple[str, ...]:
        """Return what is to be known about the loaded parts, with what drafters failed of since."""
        return (*self.facts.notices, *self._failures)

    def _tell_failures(self, failures: Iterable[str]) -> None:
        """Note what drafters failed of, and log it, each once."""
        for failure in failures:
            notice = f"a drafter failed: {failure}"
            if notice not in self._failures and len(self._failures) < _MOST_FAILURES:
                self._failures[notice] = None
                _LOG.warning(notice)

    def check_drafter(self, name: str) -> None:
        """Raise ConfigError if a request names a drafter that was not loaded."""
        drafters = self.facts.drafters
        if drafters is None or name in ("auto", "none", *drafters):
            return
        reason = self.facts.speculation["reason"]
        there = f"there is {' and '.join(drafters)}" if drafters else reason
        option = "a draft model with --draft" if name == "model" else f"it with --drafter {name}"
        raise ConfigError(
            f"drafter {name} is not loaded: {there}",
            hint=f"name {option} when loading, or leave drafter out of the request",
        )

    def prepare_grammar(self, request: Request) -> Grammar | None:
        """Return the compiled schema that a request asks for, if any, as `open` needs it.

        Takes from a millisecond to a second; any thread may do it. Raises ConfigError for a schema
        that cannot be used, and MissingExtra.
        """
        schema = request.json_schema
        return None if schema is None else self._grammars.compiled(schema)

    def tokenized(self, request: Request) -> Request:
        """Return the request with its prediction as token ids, which `open` makes of text: any
        thread may do it before. What no reply has room for is left out. Raises PromptError."""
        most = self.engine.target.context_size
        ids = prediction_ids(request.prediction, self.tokenizer, most_tokens=most)
        return request if ids == request.prediction else replace(request, prediction=ids)

    def generate(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> Reply:
        """Return the reply to one prompt; `options` are those of `Request` and
        `SamplingSettings`. Raises PromptError, ConfigError or BackendError."""
        with self.stream(prompt, **options) as stream:
            for _ in stream:
                pass
        return stream.reply

    def stream(self, prompt: Prompt, **options: Unpack[RequestOptions]) -> ReplyStream:
        """Return an iterator over the pieces of the reply, one a round.

        It holds one of the engine's slots until it ends, is closed or is dropped. While all are
        held by replies that other threads make, this waits; raises NoFreeSlot where they are held
        by streams that nobody goes on with.
        """
        request = Request.from_options(options)
        prompt_ids = self.prompt_ids(prompt, request)
        request = self.tokenized(request)
        grammar = self.prepare_grammar(request)
        running = self.engine.wait_for_slot(lambda: self.open(prompt_ids, request, grammar))
        try:
            while not self.engine.read(running.session):
                pass
        except BaseException:
            self.engine.finish(running.session)
            raise
        return ReplyStream(self.engine, running)

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[RequestOptions]
    ) -> list[Reply]:
        """Return the replies to any number of prompts, generated together as far as there are
        slots: each equals its solo run. Raises as `generate` does, for the first that fails."""
        request = Request.from_options(options)
        prompt_ids = [self.prompt_ids(prompt, request) for prompt in as_prompts(prompts)]
        grammar, request = self.prepare_grammar(request), self.tokenized(request)
        for each in prompt_ids:
            self.engine.check(each, request.settings)
        scheduler = Scheduler(self.engine, max_running=_MOST_TOGETHER)
        running: dict[int, RunningReply] = {}

        def begin(index: int, job: Job) -> Session:
            others_run = any(not each.session.done for each in reversed(running.values()))
            running[index] = self.engine.wait_for_slot(
                lambda: self.open(job.prompt, request, grammar), waits=not others_run
            )
            return running[index].session

        scheduler.add(
            Job(prompt=each, num_tokens=len(each), begin=partial(begin, index))
            for index, each in enumerate(prompt_ids)
        )
        try:
            while not scheduler.is_idle:
                for job in scheduler.step().ended:
                    if job.error is not None:
                        raise job.error
        finally:
            for reply in running.values():
                self.engine.finish(reply.session)
        return [running[index].reply for index in range(len(prompt_ids))]

    def open(
        self, prompt_ids: Sequence[int], request: Request, grammar: Grammar | None = None
    ) -> RunningReply:
        """Return a reply that begins: nothing is read yet, and no schema compiled, since others may
        wait for the thread. Raises PromptError, ConfigError or BackendError."""
        self.check_drafter(request.drafter)
        check_prepared(request, grammar)
        wish = self.tokenized(request).wish
        text = ReplyText(
            self.tokenizer,
            stop=request.stop,
            min_tokens=request.settings.min_tokens,
            shown_tokens=request.shown_tokens,
            is_complete=request.end_rule(),
        )
        session = self.engine.open(
            prompt_ids,
            settings=request.settings,
            max_tokens=request.max_tokens,
            seed=request.seed,
            end_ids=self.tokenizer.end_ids,
            completes_stop=text.feed,
            wish=wish,
            constraint=None if grammar is None else grammar.constraint(),
        )
        return RunningReply(self, session, text)

    def make_reply(self, session: Session, text: ReplyText) -> Reply:
        """Return the reply of a session that has ended."""
        speculation = speculation_dict(
            session.records,
            on=self.facts.speculation_on,
            reason=self.facts.speculation_reason,
            drafters=self.facts.drafters,
            wish=session.wish,
            error=session.drafting_error,
            lost=self.facts.lost,
        )
        self._tell_failures(speculation["failures"])
        return Reply(
            text=text.text,
            tokens=tuple(session.emitted),
            finish_reason=(session.stop_reason or StopReason.ERROR).value,
            seed=session.seed,
            usage=Usage(
                session.num_prompt_tokens,
                len(session.emitted),
                session.num_reused_tokens,
                *prediction_tokens(session.records),
            ),
            stats=reply_stats(
                session.records,
                prefill_seconds=session.prefill_seconds,
                draft_prefill_seconds=session.draft_prefill_seconds,
                speculation=speculation,
                prompt_tokens=session.num_prompt_tokens,
                target=self.facts.target_size,
                draft=self.facts.draft_size,
            ),
            exactness=self.facts.exactness,
            models=self.facts.models,
            records=tuple(session.records),
            prompt_logprobs=tuple(session.prompt_logprobs),
            token_texts=self._token_texts,
        )
