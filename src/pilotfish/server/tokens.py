"""Tokens as the API shows them: their text, bytes, log-probabilities and origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.text import Detokenizer, TokenTexts
from pilotfish.types import EmittedToken, TokenLogprobs

# JSON has no minus infinity; so unlikely a token is never chosen
_NEVER = -9999.0


def chat_logprobs(tokens: Sequence[EmittedToken], texts: TokenTexts) -> dict[str, Any]:
    """Return the log-probabilities of tokens in the form of chats."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        text, data = texts.of(token_id)
        return {"token": text, "logprob": _finite(logprob), "bytes": list(data)}

    content = []
    for token in tokens:
        assert token.logprobs is not None
        top = [entry(*pair) for pair in token.logprobs.top]
        content.append({**entry(token.token_id, token.logprobs.logprob), "top_logprobs": top})
    return {"content": content, "refusal": None}


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as its completion repeats it: as it was sent, or what its token ids stand for,
    control tokens by their names."""

    text: str
    token_ids: Sequence[int]

    @classmethod
    def of(cls, prompt: str | Sequence[int], ids: Sequence[int], texts: TokenTexts) -> Echo:
        """Return the echo of a prompt, which was read as `ids`."""
        if isinstance(prompt, str):
            return cls(prompt, ids)
        parts = (data or text.encode() for text, data in map(texts.of, ids))
        return cls(b"".join(parts).decode("utf-8", "replace"), ids)


class CompletionLogprobs:
    """Log-probabilities in the form of completions; `text_offset` counts characters of the text
    that the prompt, where it is repeated, and the reply's tokens make. The reply's own text ends
    before where a stop string was found."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._detokenizer = Detokenizer()
        self._offset = 0

    def add_prompt(self, echo: Echo, logprobs: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Return the figures of a prompt; its first token follows nothing and has none."""
        result = _no_figures()
        for token_id, entry in zip(echo.token_ids, (None, *logprobs), strict=True):
            self._tell(result, token_id, entry)
            text, data = self._texts.of(token_id)
            piece = self._detokenizer.feed(data) if data else text
            # a token may begin with a blank that the text has not, and one before all of it no text
            fits = (one for one in (piece, piece.removeprefix(" ")) if self._follows(echo, one))
            self._offset += len(next(fits, ""))
        self._detokenizer, self._offset = Detokenizer(), len(echo.text)
        return result

    def add(self, tokens: Sequence[EmittedToken]) -> dict[str, Any]:
        """Return the figures of the next tokens."""
        result = _no_figures()
        for token in tokens:
            assert token.logprobs is not None
            self._tell(result, token.token_id, token.logprobs)
            self._offset += len(self._detokenizer.feed(self._texts.of(token.token_id)[1]))
        return result

    def _tell(self, result: dict[str, Any], token_id: int, entry: TokenLogprobs | None) -> None:
        top: dict[str, float] = {}
        for one, logprob in entry.top if entry else ():
            # a letter and the byte it is have one name; the likelier comes first
            top.setdefault(self._name(one), _finite(logprob))
        result["tokens"].append(self._name(token_id))
        result["token_logprobs"].append(_finite(entry.logprob) if entry else None)
        result["top_logprobs"].append(top if entry else None)
        result["text_offset"].append(self._offset)

    def _follows(self, echo: Echo, piece: str) -> bool:
        return echo.text.startswith(piece, self._offset)

    def _name(self, token_id: int) -> str:
        """Return the text of a token; parts of characters by their bytes, so that no two of them
        share a name."""
        text, data = self._texts.of(token_id)
        try:
            data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        return text


class TokenReport:
    """Ids, texts and origins of tokens. The text of a token is what its bytes complete."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._detokenizer = Detokenizer()

    def add(self, tokens: Sequence[EmittedToken]) -> list[dict[str, Any]]:
        """Return an entry for each of the next tokens."""
        return [
            {
                "id": token.token_id,
                "text": self._detokenizer.feed(self._texts.of(token.token_id)[1]),
                "origin": token.origin,
            }
            for token in tokens
        ]


def _no_figures() -> dict[str, Any]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER
