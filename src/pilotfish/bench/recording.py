"""Replies of a target as they are, and what a draft model would have said: material for replays."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pilotfish.errors import ConfigError

NO_DRAFT = -1
"""Stands for the draft model's token where it had nothing to say, beyond its context."""

_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTimes:
    """What one recorded reply took, in seconds.

    prompt        the target's reading of the prompt
    draft_prompt  the draft model's reading of it; 0 without one
    target        the target's passes of the reply, one token each
    decode        the whole reply, the engine's own work included
    drafting      looking for drafts in the text and deciding, in all rounds: done beside, not used

    What passes cost beside each other at that moment, in steps of the target within the reply:

    context       tokens in the cache before them
    steps         by width, wide passes of the target
    draft_steps   a pass of the draft model over one token; None without one
    """

    prompt: float
    draft_prompt: float
    target: float
    decode: float
    drafting: float = 0.0
    context: int = 0
    steps: Mapping[int, float] = field(default_factory=dict)
    draft_steps: float | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> PlainTimes:
        """Return the times `asdict` gave; ValueError, KeyError or TypeError if they are none."""
        names = ("prompt", "draft_prompt", "target", "decode", "drafting")
        seconds = {name: _number(raw[name], most=math.inf) for name in names}
        draft_steps = raw["draft_steps"]
        return cls(
            **seconds,
            context=_ids([raw["context"]])[0],
            steps={int(width): _ratio(value) for width, value in dict(raw["steps"]).items()},
            draft_steps=None if draft_steps is None else _ratio(draft_steps),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One reply of a target, and what a draft model would have said at each of its positions.

    prompt, reply        token ids
    draft                [len(reply)] the draft model's token at each position, or NO_DRAFT
    draft_probabilities  [len(reply)] the largest probability of its row; both are empty where no
                         draft model was asked
    end_ids              tokens that end a reply
    max_tokens           the limit the reply was given; None: it ended there
    times                None for a reply that no machine gave
    """

    id: str
    category: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    draft: tuple[int, ...] = ()
    draft_probabilities: tuple[float, ...] = ()
    end_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    times: PlainTimes | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.draft), len(self.draft_probabilities)}
        if not self.prompt or not self.reply or lengths not in ({0}, {len(self.reply)}):
            raise ConfigError(
                f"recording {self.id}: prompt and reply must not be empty, and the draft must have "
                "an entry for each token of the reply, or none"
            )
        if not set(self.reply[:-1]).isdisjoint(self.end_ids) or len(self.reply) > self.limit:
            raise ConfigError(f"recording {self.id}: the reply goes on beyond its end")

    @property
    def limit(self) -> int:
        """Return how many tokens the reply could have had: only an end token tells that it was not
        stopped by the limit."""
        ended = self.reply[-1] in self.end_ids
        return self.max_tokens if ended and self.max_tokens is not None else len(self.reply)

    def to_dict(self) -> dict[str, Any]:
        """Return the recording as plain JSON values."""
        return asdict(self) | {
            "draft_probabilities": [round(value, 4) for value in self.draft_probabilities],
        }

    @classmethod
    def from_dict(cls, raw: object) -> Recording:
        """Return the recording `to_dict` gave; ConfigError if it is none."""
        try:
            if not isinstance(raw, Mapping):
                raise TypeError("not an object")
            limit, times = raw["max_tokens"], raw["times"]
            return cls(
                id=str(raw["id"]),
                category=str(raw["category"]),
                prompt=_ids(raw["prompt"]),
                reply=_ids(raw["reply"]),
                draft=_ids(raw["draft"], least=NO_DRAFT),
                draft_probabilities=tuple(_number(v) for v in raw["draft_probabilities"]),
                end_ids=_ids(raw["end_ids"]),
                max_tokens=None if limit is None else _ids([limit])[0],
                times=None if times is None else PlainTimes.from_dict(times),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a recording: {error!r:.80}") from error


def _ids(raw: object, *, least: int = 0) -> tuple[int, ...]:
    if not isinstance(raw, Sequence) or any(type(one) is not int or one < least for one in raw):
        raise ValueError("not whole numbers")
    return tuple(raw)


def _number(raw: object, *, most: float = 1.0) -> float:
    value = float(raw) if type(raw) in (int, float) else math.nan  # type: ignore[arg-type]
    if not (0 <= value <= most and value < math.inf):
        raise ValueError("a number is out of range")
    return value


def _ratio(raw: object) -> float:
    value = _number(raw, most=math.inf)
    if not value:
        raise ValueError("a pass takes time")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What was recorded.

    about     which models gave the replies, and how
    errors    why a prompt was skipped, by its id
    num_left  prompts that were not asked, as the time was spent
    """

    recordings: tuple[Recording, ...]
    about: Mapping[str, Any]
    errors: Mapping[str, str]
    num_left: int = 0

    @property
    def has_drafts(self) -> bool:
        """Return whether a draft model was asked for every reply."""
        return all(recording.draft for recording in self.recordings)


def save_recordings(path: Path, recorded: Recorded) -> None:
    """Write recordings: a line about them, then one JSON object a line."""
    about = {"pilotfish_recordings": _FORMAT, **recorded.about}
    lines = [about, *(recording.to_dict() for recording in recorded.recordings)]
    text = "\n".join(json.dumps(line, ensure_ascii=False, allow_nan=False) for line in lines)
    path.write_text(text + "\n", encoding="utf-8")


def load_recordings(path: Path) -> Recorded:
    """Read what `save_recordings` wrote; ConfigError names the file and the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cannot read the recordings {path.name}: {reason}") from error
    hint = "recordings are written by pilotfish advise --record FILE"
    parsed: list[Any] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = json.loads(line)
            parsed.append(value if number == 1 else Recording.from_dict(value))
        except (ValueError, RecursionError, ConfigError) as error:
            raise ConfigError(f"{path.name}, line {number}: {error}", hint=hint) from error
    about = parsed[0] if parsed else None
    if not isinstance(about, dict) or about.pop("pilotfish_recordings", None) != _FORMAT:
        raise ConfigError(f"{path.name} holds no recordings", hint=hint)
    if len(parsed) == 1:
        raise ConfigError(f"{path.name} holds no reply", hint=hint)
    return Recorded(recordings=tuple(parsed[1:]), about=about, errors={})
