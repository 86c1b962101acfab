"""From prompts and chats to token ids; the only way in, with speculation and without."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

from pilotfish.errors import ConfigError, PromptError
from pilotfish.text.messages import check_message
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
# what every prompt gives its template
_GIVEN = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
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


def fill_prompt_ids(before: str | Sequence[int], after: str, tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a text with a gap, whose filling the model then writes.

    Control texts in it stay ordinary text; token ids are taken as they are. Raises PromptError
    where the model has no marks for this.
    """
    if tokenizer.fill_ids is None:
        raise PromptError(
            "the model has no tokens that mark a gap to be filled",
            hint="leave suffix out, or use a model that was trained to fill gaps in code",
        )
    first, second, third = tokenizer.fill_ids
    if isinstance(before, str):
        before = tokenizer.encode(_checked_text(before), parse_special=False)
    rest = tokenizer.encode(_checked_text(after), parse_special=False)
    return _with_bos([first, *before, second, *rest, third], tokenizer)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat as the model reads it.

    token_ids  what it reads           continued  the text of the final message, where the reply
    text       the same, as text                  continues one; else empty
    """

    token_ids: list[int]
    text: str
    continued: str = ""


def chat_prompt(
    messages: Sequence[Mapping[str, Any]],
    *,
    tokenizer: Tokenizer,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_options: Mapping[str, Any] | None = None,
    continue_final_message: bool | None = None,
    add_generation_prompt: bool | None = None,
) -> ChatPrompt:
    """Return a chat, written by the model's own template.

    Control texts inside messages, tools and options stay ordinary text. Without any, the rendered
    text is tokenised in one go and the ids are the usual ones. System and developer messages that
    stand together at the beginning become one.

    template_options        what else the template may read; ConfigError for a name it does not know
    continue_final_message  whether the reply continues the final message; None: if that is one of
                            the assistant, with text and no calls, and `add_generation_prompt` is
                            not given
    add_generation_prompt   whether a turn of the assistant is begun; None: unless one is continued
    """
    template, options = chat_template(tokenizer), dict(template_options or {})
    check_template_options(options, tokenizer)
    special = special_texts(tokenizer.special_texts)
    try:
        chat = [_flat_message(message, index) for index, message in enumerate(messages)]
        chat = _with_one_system(chat, template)
        if not chat:
            raise PromptError("messages is empty", hint="send at least one message")
        if continue_final_message is None:
            continue_final_message = add_generation_prompt is None and _can_continue(chat[-1])
        _check_continued(chat[-1], continue_final_message, add_generation_prompt)
        mark, end = _unused_characters([template, chat, tools, options])
        marked = [_marked_message(message, special, mark) for message in chat]
        if continue_final_message:
            marked[-1]["content"] += end
        text = _render(
            template,
            **_with_strings(options, lambda value: special.marked(value, mark)),
            messages=marked,
            tools=_with_strings(tools, lambda value: special.marked(value, mark)),
            add_generation_prompt=not continue_final_message and add_generation_prompt is not False,
            bos_token=tokenizer.bos_text,
            eos_token=tokenizer.eos_text,
        )
    except RecursionError as error:
        raise PromptError("the messages are nested too deeply") from error
    if continue_final_message:
        text = _up_to(text, end)
    pieces = special.pieces(_checked_text(text), mark)
    ids = [i for piece in pieces for i in tokenizer.encode(piece, parse_special=True)]
    continued = chat[-1]["content"] if continue_final_message else ""
    return ChatPrompt(_with_bos(ids, tokenizer), "".join(pieces), continued)


def unknown_template_options(options: Iterable[str], tokenizer: Tokenizer) -> list[str]:
    """Return the names that the model's chat template does not read. Raises ConfigError for those
    of what every prompt gives it."""
    if not options:
        return []
    from pilotfish.text.template import variables

    for name in options:
        if name in _GIVEN:
            raise ConfigError(
                f"{name} is no option of a chat template", hint="it is made from the request itself"
            )
    known = variables(chat_template(tokenizer))
    return [name for name in options if name not in known]


def check_template_options(options: Iterable[str], tokenizer: Tokenizer) -> None:
    """Raise ConfigError, naming the first, if the model's chat template does not read them all."""
    from pilotfish.text.template import variables

    unknown = unknown_template_options(options, tokenizer)
    if not unknown:
        return
    known = sorted(variables(chat_template(tokenizer)) - _GIVEN)
    close = difflib.get_close_matches(unknown[0][:100], known, n=1)
    hint = f"it reads {', '.join(known)}" if known else "it reads none"
    raise ConfigError(
        f"the model's chat template reads no option {unknown[0][:100]!r}",
        hint=f"did you mean {close[0]}?" if close else hint,
    )


