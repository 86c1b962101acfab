"""Choices of a reply in the form of the API, whole and in parts of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from pilotfish.generation import Piece, Reply
from pilotfish.server.tokens import CompletionLogprobs, Echo, TokenReport, chat_logprobs
from pilotfish.server.tools import Call, CallReader, MoreArguments, whole_calls
from pilotfish.text import ReasoningSplitter, TokenTexts
from pilotfish.types import EmittedToken

Document = dict[str, Any]


class Choice(Protocol):
    """One choice of a reply while it is made."""

    def opening(self) -> Document | None:
        """Return what its stream begins with, if anything."""

    def unchanged(self) -> Document:
        """Return a part that adds nothing."""

    def add(self, piece: Piece) -> list[Document]:
        """Return the parts that a piece adds to its stream."""

    def end(self, reply: Reply) -> list[Document]:
        """Return the last parts of its stream; the very last says why it ended."""

    def whole(self, reply: Reply) -> Document:
        """Return all of it at once."""


class ChatChoice:
    """A choice of a chat: a message, with calls of functions where `reader` finds them, and its
    reasoning apart where there is a splitter.

    `only_calls` says that it has no text, `is_named` that the request says what is called.
    """

    def __init__(
        self,
        index: int,
        texts: TokenTexts,
        *,
        logprobs: bool,
        report: bool,
        reader: CallReader | None = None,
        only_calls: bool = False,
        is_named: bool = False,
        reasoning: ReasoningSplitter | None = None,
    ) -> None:
        self._index = index
        self._texts = texts
        self._wants_logprobs = logprobs
        self._report = TokenReport(texts) if report else None
        self._reader = reader
        self._content = None if only_calls else ""
        self._is_named = is_named
        self._reasoning = reasoning
        self._num_calls = 0

    def opening(self) -> Document:
        """Return the part that names the role."""
        return self._part({"role": "assistant", "content": self._content})

    def unchanged(self) -> Document:
        """Return a part that adds nothing."""
        return self._part({})

    def add(self, piece: Piece) -> list[Document]:
        """Return a part for the text, with the figures of its tokens, and one for each call."""
        thought, text = self._reasoning.feed(piece.text) if self._reasoning else ("", piece.text)
        parts = [self._part({"reasoning_content": thought})] if thought else []
        found = self._reader.feed(text) if self._reader else [text]
        parts += [self._part(self._delta(part)) for part in found if part]
        figures = self._figures(piece.tokens)
        if figures:
            parts = parts or [self._part({"content": self._content})]
            parts[0] |= figures
        return parts

    def end(self, reply: Reply) -> list[Document]:
        """Return what was held back, and the part that says why it ended."""
        thought, text = self._reasoning.finish() if self._reasoning else ("", "")
        parts = [self._part({"reasoning_content": thought})] if thought else []
        rest: list[str | Call | MoreArguments] = [text]
        if self._reader is not None:
            rest = [*self._reader.feed(text), *self._reader.finish()]
        parts += [self._part(self._delta(part)) for part in rest if part]
        return [*parts, {**self._part({}), "finish_reason": self._reason(reply)}]

    def whole(self, reply: Reply) -> Document:
        """Return the message and why it ended."""
        thought, text = "", reply.text
        if self._reasoning is not None:
            thought, text = self._reasoning.whole(text)
        found: list[str | Call | MoreArguments] = [text]
        if self._reader is not None:
            found = [*self._reader.feed(text), *self._reader.finish()]
        text = "".join(part for part in found if isinstance(part, str))
        calls = [call.to_dict() for call in whole_calls(found)]
        message: Document = {"role": "assistant", "content": text or self._content, "refusal": None}
        if calls:
            message |= {"content": text or None, "tool_calls": calls}
        if thought:
            message["reasoning_content"] = thought
        logprobs = chat_logprobs(reply.tokens, self._texts) if self._wants_logprobs else None
        return {
            "index": self._index,
            "message": message,
            "logprobs": logprobs,
            "finish_reason": self._reason(reply),
        }

    def _delta(self, part: str | Call | MoreArguments) -> Document:
        if isinstance(part, str):
            return {"content": part}
        if isinstance(part, MoreArguments):
            more = {"index": self._num_calls - 1, "function": {"arguments": part.text}}
            return {"tool_calls": [more]}
        self._num_calls += 1
        return {"tool_calls": [part.to_dict(self._num_calls - 1)]}

    def _figures(self, tokens: Sequence[EmittedToken]) -> Document:
        figures: Document = {}
        if not tokens:
            return figures
        if self._wants_logprobs:
            figures["logprobs"] = chat_logprobs(tokens, self._texts)
        if self._report is not None:
            figures["speculation"] = {"tokens": self._report.add(tokens)}
        return figures

    def _part(self, delta: Document) -> Document:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _reason(self, reply: Reply) -> str:
        has_called = self._reader is not None and self._reader.num_calls > 0
        # a call that the request names ends as text does, in OpenAI's API as well
        is_told = has_called and not self._is_named and reply.finish_reason == "stop"
        return "tool_calls" if is_told else reply.finish_reason


class CompletionChoice:
    """A choice of a completion: text, after that of the prompt where it is repeated."""

    def __init__(
        self,
        index: int,
        texts: TokenTexts,
        *,
        logprobs: bool,
        report: bool,
        echo: Echo | None = None,
    ) -> None:
        self._index = index
        self._logprobs = CompletionLogprobs(texts) if logprobs else None
        self._report = TokenReport(texts) if report else None
        self._echo = echo

    def opening(self) -> Document | None:
        """Return the prompt where it is repeated without figures, which come with its last pass."""
        if self._echo is None or self._logprobs is not None:
            return None
        return self._part(self._echo.text)

    def unchanged(self) -> Document:
        """Return a part that adds nothing."""
        return self._part("")

    def add(self, piece: Piece) -> list[Document]:
        """Return a part for the text, with the figures of its tokens."""
        parts = []
        if self._echo is not None and self._logprobs is not None:
            figures = self._logprobs.add_prompt(self._echo, piece.prompt_logprobs)
            parts = [self._part(self._echo.text, figures)]
            self._echo = None  # it comes first, and once
        part = self._part(piece.text, self._figures(piece.tokens))
        if piece.tokens and self._report is not None:
            part["speculation"] = {"tokens": self._report.add(piece.tokens)}
        is_empty = not piece.text and part["logprobs"] is None and "speculation" not in part
        return parts if is_empty else [*parts, part]

    def end(self, reply: Reply) -> list[Document]:
        """Return the part that says why it ended."""
        return [{**self._part(""), "finish_reason": reply.finish_reason}]

    def whole(self, reply: Reply) -> Document:
        """Return the text and why it ended."""
        text, before = "", None
        if self._echo is not None:
            text = self._echo.text
            if self._logprobs is not None:
                before = self._logprobs.add_prompt(self._echo, reply.prompt_logprobs)
        figures = self._figures(reply.tokens)
        if before and figures:
            figures = {name: before[name] + figures[name] for name in figures}
        part = self._part(text + reply.text, figures or before)
        return {**part, "finish_reason": reply.finish_reason}

    def _figures(self, tokens: Sequence[EmittedToken]) -> Document | None:
        return self._logprobs.add(tokens) if self._logprobs and tokens else None

    def _part(self, text: str, figures: Document | None = None) -> Document:
        return {"index": self._index, "text": text, "logprobs": figures, "finish_reason": None}
