"""The API over a model that says what it is told, in a thread of its own or called directly."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
from fastapi import FastAPI

from pilotfish.backends.scripted import ScriptedTokenizer, random_logits
from pilotfish.generation import TextEngine
from pilotfish.server.answers import ChatAnswer, CompletionAnswer
from pilotfish.server.app import create_app
from pilotfish.server.connections import Connections
from pilotfish.server.metrics import ServerMetrics
from pilotfish.server.options import ServerOptions
from pilotfish.server.running import Server, address_of, take_port
from pilotfish.server.service import Service, ServiceLimits
from pilotfish.types import FloatArray
from support.drafters import FunctionDrafter, oracle
from support.text_engines import END, START, text_engine

MODEL = "parrot"
VOCAB = 258
# calls in the form of a widely used template; what else it writes is of no matter here
TEMPLATE = (
    "{% for tool in tools or [] %}<|start|>tool:{{ tool | tojson }}<|end|>{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}("
    "{% for name, value in call.function.arguments.items() %}{{ name }}={{ value }}{% endfor %})"
    "</tool_call>{% endfor %}<|end|>{% endfor %}<|start|>assistant:"
)
_ANYTHING = random_logits(VOCAB, seed=5)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


def tokenizer(template: str | None = TEMPLATE) -> ScriptedTokenizer:
    """Return a tokenizer of all bytes and two control tokens."""
    pieces = [*(bytes([i]) for i in range(256)), b"<|start|>", b"<|end|>"]
    return ScriptedTokenizer(pieces, special=(START, END), end_ids=(END,), chat_template=template)


def last_message(text: list[int]) -> tuple[list[int], int]:
    """Return what the last message of a chat says, and how long the reply to it is; a "?" where the
    text does not end with a turn of the assistant."""
    begin = len(text) - text[::-1].index(START)
    position = len(text) - begin - len("assistant:")
    last = text[: max(0, begin - 2)]  # the message before, without its end
    said = last[len(last) - last[::-1].index(START) :] if START in last else []
    if position < 0 or ord(":") not in said:
        return [ord("?")], 0
    return said[said.index(ord(":")) + 1 :], position


def parrot(prefix: tuple[int, ...]) -> FloatArray:
    """Return logits that repeat the last message of a chat, or what a raw prompt says before "|".

    A message that begins with "?", and a prompt without "|", are followed by anything, without end;
    so is a reply that was biased to begin a turn of its own.
    """
    text = list(prefix)
    if START in text:
        said, position = last_message(text)
    elif ord("|") in text:
        said = text[: text.index(ord("|"))]
        position = len(text) - len(said) - 1
    else:
        said, position = [ord("?")], 0
    if said[:1] == [ord("?")]:
        row = np.asarray(_ANYTHING(prefix)).copy()
        row[[START, END]] = -20.0
        row[128:256] = -20.0
        return row.astype(np.float32)
    row = np.zeros(VOCAB, dtype=np.float32)
    row[said[position] if position < len(said) else END] = 30.0
    return row


def parrot_engine(**options: Any) -> TextEngine:
    """Return an engine of that model."""
    options.setdefault("words", tokenizer())
    return text_engine(parrot, **options)


@contextmanager
def served(
    engine: TextEngine | None = None,
    options: ServerOptions | None = None,
    **limits: Any,
) -> Iterator[FastAPI]:
    """Serve without a port: requests are to be sent with `ask`."""
    metrics = ServerMetrics()
    service = Service(engine or parrot_engine(), ServiceLimits(**limits), watcher=metrics)
    service.start()
    app = create_app(service, options or ServerOptions(model_name=MODEL), metrics_of=metrics)
    app.state.service = service
    try:
        yield app
    finally:
        asyncio.run(service.drain(0))


def ask(app: FastAPI, method: str, path: str, **request: Any) -> httpx.Response:
    """Return the answer to one request."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **request)

    return asyncio.run(send())


class LiveServer:
    """A real server on a free port of this machine, until it is closed."""

    def __init__(
        self,
        engine: TextEngine | None = None,
        options: ServerOptions | None = None,
        **limits: Any,
    ) -> None:
        self.service = Service(engine or parrot_engine(), ServiceLimits(**limits))
        options = options or ServerOptions(model_name=MODEL)
        self.app = create_app(self.service, options)
        self.socket = take_port(ServerOptions(port=0))
        self.socket.listen()
        self.url = address_of(self.socket)
        self._server = Server(self.app, options)
        self._thread = threading.Thread(target=self._run)
        self.service.start()
        # the socket listens already: who connects before the loop runs waits
        self._thread.start()

    def _run(self) -> None:
        async def run() -> None:
            await self._server.serve(sockets=[self.socket])
            await self.service.drain(0)

        asyncio.run(run())

    @property
    def connections(self) -> Connections:
        """Return the connections that are open."""
        return self._server.connections

    def close(self) -> None:
        """End the server."""
        self._server.should_exit = True
        self._thread.join()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat that says `text`, which is then the reply, too."""
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, **fields}


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """Return the documents of a stream that ended as it should."""
    *documents, last = stream_data(response.text)
    assert last == "[DONE]"
    return [json.loads(text) for text in documents]


def stream_data(text: str) -> list[str]:
    """Return the data of all events, each of which is one line and a blank one."""
    *parts, rest = text.split("\n\n")
    assert rest == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    return [part.removeprefix("data: ") for part in parts]


def message_of(documents: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """Return the message of a choice as a client puts it together from a stream."""
    message: dict[str, Any] = {"content": "", "tool_calls": []}
    for choice in choices_of(documents, index):
        delta: Mapping[str, Any] = choice["delta"]
        message["role"] = delta.get("role", message.get("role"))
        message["content"] += delta.get("content") or ""
        message["tool_calls"] += delta.get("tool_calls", [])
        message["finish_reason"] = choice["finish_reason"]
    return message


def choices_of(documents: list[dict[str, Any]], index: int = 0) -> list[dict[str, Any]]:
    """Return the parts of one choice of a stream, in order."""
    return [one for part in documents for one in part["choices"] if one["index"] == index]


def knowing(reply: Sequence[int], errs_every: int = 0) -> FunctionDrafter:
    """Return a drafter that knows the reply; wrong at every `errs_every`-th token (0: never)."""
    return oracle(reply, errs_every=errs_every, vocab_size=VOCAB)


def post(app: FastAPI, path: str, **body: Any) -> dict[str, Any]:
    """Return the reply to a request, which must have the form the API describes."""
    answer = ask(app, "POST", path, json=body)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    (ChatAnswer if path == CHAT else CompletionAnswer).model_validate(document)
    return document


def stream(app: FastAPI, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the chunks of a streamed reply."""
    answer = ask(app, "POST", path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events(answer)


def said(document: dict[str, Any], index: int = 0) -> str:
    """Return the text of a choice."""
    choice = document["choices"][index]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert isinstance(text, str)
    return text