def _can_continue(message: Mapping[str, Any]) -> bool:
    return (
        message["role"] == "assistant"
        and isinstance(message.get("content"), str)
        and not message.get("tool_calls")
    )


def _check_continued(
    message: Mapping[str, Any], continues: bool, add_generation_prompt: bool | None
) -> None:
    if continues and add_generation_prompt:
        raise ConfigError("continue_final_message and add_generation_prompt exclude each other")
    if continues and not _can_continue(message):
        raise PromptError(
            "the final message cannot be continued",
            hint="it must be one of the assistant, with text and without calls",
        )


def _up_to(text: str, end: str) -> str:
    """Return the text before the last character `end`, and without those before it."""
    before, found, _ = text.rpartition(end)
    if not found:
        raise PromptError(
            "the model's chat template does not write the final message as it is, so that it "
            "cannot be continued",
            hint="set continue_final_message to false for a new turn",
        )
    return before.replace(end, "")


def _with_one_system(chat: list[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """Return the messages with one system message at the beginning where there were several, since
    many templates refuse a second one, and with the role "developer" only where it is known."""
    if "developer" not in template:
        # the same by its newer name
        chat = [{**one, "role": "system"} if one["role"] == "developer" else one for one in chat]
    num_first = sum(1 for _ in takewhile(lambda one: one["role"] == "system", chat))
    if num_first < 2:
        return chat
    text = "\n\n".join(filter(None, (one.get("content") for one in chat[:num_first])))
    return [{**chat[0], "content": text}, *chat[num_first:]]


def prediction_ids(
    prediction: str | Sequence[int] | None, tokenizer: Tokenizer, *, most_tokens: int
) -> tuple[int, ...]:
    """Return the first ids of what a reply is expected to be: control texts in it are ordinary
    text. Raises PromptError for what can be no part of a reply."""
    if isinstance(prediction, str):
        text = _checked_text(prediction, "prediction")
        return tuple(tokenizer.encode(text, parse_special=False)[:most_tokens])
    ids, size = tuple(prediction or ()), tokenizer.vocab_size
    if ids and not (min(ids) >= 0 and max(ids) < size):
        wrong = next(token for token in ids if not 0 <= token < size)
        raise PromptError(f"prediction: token id {wrong} is outside the vocabulary of {size}")
    return ids[:most_tokens]


def _with_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    # many templates write the token themselves, so what counts is what the ids begin with
    bos_id = tokenizer.bos_id
    if bos_id is None or not tokenizer.add_bos or ids[:1] == [bos_id]:
        return ids
    return [bos_id, *ids]


def _checked_text(text: str, name: str = "prompt") -> str:
    if match := _SURROGATE.search(text):
        raise PromptError(
            f"the {name} is not valid text: lone surrogate U+{ord(match.group()):04X} "
            f"at character {match.start()}"
        )
    return text


def chat_template(tokenizer: Tokenizer) -> str:
    """Return the template of a model's chats; PromptError where it has none."""
    if tokenizer.chat_template:
        return tokenizer.chat_template
    if {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.special_texts):
        return _CHATML
    raise PromptError(
        "the model has no chat template",
        hint="generate --raw sends a prompt as it is; a chat needs an instruction-tuned model",
    )


def _render(template: str, **variables: Any) -> str:
    from pilotfish.text.template import rendered

    return rendered(template, variables)


def _flat_message(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a message whose content is one string (or None), checked."""
    check_message(message, index)
    role = message.get("role")
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
    elif not message.get("tool_calls"):
        marked["content"] = ""  # templates join None to other text, or print it
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


def _unused_characters(data: Any) -> tuple[str, str]:
    """Return two private-use characters that no string in `data` contains."""
    seen: set[str] = set()

    def collect(text: str) -> str:
        seen.update(text)
        return text

    _with_strings(data, collect)
    private = map(chr, range(_FIRST_PRIVATE, _LAST_PRIVATE + 1))
    unused = list(islice((one for one in private if one not in seen), 2))
    if len(unused) < 2:
        raise PromptError("the messages use every private-use character")
    return unused[0], unused[1]
