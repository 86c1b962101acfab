# ruff: noqa: RUF001 - the characters that look like others are meant
"""What the tokens of a vocabulary are for, by their types, their ids' keys and well-known texts.

Files often leave out which tokens end a reply or steer a model, so llama.cpp also goes by the text.
These are its rules: a reply must end at the same tokens here and there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilotfish.gguf import GgufHeader

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_DEFAULT_IDS = {"gpt2": {"bos": 11, "eos": 11}, "llama": {"bos": 1, "eos": 2}}
_BYTE_TEXT = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# a token with such a text ends a reply and is a control token, whatever its type
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# keys that name a token for filling gaps in code, the older one first, which wins; the texts it has
# where the file has no key; and whether it ends a reply
_FILL_TOKENS = (
    (("prefix", "fim_pre"), (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>",
    ), False),
    (("suffix", "fim_suf"), (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>",
    ), False),
    (("middle", "fim_mid"), (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>",
    ), False),
    (("fim_pad",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"), True),
    (("fim_rep",), ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), True),
    (("fim_sep",), ("<|file_sep|>",), True),
)  # fmt: skip
# parts of one model's reply format that must show in its text
_SHOWN_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


@dataclass(frozen=True, slots=True)
class Roles:
    """Ids by what they are for; an id may be in more than one set, in none when ordinary text.

    control       steer the model and stand for no text     unknown  stands for what has no token
    user_defined  found in a text as a whole                byte     stand for one byte
    unused        padding                                   other    of no known type, without text
    end           end a reply
    """

    control: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    user_defined: set[int] = field(default_factory=set)
    unused: set[int] = field(default_factory=set)
    byte: set[int] = field(default_factory=set)
    other: set[int] = field(default_factory=set)
    end: set[int] = field(default_factory=set)

    def show(self, token_id: int) -> None:
        """Make a token one that stands for its own text."""
        for ids in (self.control, self.unknown, self.user_defined, self.unused, self.byte):
            ids.discard(token_id)
        self.other.discard(token_id)


def is_byte_text(text: str) -> bool:
    """Return whether a text is that of a byte token, such as "<0x0A>"."""
    return _BYTE_TEXT.fullmatch(text) is not None


def named_id(header: GgufHeader, name: str, num_tokens: int) -> int | None:
    """Return the id under `tokenizer.ggml.<name>_token_id`, if it is that of a token.

    Files without the key mean the default of their kind.
    """
    defaults = _DEFAULT_IDS.get(header.text("tokenizer.ggml.model"), {})
    for token_id in (
        header.integer(f"tokenizer.ggml.{name}_token_id", -1),
        defaults.get(name, -1),
    ):
        if 0 <= token_id < num_tokens:
            return token_id
    return None


def find_roles(
    header: GgufHeader,
    texts: Sequence[str],
    ids: Mapping[str, int],
    types: NDArray[Any] | None,
) -> Roles:
    """Return the roles of all tokens; `types` [tokens] are the file's, None when it has none."""
    roles = Roles() if types is None else _roles_by_type(types)
    _add_fill_tokens(header, ids, roles)
    roles.unused.update(token_id for token_id in roles.control if "unused" in texts[token_id])
    ends = {ids[text] for text in _END_TEXTS if text in ids}
    roles.control.update(ends)
    roles.end.update(ends)
    for text in _SHOWN_TEXTS:
        if text in ids:
            roles.show(ids[text])
            roles.user_defined.add(ids[text])
    for name in ("eos", "eot", "eom"):
        if (token_id := named_id(header, name, len(texts))) is not None:
            roles.end.add(token_id)
    _correct_ends({texts[token_id] for token_id in roles.end}, ids, roles)
    return roles


def _roles_by_type(types: NDArray[Any]) -> Roles:
    def of_type(number: int) -> set[int]:
        return set(np.flatnonzero(types == number).tolist())

    return Roles(
        control=of_type(_CONTROL),
        unknown=of_type(_UNKNOWN),
        user_defined=of_type(_USER_DEFINED),
        unused=of_type(_UNUSED),
        byte=of_type(_BYTE),
        other=set(np.flatnonzero((types < _NORMAL) | (types > _BYTE)).tolist()),
    )


def _add_fill_tokens(header: GgufHeader, ids: Mapping[str, int], roles: Roles) -> None:
    """Add the tokens for filling gaps: those the file names, else those with a known text."""
    for keys, texts, ends in _FILL_TOKENS:
        named = _named_fill_token(header, keys, len(ids))
        token_id = next((ids[text] for text in texts if text in ids), None)
        if named is None and token_id is not None:
            roles.control.add(token_id)
        token_id = token_id if named is None else named
        if ends and token_id is not None:
            roles.end.add(token_id)


def _named_fill_token(header: GgufHeader, keys: Sequence[str], num_tokens: int) -> int | None:
    named = (named_id(header, key, num_tokens) for key in keys)
    return next((token_id for token_id in named if token_id is not None), None)


def fill_ids(header: GgufHeader, ids: Mapping[str, int]) -> tuple[int, int, int] | None:
    """Return the tokens before the text before a gap, before the text after it, and before what
    fills it; None where a file has not all of them."""
    found = [
        next((ids[text] for text in texts if text in ids), None) if named is None else named
        for keys, texts, _ in _FILL_TOKENS[:3]
        for named in (_named_fill_token(header, keys, len(ids)),)
    ]
    before, after, filling = found
    if before is None or after is None or filling is None:
        return None
    return before, after, filling


def _correct_ends(end_texts: Collection[str], ids: Mapping[str, int], roles: Roles) -> None:
    """Take back two texts that are no ends in models which also have certain others."""
    has = end_texts.__contains__
    calls = has("<|call|>") or has("<|calls|>")
    if has("<|end|>") and calls and (has("<|return|>") or has("<|flush|>")):
        roles.end.discard(ids["<|end|>"])
        roles.show(ids["<|end|>"])
        roles.user_defined.add(ids["<|end|>"])
    if has("</s>") and (has("<|tool_response>") or has("<|plamo:eos|>")):
        roles.end.discard(ids["</s>"])
        roles.show(ids["</s>"])
