"""Text to token ids and back, by the vocabulary in the header of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

from pilotfish.backends.gguf_tokenizer.byte_pairs import byte_pair_bytes, byte_pair_encoder
from pilotfish.backends.gguf_tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from pilotfish.backends.gguf_tokenizer.roles import fill_ids, named_id
from pilotfish.backends.gguf_tokenizer.score_merges import score_bytes, score_encoder
from pilotfish.backends.gguf_tokenizer.vocabulary import KEY, read_vocabulary, utf8
from pilotfish.errors import BackendError, ModelError, PromptError
from pilotfish.gguf import GgufHeader
from pilotfish.gguf.cursor import shown

_SCORES = "llama"
# the expressions that cut a text give up, and end the call badly, after ten million steps back
_MAX_CHARACTERS = 2_000_000
_NO_CUTS = PreTokenizer((), add_bos=True)


def tokenizer_kind(header: GgufHeader) -> str:
    """Return a file's kind of tokenizer and its pre-tokenizer, e.g. "gpt2/qwen2"."""
    parts = [header.text(KEY + name) for name in ("model", "pre")]
    return "/".join(part for part in parts if part)


def check_tokenizer_kind(header: GgufHeader) -> None:
    """Raise ModelError, naming the kind, if `GgufTokenizer` cannot do what llama.cpp does."""
    _known_cuts(header)


def _known_cuts(header: GgufHeader) -> PreTokenizer:
    """Return how the file's texts are cut; ModelError when that is not known."""
    model, pre = header.text(KEY + "model"), header.text(KEY + "pre") or "default"
    # the control tokens of these swallow the blanks after them
    swallows = any(name in header.text("general.name").lower() for name in ("phi-3", "phi3"))
    if model == _SCORES and not swallows:
        return _NO_CUTS
    if model == "gpt2" and pre in PRE_TOKENIZERS and not swallows:
        return PRE_TOKENIZERS[pre]
    kind = tokenizer_kind(header) or "absent"
    raise ModelError(
        f"{shown(str(header.path))} has a tokenizer that only llama.cpp knows ({shown(kind)})",
        hint="run it with --backend llama",
    )


class GgufTokens:
    """The tokens of one file, without a way from text to them, which takes longer to make.

    Raises ModelFileError for a damaged vocabulary. Any number of threads may use it.
    """

    def __init__(self, header: GgufHeader) -> None:
        vocabulary = read_vocabulary(header)
        self._header, self._vocabulary = header, vocabulary
        self._roles = vocabulary.roles
        self._size = vocabulary.num_real()

    @property
    def vocab_size(self) -> int:
        """Return the number of real tokens."""
        return self._size

    @property
    def kind(self) -> str:
        """Return the tokenizer's kind and its pre-tokenizer, e.g. "gpt2/qwen2"."""
        return tokenizer_kind(self._header)

    @cached_property
    def bos_id(self) -> int | None:
        """Return the id that begins a text, or None when the file has none."""
        return self._named("bos")

    @cached_property
    def eos_id(self) -> int | None:
        """Return the id that ends a text, or None when the file has none."""
        return self._named("eos")

    @property
    def bos_text(self) -> str:
        """Return the text of the beginning-of-text token, or an empty string."""
        return "" if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_text(self) -> str:
        """Return the text of the end-of-text token, or an empty string."""
        return "" if self.eos_id is None else self.token_text(self.eos_id)

    @cached_property
    def fill_ids(self) -> tuple[int, int, int] | None:
        """Return the ids that mark, in a text with a gap, what comes before the gap, what comes
        after it, and what fills it; None for a model that has not all of them."""
        found = fill_ids(self._header, self._vocabulary.ids)
        return found if found is not None and max(found) < self._size else None

    @property
    def chat_template(self) -> str | None:
        """Return the file's chat template, or None."""
        template = self._header.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Return every id after which a reply ends (end of text, end of turn, ...)."""
        return frozenset(token_id for token_id in self._roles.end if token_id < self._size)

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Return the texts that `parse_special` turns into control tokens, longest first."""
        special = self._roles.control | self._roles.unknown
        texts = {self.token_text(token_id) for token_id in special if token_id < self._size}
        return tuple(sorted(texts, key=lambda text: (-len(text), text)))

    def token_text(self, token_id: int) -> str:
        """Return the token as the file writes it: for messages, not for output."""
        return utf8(self._checked_text(token_id)).decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        """Return whether the token steers the model and stands for no text."""
        self._checked_text(token_id)
        return token_id in self._roles.control

    def all_token_texts(self) -> list[str]:
        """Return every real token as the file writes it, by id: two models compare with `==`."""
        # broken UTF-8 keeps its bytes in view, so that different tokens stay different
        return [
            utf8(text).decode("utf-8", "backslashreplace")
            for text in self._vocabulary.texts[: self._size]
        ]

    def _named(self, name: str) -> int | None:
        token_id = named_id(self._header, name, len(self._vocabulary.texts))
        return token_id if token_id is not None and token_id < self._size else None

    def _checked_text(self, token_id: int) -> str:
        if not 0 <= token_id < self._size:
            raise BackendError(f"token id {token_id} is outside the vocabulary of {self._size}")
        return self._vocabulary.texts[token_id]


