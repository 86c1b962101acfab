"""Makes replies to accepted requests: whole or streamed, cancelled when nobody listens any more."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pilotfish.accounting.decisions import round_counts
from pilotfish.accounting.metrics import reply_stats
from pilotfish.config import Request
from pilotfish.generation import Facts, Piece, Reply
from pilotfish.grammar import Grammar
from pilotfish.server.access import note
from pilotfish.server.choices import Choice, Document
from pilotfish.server.delivery import PromptProgress
from pilotfish.server.errors import ApiError, api_error, json_response
from pilotfish.server.ignored import HEADER as IGNORED_FIELDS
from pilotfish.server.service import Generation, Service
from pilotfish.server.serving import Serving

T = TypeVar("T")
News = Piece | PromptProgress | Reply

_DONE = b"data: [DONE]\n\n"
# a comment, which clients pass over: it keeps proxies from taking silence for an end
_PING = b": ping\n\n"
_GONE = "client_gone"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request in all its choices, ready to be queued.

    prompts         token ids of each prompt
    requests        what is asked for each choice of a prompt
    grammar         the compiled schema of all of them, if they have one
    ignored         names of fields that changed nothing, for a header of the answer
    choices         the form of each choice of each prompt, prompt by prompt
    kind            "chat.completion" or "text_completion"
    tells_progress  whether its stream says how far prompts are read
    """

    prompts: Sequence[Sequence[int]]
    requests: Sequence[Request]
    choices: Sequence[Choice]
    kind: str
    streams: bool
    includes_usage: bool
    reports: bool
    tells_progress: bool = False
    grammar: Grammar | None = None
    ignored: str = ""
    reply_id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def headers(self) -> dict[str, str]:
        """Return what the answer says besides its body."""
        return {IGNORED_FIELDS: self.ignored} if self.ignored else {}


def submit(service: Service, asked: Asked) -> list[Generation]:
    """Queue every choice of every prompt, or none; raises as `Service.submit` does."""
    generations: list[Generation] = []
    try:
        for prompt in asked.prompts:
            generations += service.submit(prompt, asked.requests, asked.grammar)
    except BaseException:
        cancel(generations)
        raise
    return generations


def cancel(generations: Sequence[Generation]) -> None:
    """End what still runs of them."""
    for generation in generations:
        generation.cancel()


async def respond(request: HttpRequest, serving: Serving, asked: Asked) -> Response:
    """Return the reply, or a stream of it. Raises what makes it impossible before it begins."""
    generations = submit(serving.service, asked)
    if asked.streams:
        return EventStream(serving, asked, generations)
    try:
        waits = asyncio.gather(*(generation.wait() for generation in generations))
        replies = await while_connected(request, waits)
    finally:
        cancel(generations)
    check_ended(replies)
    note(request.scope, **counts(usage(replies, asked)))
    # log-probabilities of many choices take a while to write; others are answered meanwhile
    return await asyncio.to_thread(whole_response, serving, asked, replies)


def whole_response(serving: Serving, asked: Asked, replies: Sequence[Reply]) -> Response:
    """Return all of a reply at once."""
    parts = zip(asked.choices, replies, strict=True)
    document = head(serving, asked, asked.kind)
    document["choices"] = [choice.whole(reply) for choice, reply in parts]
    document["usage"] = usage(replies, asked)
    if asked.reports:
        document["speculation"] = speculation(serving.engine.facts, replies)
    return json_response(document, headers=asked.headers)


async def while_connected(request: HttpRequest, result: Awaitable[T]) -> T:
    """Return the result; ApiError if the client hangs up before it is there."""
    made = asyncio.ensure_future(result)
    gone = asyncio.ensure_future(_hang_up(request))
    try:
        await asyncio.wait((made, gone), return_when=asyncio.FIRST_COMPLETED)
        if not made.done():
            # nobody reads it; the log shows it
            raise ApiError(499, "the client has gone", code=_GONE)
        return made.result()
    finally:
        for task in (made, gone):
            task.cancel()
        # their ends are taken note of, or asyncio reports them as lost
        await asyncio.gather(made, gone, return_exceptions=True)


async def _hang_up(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def check_ended(replies: Sequence[Reply]) -> None:
    """Raise ApiError if a reply was cut off from our side."""
    if any(reply.finish_reason not in ("stop", "length") for reply in replies):
        raise ApiError(503, "the reply was cut off by the server", code="cancelled")


def head(serving: Serving, asked: Asked, kind: str) -> Document:
    """Return the fields every document of a reply begins with."""
    prefix = "chatcmpl" if asked.kind == "chat.completion" else "cmpl"
    return {
        "id": f"{prefix}-{asked.reply_id}",
        "object": kind,
        "created": asked.created,
        "model": serving.model_name,
        "system_fingerprint": serving.fingerprint,
    }


def usage(replies: Sequence[Reply], asked: Asked) -> Document:
    """Return the tokens of a request: each prompt once, all replies, the ends of replies too."""
    num_choices = len(asked.requests)
    firsts = range(0, len(replies), num_choices)
    prompt = sum(replies[index].usage.prompt_tokens for index in firsts)
    completion = sum(reply.usage.completion_tokens for reply in replies)
    # choices of one prompt read it once; the first to do so had the least to take over
    cached = sum(
        min(reply.usage.cached_tokens for reply in replies[index : index + num_choices])
        for index in firsts
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            name: sum(getattr(reply.usage, name) for reply in replies)
            for name in ("accepted_prediction_tokens", "rejected_prediction_tokens")
        },
    }


