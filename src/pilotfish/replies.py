"""What a reply is made of: pieces of text, usage, figures, and what was loaded for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pilotfish.accounting.costs import ModelSize
from pilotfish.accounting.metrics import ReplyStats
from pilotfish.text import TokenTexts
from pilotfish.types import EmittedToken, RoundRecord, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request; the end token of a reply counts, as it was generated.

    `cached_tokens` of the prompt had been read before, for another request. Of the drafts made from
    the request's prediction, those that are part of the reply are accepted, the others rejected.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Return the sum of both."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Piece:
    """What one round adds to a stream: text that is safe to show, and the round's tokens.

    Text can lag behind the tokens: half a character or the beginning of a stop string is held. The
    first piece has the log-probabilities of the prompt, where they are asked for.
    """

    text: str
    tokens: tuple[EmittedToken, ...]
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token with its log-probability, its text and its bytes. A control token has no bytes, and
    its name for a text; a part of a character is shown as U+FFFD."""

    token_id: int
    text: str
    data: bytes
    logprob: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; the bytes are a list of numbers."""
        return {
            "token_id": self.token_id,
            "text": self.text,
            "bytes": list(self.data),
            "logprob": self.logprob,
        }


@dataclass(frozen=True, slots=True)
class NamedLogprobs(NamedToken):
    """A token of a reply or a prompt, and the likeliest ones in its place."""

    top: tuple[NamedToken, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**NamedToken.to_dict(self), "top": [one.to_dict() for one in self.top]}


@dataclass(frozen=True, slots=True)
class Reply:
    """A finished reply."""

    text: str
    tokens: tuple[EmittedToken, ...]
    finish_reason: str
    seed: int
    usage: Usage
    stats: ReplyStats
    exactness: Mapping[str, Any]
    models: Mapping[str, Any]
    records: tuple[RoundRecord, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    token_texts: TokenTexts | None = field(default=None, repr=False, compare=False)

    @property
    def logprobs(self) -> tuple[NamedLogprobs, ...]:
        """Return the log-probabilities of the reply's tokens with their texts; empty where none
        were asked for. Those of the prompt come by `named`."""
        return self.named([one.logprobs for one in self.tokens if one.logprobs is not None])

    def named(self, logprobs: Iterable[TokenLogprobs]) -> tuple[NamedLogprobs, ...]:
        """Return log-probabilities of this reply's model with the texts of their tokens."""
        assert self.token_texts is not None, "replies of an engine know their tokens"
        return tuple(_named(one, self.token_texts) for one in logprobs)

    @property
    def token_ids(self) -> list[int]:
        """Return the ids of the reply, the end token included."""
        return [token.token_id for token in self.tokens]

    def to_dict(self) -> dict[str, Any]:
        """Return the reply as plain JSON values, as `pilotfish generate --json` prints it."""
        usage = self.usage
        result: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.total_tokens,
                "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
                "completion_tokens_details": {
                    "accepted_prediction_tokens": usage.accepted_prediction_tokens,
                    "rejected_prediction_tokens": usage.rejected_prediction_tokens,
                },
            },
            "stats": self.stats.to_dict(),
            "exactness": dict(self.exactness),
            "models": dict(self.models),
        }
        if logprobs := self.logprobs:
            result["logprobs"] = [one.to_dict() for one in logprobs]
        if self.prompt_logprobs:
            result["prompt_logprobs"] = [one.to_dict() for one in self.named(self.prompt_logprobs)]
        return result


def _named(entry: TokenLogprobs, texts: TokenTexts) -> NamedLogprobs:
    top = tuple(NamedToken(one, *texts.of(one), logprob) for one, logprob in entry.top)
    return NamedLogprobs(entry.token_id, *texts.of(entry.token_id), entry.logprob, top)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the loaded parts say of themselves, for replies.

    `drafters` names who can draft; None where that is not known, as with parts of one's own. `lost`
    is what was to take part in drafting and does not.
    """

    exactness: Mapping[str, Any] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    target_size: ModelSize | None = None
    draft_size: ModelSize | None = None
    speculation_on: bool = False
    speculation_reason: str = ""
    drafters: tuple[str, ...] | None = None
    lost: str = ""

    @property
    def speculation(self) -> dict[str, Any]:
        """Return whether drafts are made, why or why not, and by whom, as plain JSON values."""
        drafters = None if self.drafters is None else list(self.drafters)
        reason = "; ".join(filter(None, [self.speculation_reason, self.lost]))
        return {"on": self.speculation_on, "reason": reason, "drafters": drafters}
