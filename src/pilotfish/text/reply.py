"""From token ids to the text a reader sees: whole characters only, and nothing of a stop string.

All classes here are fed one token at a time, in the order the engine commits them, so the result
cannot depend on how many tokens a round committed at once.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from pilotfish.errors import ConfigError
from pilotfish.text.stops import StopFinder, named_control_tokens
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


class ReplyText:
    """The text of one reply, built from its tokens; it never sees the prompt.

    A control token leaves no text, and ends the reply where a stop string names it. `min_tokens`
    is how many tokens the reply has at least: a stop string completed by an earlier token is
    ordinary text. `shown_tokens` are texts of control tokens that do leave text: whoever reads the
    reply looks for them. `is_complete` is a further rule: it is given the text as each token adds
    to it, and says whether that is all.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: str | Sequence[str] = (),
        min_tokens: int = 0,
        shown_tokens: Sequence[str] = (),
        is_complete: Callable[[str], bool] = lambda text: False,
    ) -> None:
        if min_tokens < 0:
            raise ConfigError(f"min_tokens must be 0 or more, got {min_tokens!r}")
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        shown = named_control_tokens(shown_tokens, tokenizer) if shown_tokens else {}
        self._shown = {token_id: text.encode() for token_id, text in shown.items()}
        self._named = named_control_tokens(stop, tokenizer) if stop else {}
        for token_id in self._shown:
            self._named.pop(token_id, None)  # in the text a stop string finds it, too
        self._finder = StopFinder(stop, self._named.values())
        self._min_tokens = min_tokens
        self._is_complete = is_complete
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
        """Add one committed token; return True when it completes a stop string, or the reply.

        That token is then the last of the reply: it counts, though its text may not show.
        """
        self._num_tokens += 1
        may_stop = self._num_tokens >= self._min_tokens
        if (name := self._named.get(token_id)) is not None:
            shown = self._finder.feed_control(name, may_stop=may_stop)
        else:
            data = self._shown.get(token_id) or self._tokenizer.token_bytes(token_id)
            piece = self._detokenizer.feed(data)
            shown = self._finder.feed(piece, may_stop=may_stop)
        self._ready.append(shown)
        is_complete = self._is_complete(shown)
        return self._finder.found is not None or (is_complete and may_stop)

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
