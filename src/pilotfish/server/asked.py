"""From a request of the API to what the engine is asked: settings, seeds, prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pilotfish.config import Request
from pilotfish.errors import ConfigError, PromptError
from pilotfish.generation import TextEngine
from pilotfish.server.errors import ApiError, naming
from pilotfish.server.schema import (
    AssistantMessage,
    ChatRequest,
    CompletionRequest,
    Content,
    JsonSchemaFormat,
    Message,
    ObjectFormat,
    ReplyRequest,
    SaidContent,
    ToolCall,
)
from pilotfish.server.tool_choice import tool_choice
from pilotfish.server.tools import CLOSING, OPENING, first_call_rule, writes_calls
from pilotfish.text import (
    ChatPrompt,
    Tokenizer,
    chat_prompt,
    fill_prompt_ids,
    raw_prompt_ids,
    unknown_template_options,
)

_SEED_MASK = (1 << 53) - 1
COMPLETION_TOKENS = 16


def choice_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of a choice: the first one's is that of the request."""
    if seed is None or index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) & _SEED_MASK


def choice_requests(body: ReplyRequest, options: Mapping[str, Any]) -> list[Request]:
    """Return what the engine is asked for each choice; ConfigError names what is out of range."""
    return [
        Request.from_options({**options, "seed": choice_seed(body.seed, index)})
        for index in range(body.n or 1)
    ]


def shared_options(body: ReplyRequest) -> dict[str, Any]:
    """Return the options that both kinds of request have; what is not given is as OpenAI has it."""
    wish = body.speculation
    if wish and wish.drafter == "prediction" and body.prediction is None:
        message = "drafter is prediction, and there is no prediction (give one, or leave it out)"
        raise ApiError(400, message, param="speculation.drafter", code="invalid_value")
    sampling = {
        "top_p": body.top_p,
        "min_p": body.min_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "min_tokens": body.min_tokens,
        "top_k": None if body.top_k is None else max(0, body.top_k),
        "logit_bias": {int(token): bias for token, bias in (body.logit_bias or {}).items()},
        "stop": body.stop,
        "drafter": wish and wish.drafter,
        "num_speculative_tokens": wish and wish.num_speculative_tokens,
        "prediction": body.prediction and _text(body.prediction.content),
    }
    given = {name: value for name, value in sampling.items() if value is not None}
    return {**given, "temperature": 1.0 if body.temperature is None else body.temperature}


def chat_requests(body: ChatRequest) -> list[Request]:
    """Return what the engine is asked for each choice of a chat."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400, "top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value"
        )
    options = shared_options(body)
    options["max_tokens"] = _longest_chat(body)
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    choice = tool_choice(body)
    schema = choice.reply_schema(_schema(body), body.ignore)
    if schema is not None:
        options["json_schema"] = schema
    elif choice.is_single:
        options["end_rule"] = first_call_rule
    if choice.tools:
        options["shown_tokens"] = (OPENING, CLOSING)
    # there is no text that could be stopped, and arguments must not be
    if choice.is_required and options.pop("stop", None):
        body.ignore("", ["stop"])
    return choice_requests(body, options)


def _longest_chat(body: ChatRequest) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = "max_tokens and max_completion_tokens differ (give one of them)"
        raise ApiError(400, message, param="max_tokens", code="invalid_value")
    return new if old is None else old


def _schema(body: ChatRequest) -> Mapping[str, Any] | bool | None:
    if isinstance(body.response_format, ObjectFormat):
        return {"type": "object"}
    if isinstance(body.response_format, JsonSchemaFormat):
        return body.response_format.json_schema.json_schema
    return None


def asked_chat_prompt(
    body: ChatRequest, tokenizer: Tokenizer, template_options: Mapping[str, Any]
) -> ChatPrompt:
    """Return a chat as its template writes it, with these options where the request has none of the
    name. Raises PromptError or ApiError."""
    tools, choice = None, tool_choice(body)
    if choice.tools:
        if not writes_calls(tokenizer.chat_template):
            raise ApiError(
                400,
                "tools cannot be used: the model's chat template has no calls of the form "
                "<tool_call> (leave tools out)",
                param="tools",
                code="unsupported_field",
            )
        # all of them where a grammar sees to the choice: prompts then begin alike
        shown = body.tools or () if choice.is_required else choice.tools.values()
        tools = [tool.model_dump(exclude_none=True) for tool in shown]
    messages = [_template_message(one, index) for index, one in enumerate(body.messages)]
    options = {**template_options, **_template_options(body, tokenizer)}
    if body.continue_final_message and body.add_generation_prompt:
        name = "continue_final_message"
        message = f"{name} and add_generation_prompt exclude each other"
        raise ApiError(400, message, param=name, code="invalid_value")
    return chat_prompt(
        messages,
        tokenizer=tokenizer,
        tools=tools,
        template_options=options,
        continue_final_message=body.continue_final_message,
        add_generation_prompt=body.add_generation_prompt,
    )


def _template_options(body: ChatRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the request tells the template, without what that does not read: clients send the
    options of one model to all of them."""
    options = body.chat_template_kwargs or {}
    with naming("chat_template_kwargs", ConfigError):
        unknown = unknown_template_options(options, tokenizer)
    body.ignore("chat_template_kwargs", unknown)
    return {name: value for name, value in options.items() if name not in unknown}


