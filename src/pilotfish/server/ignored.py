"""Fields that ask for nothing: which are ignored whatever they say, and which only where their
value asks for nothing. What was ignored is named in a header of the answer.

The reference page of the fields, their description in OpenAPI's form and the refusals are made of
these tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

HEADER = "Pilotfish-Ignored-Fields"
_MOST_NAMED = 20
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Unsupported:
    """What a field asks for that cannot be done; with one of the `neutral` values, or an empty one,
    it asks for nothing. `instead` says what to do in its place."""

    instead: str
    neutral: tuple[Any, ...] = ()


UnsupportedFields: TypeAlias = Mapping[str, Unsupported]

# of a request: accounts, billing, caches and logs of services, which change no reply
OF_REQUESTS = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_options", "prompt_cache_retention", "cache_control", "cache_prompt"),
    *("cache_salt", "chat_id", "conversation_id", "extra_headers", "id", "keep_alive"),
    *("litellm_call_id", "litellm_trace_id", "message_id", "priority", "provider", "request_id"),
    *("route", "session_id", "tags", "timeout", "trace_id", "transforms", "ttl", "usage"),
)
# of a message, its parts and calls, or a tool: what clients note down there for themselves
OF_PARTS = (
    *("additional_kwargs", "agent", "annotations", "cacheControl", "cache_control", "citations"),
    *("created", "createdAt", "created_at", "example", "experimental_providerMetadata"),
    *("extra_content", "finish_reason", "id", "index", "is_error", "logprobs", "metadata"),
    *("model", "parsed", "parsed_arguments", "providerMetadata", "providerOptions"),
    *("provider_metadata", "provider_options", "provider_specific_fields", "reasoning"),
    *("reasoning_content", "reasoning_details", "reasoning_opaque", "reasoning_text", "refusal"),
    *("response_metadata", "sender", "signature", "source", "status", "stop_reason", "thinking"),
    *("thinking_blocks", "thought", "timestamp", "ts", "usage", "usage_metadata", "uuid", "weight"),
)
IN_MESSAGES: UnsupportedFields = {
    "attachments": Unsupported("put their text into content"),
    "audio": Unsupported("prompts are text"),
    "experimental_attachments": Unsupported("put their text into content"),
    "files": Unsupported("put their text into content"),
    "function_call": Unsupported("use tool_calls"),
    "images": Unsupported("prompts are text"),
    "parts": Unsupported("use content"),
    "partial": Unsupported("use continue_final_message", (False,)),
    "prefix": Unsupported("use continue_final_message", (False,)),
    "videos": Unsupported("prompts are text"),
}
# what other servers have and this one does not
OF_OTHERS: UnsupportedFields = {
    "dry_multiplier": Unsupported("use repetition_penalty", (0,)),
    "dynatemp_range": Unsupported("use temperature", (0,)),
    "early_stopping": Unsupported(
        "replies end by themselves, at a stop or at max_tokens", (False,)
    ),
    "grammar": Unsupported("use response_format with a JSON schema"),
    "guided_choice": Unsupported("use response_format with a JSON schema"),
    "guided_grammar": Unsupported("use response_format with a JSON schema"),
    "guided_json": Unsupported("use response_format with a JSON schema"),
    "guided_regex": Unsupported("use response_format with a JSON schema"),
    "ignore_eos": Unsupported("use min_tokens", (False,)),
    "include_stop_str_in_output": Unsupported("append it", (False,)),
    "length_penalty": Unsupported("the server searches no beams", (0, 1)),
    "mirostat": Unsupported("use temperature, top_p or min_p", (0,)),
    "n_probs": Unsupported("use logprobs", (0,)),
    "num_beams": Unsupported("the server searches no beams", (1,)),
    "repeat_penalty": Unsupported("use repetition_penalty", (1,)),
    "skip_special_tokens": Unsupported("replies hold no control tokens", (True,)),
    "spaces_between_special_tokens": Unsupported("replies hold no control tokens", (True, False)),
    "tfs_z": Unsupported("use top_p or min_p", (1,)),
    "top_a": Unsupported("use min_p", (0,)),
    "typical_p": Unsupported("use top_p or min_p", (1,)),
    "use_beam_search": Unsupported("the server searches no beams", (False,)),
    "xtc_probability": Unsupported("use temperature", (0,)),
}
IN_CHATS: UnsupportedFields = {
    **OF_OTHERS,
    "audio": Unsupported("replies are text"),
    "best_of": Unsupported("use n", (1,)),
    "function_call": Unsupported("use tool_choice", ("auto", "none")),
    "functions": Unsupported("use tools"),
    "moderation": Unsupported("the server judges nothing"),
    "reasoning_effort": Unsupported("say it in the system message"),
    "verbosity": Unsupported("say it in the system message", ("medium",)),
    "web_search_options": Unsupported("the server searches nothing"),
}
_IN_CHATS_ONLY = "it belongs to /v1/chat/completions"
IN_COMPLETIONS: UnsupportedFields = {
    **OF_OTHERS,
    "messages": Unsupported("they belong to /v1/chat/completions"),
    "response_format": Unsupported(_IN_CHATS_ONLY, ({"type": "text"},)),
    "tool_choice": Unsupported(_IN_CHATS_ONLY, ("auto", "none")),
    "tools": Unsupported("they belong to /v1/chat/completions"),
}
IN_STREAM_OPTIONS: UnsupportedFields = {
    "chunk_include_usage": Unsupported("usage comes in the last part", (False,)),
    "continuous_usage_stats": Unsupported("usage comes in the last part", (False,)),
}


class IgnoredFields:
    """Collects the names of what was ignored in one request, each once and only so many."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._has_more = False

    def add(self, place: str, names: Iterable[str]) -> None:
        """Take note of fields of one place, such as `messages.content`."""
        for name in names:
            shown = name if name.isascii() and name.isidentifier() else json.dumps(name)
            path = f"{place}.{shown[:_LONGEST_NAME]}" if place else shown[:_LONGEST_NAME]
            if path in self._names:
                continue
            if len(self._names) == _MOST_NAMED:
                self._has_more = True
                return
            self._names[path] = None

    @property
    def text(self) -> str:
        """Return the names as the header has them: ASCII, in one line; "" for none."""
        return ", ".join([*self._names, *(["..."] if self._has_more else [])])


def is_neutral(value: Any, unsupported: Unsupported) -> bool:
    """Return whether a field that is not supported has a value that asks for nothing."""
    if value is None or value in ("", [], {}):
        return True
    # true and 1 are different values in JSON
    return any(
        value == one and isinstance(value, bool) == isinstance(one, bool)
        for one in unsupported.neutral
    )
