"""From prompts and chats to token ids; the only way in, with speculation and without."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pilotfish.errors import PromptError
from pilotfish.text.special import SpecialTexts, special_texts
from pilotfish.text.tokenizer import Tokenizer

# the fallback for models that have the tokens of this format and carry no template
_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_ROLE = re.compile(r"[A-Za-z0-9_-]+")
_FIRST_PRIVATE, _LAST_PRIVATE = 0xE000, 0xF8FF


def raw_prompt_ids(text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a prompt that is sent as it is, without a chat template.

    Control tokens written in it are meant. It begins with the beginning token if the model wants
    that, and an empty prompt is that token alone.
    """
    ids = tokenizer.encode(_checked_text(text), parse_special=True)
    if not ids and tokenizer.bos_id is not None:
        return [tokenizer.bos_id]
    if not ids:
        raise PromptError(
            "the prompt is empty and the model has no beginning token to start from",
            hint="write at least one character",
        )
    return _with_bos(ids, tokenizer)


def chat_prompt_ids(
    messages: Sequence[Mapping[str, Any]],
    *,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Return the ids of a chat, written by the model's own template.

    Control texts inside messages and tools stay ordinary text. Without any, the rendered text is
    tokenised in one go and the ids are the usual ones.
    """
    template = _template(tokenizer)
    special = special_texts(tokenizer.special_texts)
    try:
        chat = [_flat_message(message, index) for index, message in enumerate(messages)]
        if not chat:
            raise PromptError("messages is empty", hint="send at least one message")
        mark = _unused_character([template, chat, tools])
        text = _render(
            template,
            messages=[_marked_message(message, special, mark) for message in chat],
            tools=_with_strings(tools, lambda value: special.marked(value, mark)),
            add_generation_prompt=add_generation_prompt,
            bos_token=tokenizer.bos_text,
            eos_token=tokenizer.eos_text,
        )
    except RecursionError as error:
        raise PromptError("the messages are nested too deeply") from error
    pieces = special.pieces(_checked_text(text), mark)
    ids = [i for piece in pieces for i in tokenizer.encode(piece, parse_special=True)]
    return _with_bos(ids, tokenizer)


def _with_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    # many templates write the token themselves, so what counts is what the ids begin with
    bos_id = tokenizer.bos_id
    if bos_id is None or not tokenizer.add_bos or ids[:1] == [bos_id]:
        return ids
    return [bos_id, *ids]


def _checked_text(text: str) -> str:
    if match := _SURROGATE.search(text):
        raise PromptError(
            f"the prompt is not valid text: lone surrogate U+{ord(match.group()):04X} "
            f"at character {match.start()}"
        )
    return text


def _template(tokenizer: Tokenizer) -> str:
    if tokenizer.chat_template:
        return tokenizer.chat_template
    if {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.special_texts):
        return _CHATML
    raise PromptError(
        "the model has no chat template",
        hint="use --raw to send the prompt as it is, or use an instruction-tuned model",
    )


def _render(template: str, **variables: Any) -> str:
    from pilotfish.text.template import rendered

    return rendered(template, variables)


def _flat_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a message whose content is one string (or None), checked."""
    role = message.get("role") if isinstance(message, Mapping) else None
    # some templates build control texts from the role, so it must not bring its own brackets
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise PromptError(f"messages[{index}] needs a role such as 'user', got {role!r}")
    flat = dict(message)
    content = flat.get("content")
    if isinstance(content, list | tuple):
        # templates that take parts write them one after the other; the others want a string
        flat["content"] = "".join(_part_text(part, index) for part in content)
    elif content is not None and not isinstance(content, str):
        raise PromptError(f"messages[{index}]: content must be text, got {content!r:.50}")
    return flat


def _part_text(part: object, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and part.get("type", "text") == "text":
        text = part.get("text")
        if isinstance(text, str):
            return text
    kind = part.get("type") if isinstance(part, Mapping) else part
    raise PromptError(f"messages[{index}]: only text parts are supported, got {kind!r:.50}")


def _marked_message(message: dict[str, Any], special: SpecialTexts, mark: str) -> dict[str, Any]:
    def inside(value: str) -> str:
        return special.marked(value, mark)

    marked = {
        inside(key): value if key == "role" else _with_strings(value, inside)
        for key, value in message.items()
    }
    # only what stands free in the prompt can join with the template's text around it
    if isinstance(content := message.get("content"), str):
        marked["content"] = special.marked(content, mark, borders=True)
    return marked


def _with_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of JSON-like data with every string changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_with_strings(k, change): _with_strings(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_with_strings(item, change) for item in value]
    return value


def _unused_character(data: Any) -> str:
    """Return a private-use character that no string in `data` contains."""
    seen: set[str] = set()

    def collect(text: str) -> str:
        seen.update(text)
        return text

    _with_strings(data, collect)
    for code in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1):
        if chr(code) not in seen:
            return chr(code)
    raise PromptError("the messages use every private-use character")
