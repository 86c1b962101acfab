"""Tokens as the API shows them: their text, bytes, log-probabilities and origin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pilotfish.text import Detokenizer, TokenTexts
from pilotfish.types import EmittedToken

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


class CompletionLogprobs:
    """Log-probabilities in the form of completions; `text_offset` counts characters of the text
    that the reply's tokens make, which its own text ends before where a stop string was found."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._detokenizer = Detokenizer()
        self._offset = 0

    def add(self, tokens: Sequence[EmittedToken]) -> dict[str, Any]:
        """Return the figures of the next tokens."""
        result: dict[str, Any] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []
        }  # fmt: skip
        for token in tokens:
            assert token.logprobs is not None
            result["tokens"].append(self._name(token.token_id))
            result["token_logprobs"].append(_finite(token.logprobs.logprob))
            top: dict[str, float] = {}
            for one, logprob in token.logprobs.top:
                # a letter and the byte it is have one name; the likelier comes first
                top.setdefault(self._name(one), _finite(logprob))
            result["top_logprobs"].append(top)
            result["text_offset"].append(self._offset)
            self._offset += len(self._detokenizer.feed(self._texts.of(token.token_id)[1]))
        return result

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


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _NEVER
