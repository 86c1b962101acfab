"""From token ids to the text a reader sees: whole characters only, and nothing of a stop string.

All classes here are fed one token at a time, in the order the engine commits them, so the result
cannot depend on how many tokens a round committed at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from pilotfish.errors import ConfigError
from pilotfish.text.tokenizer import Tokenizer


class Detokenizer:
    """Join bytes to characters and give out only whole ones.

    Bytes that are no UTF-8 are dropped rather than shown as U+FFFD: a reader can do nothing with
    the mark, and a client could not tell it from one that the model really wrote. That one,
    properly encoded, passes.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")

    def feed(self, data: bytes) -> str:
        """Return the characters that `data` completes; keep the bytes of an unfinished one."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what is left at the end: always empty, an unfinished character is dropped."""
        return self._decoder.decode(b"", final=True)


def _checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    if not all(isinstance(text, str) for text in stops):
        raise ConfigError("stop must be a string or a list of strings")
    if "" in stops:
        raise ConfigError("stop must not contain an empty string")
    return stops


class StopFinder:
    """Find the first stop string in text that arrives piece by piece.

    A stop counts with the first piece that completes an occurrence of any stop string; the text
    then ends where the earliest of the occurrences completed by that piece starts. A piece is what
    one token adds. So of the stops "ab" and "abc" the shorter one wins when its last character
    comes first, and "bcd" wins over "c" when one token brings both.
    """

    def __init__(self, stop: str | Sequence[str] = ()) -> None:
        self._stops = _checked_stops(stop)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._found: str | None = None

    @property
    def found(self) -> str | None:
        """Return the stop string that ended the text, or None while there is none."""
        return self._found

    def feed(self, piece: str, *, may_stop: bool = True) -> str:
        """Return the text that is now safe to show; look at `found` afterwards.

        Text that could be the beginning of a stop string is held back. With `may_stop` False a
        stop completed by this piece is ordinary text for good.
        """
        assert self._found is None, "no text follows a stop string"
        text = self._held + piece
        if may_stop and (occurrences := self._completed(text, len(self._held))):
            start, _, self._found = min(occurrences)
            self._held = ""
            return text[:start]
        num_safe = len(text) - self._num_open(text)
        self._held = text[num_safe:]
        return text[:num_safe]

    def finish(self) -> str:
        """Return the text held back, once: nothing more will complete it."""
        held, self._held = self._held, ""
        return held

    def _completed(self, text: str, num_old: int) -> list[tuple[int, int, str]]:
        """Return (start, length, stop) of the occurrences that end after `num_old` characters."""
        occurrences = []
        for stop in self._stops:
            start = text.find(stop, max(0, num_old - len(stop) + 1))
            if start >= 0:
                occurrences.append((start, len(stop), stop))
        return occurrences

    def _num_open(self, text: str) -> int:
        """Return the length of the longest end of `text` that an unfinished stop begins with."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0


class ReplyText:
    """The text of one reply, built from its tokens; it never sees the prompt.

    `min_tokens` is how many tokens the reply has at least: a stop string completed by an earlier
    token is ordinary text.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, stop: str | Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        if min_tokens < 0:
            raise ConfigError(f"min_tokens must be 0 or more, got {min_tokens!r}")
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        self._finder = StopFinder(stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._taken: list[str] = []
        self._ready: list[str] = []

    @property
    def text(self) -> str:
        """Return all text released so far, taken or not; the whole reply after `finish`."""
        return "".join(self._taken + self._ready)

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the reply, or None."""
        return self._finder.found

    @property
    def num_tokens(self) -> int:
        """Return how many tokens were fed."""
        return self._num_tokens

    def feed(self, token_id: int) -> bool:
        """Add one committed token; return True when it completes a stop string.

        That token is then the last of the reply: it counts, though its text may not show.
        """
        self._num_tokens += 1
        piece = self._detokenizer.feed(self._tokenizer.token_bytes(token_id))
        may_stop = self._num_tokens >= self._min_tokens
        self._ready.append(self._finder.feed(piece, may_stop=may_stop))
        return self._finder.found is not None

    def take(self) -> str:
        """Return the text released since the last call."""
        new = "".join(self._ready)
        self._ready.clear()
        if new:
            self._taken.append(new)
        return new

    def finish(self) -> str:
        """Return the rest of the text when the reply has ended; empty when called again."""
        self._ready.append(self._detokenizer.finish() + self._finder.finish())
        return self.take()