class GgufTokenizer(GgufTokens):
    """The tokenizer of one file: the same ids that llama.cpp gives, with nothing loaded but these.

    Raises ModelError for a kind of tokenizer it does not know, ModelFileError for a damaged
    vocabulary. Any number of threads may use it.
    """

    def __init__(self, header: GgufHeader) -> None:
        cuts = _known_cuts(header)
        super().__init__(header)
        self._add_bos = _flag(header, "add_bos_token", default=cuts.add_bos)
        self._encode: Callable[[str], list[int]]
        self._bytes_of: Callable[[str], bytes]
        if header.text(KEY + "model") == _SCORES:
            self._encode, self._bytes_of = score_encoder(header, self._vocabulary), score_bytes
            self._blank_first = _flag(header, "add_space_prefix", default=True)
        else:
            self._encode = byte_pair_encoder(header, self._vocabulary, cuts)
            self._bytes_of = byte_pair_bytes
            self._blank_first = False

    @property
    def add_bos(self) -> bool:
        """Return whether the file asks for the beginning-of-text id before a prompt."""
        return self._add_bos

    def encode(self, text: str, *, parse_special: bool) -> list[int]:
        """Return the ids of `text`, nothing added before or after.

        With `parse_special` the texts of control tokens become those tokens; without it they are
        ordinary text. Raises BackendError when the tokenizer cannot represent the text, PromptError
        for one of more than two million characters.
        """
        if len(text) > _MAX_CHARACTERS:
            raise PromptError(
                f"a text of {len(text):,} characters is too long to be cut into tokens",
                hint=f"{_MAX_CHARACTERS:,} are possible",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BackendError(f"the text has a lone surrogate at {error.start}") from error
        ids: list[int] = []
        # a text that follows no other text begins with a blank, where the file asks for one
        blank = self._blank_first
        for part in self._parts(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
                blank = self._blank_first
            else:
                ids += self._encode(" " + part if blank else part)
                blank = False
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for; control tokens stand for none."""
        text, roles = self._checked_text(token_id), self._roles
        if token_id in roles.control or token_id in roles.unknown:
            return b""
        if token_id in roles.user_defined:
            return utf8(text)
        if token_id in roles.unused or token_id in roles.other:
            return b""
        if token_id in roles.byte:
            return bytes.fromhex(text[3:5])
        return self._bytes_of(text)

    @cached_property
    def _found_whole(self) -> dict[bool, list[tuple[str, int]]]:
        """Return (text, id) of the tokens that are cut out of a text, by `parse_special`."""
        vocabulary = self._vocabulary
        return {
            parse: [(vocabulary.texts[i], i) for i in vocabulary.special_ids(parse_special=parse)]
            for parse in (False, True)
        }

    def _parts(self, text: str, parse_special: bool) -> Iterator[str | int]:
        """Yield the ids of tokens found as a whole and the texts between them."""
        parts: list[str | int] = [text]
        # a longer text is looked for everywhere before a shorter one
        for special, token_id in self._found_whole[parse_special]:
            if special in text:
                parts = [
                    piece
                    for part in parts
                    for piece in (
                        [part] if isinstance(part, int) else _cut(part, special, token_id)
                    )
                ]
        return (part for part in parts if part != "")


def _cut(text: str, special: str, token_id: int) -> Iterator[str | int]:
    first, *others = text.split(special)
    yield first
    for other in others:
        yield token_id
        yield other


def _flag(header: GgufHeader, name: str, *, default: bool) -> bool:
    value = header.metadata.get(KEY + name)
    return value if isinstance(value, bool) else default