def counts(document: Document) -> dict[str, Any]:
    """Return the figures of a usage document for the access log."""
    names = ("prompt_tokens", "completion_tokens")
    return {name: document[name] for name in names}


def speculation(facts: Facts, replies: Sequence[Reply]) -> Document:
    """Return the figures of replies, of several as if they were one."""
    stats = [reply.stats for reply in replies]
    if len(stats) == 1:
        return stats[0].to_dict()
    records = [record for reply in replies for record in reply.records]
    first = stats[0].speculation
    return reply_stats(
        records,
        prefill_seconds=sum(one.prefill_seconds for one in stats),
        draft_prefill_seconds=sum(one.draft_prefill_seconds for one in stats),
        speculation=first | round_counts(records),
        prompt_tokens=sum(reply.usage.prompt_tokens for reply in replies),
        target=facts.target_size,
        draft=facts.draft_size,
    ).to_dict()


class EventStream(StreamingResponse):
    """A reply as server-sent events. However it ends, what still runs is cancelled."""

    def __init__(self, serving: Serving, asked: Asked, generations: Sequence[Generation]) -> None:
        self._serving = serving
        self._asked = asked
        self._generations = generations
        self._facts: dict[str, Any] = {}
        self._sent_at = time.monotonic()
        super().__init__(
            self._events(),
            media_type="text/event-stream",
            headers={
                # proxies that compress or buffer would hold events back
                "Cache-Control": "no-cache, no-transform",
                "X-Accel-Buffering": "no",
                **asked.headers,
            },
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the reply has ended or the client is gone."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            cancel(self._generations)
            note(scope, **(self._facts or {"error": _GONE}))

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield the events; a failure is the last one, and nothing says that the reply is done."""
        try:
            async for document in self._documents():
                yield _PING if document is None else event(document)
                self._sent_at = time.monotonic()
        except Exception as error:
            self._facts["error"] = api_error(error).code
            yield event(api_error(error).document)
        else:
            yield _DONE

    async def _documents(self) -> AsyncIterator[Document | None]:
        """Yield the parts of the stream, and None where it has been silent for long."""
        for choice in self._asked.choices:
            if (part := choice.opening()) is not None:
                yield self._chunk([part])
        replies: dict[int, Reply] = {}
        async for one in merged(self._generations, self._seconds_to_ping):
            if one is None:
                yield None
                continue
            index, news = one
            if isinstance(news, Reply):
                check_ended([news])
                replies[index] = news
            for document in self._parts(index, news):
                yield document
        figures = usage([replies[index] for index in range(len(replies))], self._asked)
        self._facts |= counts(figures)
        if self._asked.includes_usage:
            yield self._chunk([], usage=figures)

    def _seconds_to_ping(self) -> float:
        """Return how long the stream may still be silent."""
        silence = self._serving.options.ping_seconds or math.inf
        return self._sent_at + silence - time.monotonic()

    def _parts(self, index: int, news: News) -> Iterator[Document]:
        """Yield what news of a choice add to the stream."""
        choice = self._asked.choices[index]
        if isinstance(news, Piece):
            for part in choice.add(news):
                yield self._chunk([part])
        elif isinstance(news, PromptProgress):
            if self._asked.tells_progress:
                yield self._chunk([choice.unchanged()], prompt_progress=progress(news))
        else:
            *parts, last = choice.end(news)
            for part in parts:
                yield self._chunk([part])
            facts = self._serving.engine.facts
            report = {"speculation": speculation(facts, [news])} if self._asked.reports else {}
            yield self._chunk([last], **report)

    def _chunk(self, choices: list[Document], **more: Document) -> Document:
        kind = self._asked.kind + ("" if self._asked.kind == "text_completion" else ".chunk")
        document = head(self._serving, self._asked, kind)
        document["choices"] = choices
        if self._asked.includes_usage:
            document["usage"] = None
        return document | more


def progress(news: PromptProgress) -> Document:
    """Return how far a prompt is read, in the names that llama.cpp's server has for it."""
    return {
        "total": news.num_tokens,
        "cache": news.num_cached_tokens,
        "processed": news.num_read_tokens,
        "time_ms": round(1000 * news.seconds),
    }


def event(document: Document) -> bytes:
    """Return a document as one event, all of it ASCII."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


async def merged(
    generations: Sequence[Generation], seconds_to_ping: Callable[[], float]
) -> AsyncIterator[tuple[int, News] | None]:
    """Yield the news of all as they come, and the reply of each at its end; None where there is no
    news until a ping is due. Raises the first failure."""
    news: asyncio.Queue[tuple[int, News | Exception]] = asyncio.Queue()

    async def read(index: int, generation: Generation) -> None:
        try:
            async for one in generation.with_progress():
                news.put_nowait((index, one))
            news.put_nowait((index, generation.reply))
        except Exception as error:
            news.put_nowait((index, error))

    tasks = [asyncio.create_task(read(*pair)) for pair in enumerate(generations)]
    try:
        num_left = len(tasks)
        while num_left:
            try:
                async with asyncio.timeout(max(0.0, seconds_to_ping())):
                    index, one = await news.get()
            except TimeoutError:
                yield None
                continue
            if isinstance(one, Exception):
                raise one
            num_left -= isinstance(one, Reply)
            yield index, one
            # where much has piled up, others have their turn, and a hang-up is seen, in between
            await asyncio.sleep(0)
    finally:
        for task in tasks:
            task.cancel()