def _template_message(message: Message, index: int) -> dict[str, Any]:
    """Return a message as chat templates expect it."""
    # templates write what has no content as nothing only where it is text
    result: dict[str, Any] = {"role": message.role, "content": _text(message.content)}
    if message.name is not None:
        result["name"] = message.name
    if isinstance(message, AssistantMessage) and isinstance(message.reasoning_content, str):
        result["reasoning_content"] = message.reasoning_content
    if isinstance(message, AssistantMessage) and message.tool_calls:
        result["tool_calls"] = [
            _template_call(call, f"messages[{index}].tool_calls[{number}].function.arguments")
            for number, call in enumerate(message.tool_calls)
        ]
    if message.role == "tool":
        result["tool_call_id"] = message.tool_call_id
    return result


def _text(content: Content | SaidContent | None) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""


def _template_call(call: ToolCall, path: str) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        message = f"{path} must be a JSON object, as text"
        raise ApiError(400, message, param=path, code="invalid_value")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


def completion_requests(body: CompletionRequest) -> list[Request]:
    """Return what the engine is asked for each choice of each prompt of a completion."""
    if body.best_of not in (None, body.n or 1):
        message = "best_of is not supported (leave it out)"
        raise ApiError(400, message, param="best_of", code="unsupported_field")
    if body.echo and body.suffix:
        message = "echo and suffix exclude each other (leave one of both out)"
        raise ApiError(400, message, param="echo", code="invalid_value")
    options = shared_options(body)
    options["max_tokens"] = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    options["raw"] = True
    if body.logprobs is not None:
        options["logprobs"] = body.logprobs
        options["prompt_logprobs"] = body.logprobs if body.echo else None
    return choice_requests(body, options)


def tokenized(body: ReplyRequest, requests: list[Request], engine: TextEngine) -> list[Request]:
    """Return the requests with the prediction as token ids, made once for all of them. One that
    nobody may draft from is ignored, and named as such."""
    if body.prediction is None:
        return requests
    drafters = engine.facts.drafters
    is_there = drafters is None or "prediction" in drafters
    asks = requests[0].drafter in ("auto", "prediction") and not requests[0].wish.is_off
    if not (is_there and asks):
        body.ignore("", ["prediction"])
    with naming("prediction"):
        ids = engine.tokenized(requests[0]).prediction
    return [replace(request, prediction=ids) for request in requests]


def asked_prompts(body: CompletionRequest) -> Sequence[Any]:
    """Return the prompts of a completion, each a text or token ids."""
    prompt = body.prompt
    return [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt


def completion_ids(body: CompletionRequest, tokenizer: Tokenizer) -> list[list[int]]:
    """Return the token ids of each prompt of a completion. Raises PromptError."""
    return [_prompt_ids(one, body.suffix, tokenizer) for one in asked_prompts(body)]


def _prompt_ids(prompt: Any, suffix: str | None, tokenizer: Tokenizer) -> list[int]:
    ids = None if isinstance(prompt, str) else _checked_ids(prompt, tokenizer)
    if suffix:
        with naming("suffix"):
            return fill_prompt_ids(prompt, suffix, tokenizer)
    return raw_prompt_ids(prompt, tokenizer) if ids is None else ids


def _checked_ids(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    size = tokenizer.vocab_size
    wrong = next((token for token in ids if not 0 <= token < size), None)
    if wrong is not None:
        raise PromptError(f"prompt: token id {wrong} is outside the vocabulary of {size}")
    return list(ids)
