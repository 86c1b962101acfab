"""The routes of OpenAI's API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response

from pilotfish.errors import ConfigError
from pilotfish.server.answers import (
    ChatAnswer,
    CompletionAnswer,
    HealthAnswer,
    ModelAnswer,
    ModelsAnswer,
)
from pilotfish.server.asked import (
    asked_chat_prompt,
    asked_prompts,
    chat_requests,
    completion_ids,
    completion_requests,
    tokenized,
)
from pilotfish.server.body import check_kind, parsed, validated
from pilotfish.server.choices import ChatChoice, CompletionChoice
from pilotfish.server.description import reply_route, responses
from pilotfish.server.errors import ApiError, json_response, naming
from pilotfish.server.reasoning import Reasoning, showing
from pilotfish.server.replying import Asked, respond
from pilotfish.server.schema import ChatRequest, CompletionRequest, ReplyRequest
from pilotfish.server.serving import Serving
from pilotfish.server.tokens import Echo
from pilotfish.server.tool_choice import tool_choice
from pilotfish.types import StructuralTags

T = TypeVar("T", bound=ReplyRequest)

log = logging.getLogger("pilotfish.server")


def make_router(serving: Serving) -> APIRouter:
    """Return the routes over a service."""
    router = APIRouter()

    @router.post("/v1/chat/completions", **reply_route(ChatRequest, ChatAnswer))
    async def create_chat_completion(request: Request) -> Response:
        """Reply to a chat."""
        with naming("messages"):
            asked = await read_asked(request, serving, chat_asked)
            return await respond(request, serving, asked)

    @router.post("/v1/completions", **reply_route(CompletionRequest, CompletionAnswer))
    async def create_completion(request: Request) -> Response:
        """Complete one text or several."""
        with naming("prompt"):
            asked = await read_asked(request, serving, completion_asked)
            return await respond(request, serving, asked)

    @router.get("/v1/models", responses=responses(ModelsAnswer))
    async def list_models() -> Response:
        """List the one model there is, with what is loaded."""
        return json_response({"object": "list", "data": [model(serving)]})

    @router.get(
        "/v1/models/{model_id:path}",
        responses=responses(ModelAnswer, errors=(401, 403, 404)),
    )
    async def retrieve_model(model_id: str) -> Response:
        """Describe the model."""
        serving.check_model(model_id)
        return json_response(model(serving))

    @router.get("/health", responses=health_responses())
    async def health() -> Response:
        """Say whether requests are taken, and what is loaded."""
        return health_response(serving)

    return router


async def read_asked(
    request: Request, serving: Serving, understand: Callable[[Serving, bytearray], Asked]
) -> Asked:
    """Return what a request asks of the service. Raises ConfigError or ApiError."""
    check_kind(request)
    async with serving.bodies.read(request) as data:
        # large bodies, prompts and schemas take a while; others are answered meanwhile
        return await asyncio.to_thread(understand, serving, data)


def checked(serving: Serving, data: bytearray, kind: type[T]) -> T:
    """Return the request a body holds, for a model that is here; ApiError otherwise."""
    body = validated(parsed(data), kind)
    serving.check_model(body.model)
    if body.speculation is not None:
        with naming("speculation.drafter", ConfigError):
            serving.engine.check_drafter(body.speculation.drafter)
    if serving.options.log_prompts:
        log.info("asked %s", body.model_dump_json(exclude_unset=True, ensure_ascii=True))
    return body


def chat_asked(serving: Serving, data: bytearray) -> Asked:
    """Return what the body of a chat asks of the service. Raises ConfigError or ApiError."""
    body = checked(serving, data, ChatRequest)
    requests = tokenized(body, chat_requests(body), serving.engine)
    choice = tool_choice(body)
    is_tagged = isinstance(requests[0].json_schema, StructuralTags)
    with naming("tools" if is_tagged else "response_format", ConfigError):
        grammar = serving.engine.prepare_grammar(requests[0])
    prompt = asked_chat_prompt(body, serving.engine.tokenizer, serving.options.template_options)
    requests = showing(requests, serving.reasoning_marks)
    reasoning = None
    # what keeps to a schema does so from its first letter on
    is_free = grammar is None or (is_tagged and not choice.is_required)
    if is_free and splits_reasoning(serving, body) and serving.reasoning_marks:
        reasoning = Reasoning(serving.reasoning_marks, prompt)
        requests = reasoning.requests(requests)
    choices = [
        ChatChoice(
            index,
            serving.texts,
            logprobs=bool(body.logprobs),
            report=reports(body),
            reader=choice.reader(is_tagged=is_tagged),
            only_calls=choice.is_required,
            is_named=choice.is_named,
            reasoning=reasoning.splitter() if reasoning else None,
        )
        for index in range(len(requests))
    ]
    return asked(
        body,
        prompts=[prompt.token_ids],
        requests=requests,
        grammar=grammar,
        choices=choices,
        kind="chat.completion",
    )


def completion_asked(serving: Serving, data: bytearray) -> Asked:
    """Return what the body of a completion asks of the service. Raises ConfigError or ApiError."""
    body = checked(serving, data, CompletionRequest)
    requests = tokenized(body, completion_requests(body), serving.engine)
    prompts = completion_ids(body, serving.engine.tokenizer)
    echoes: list[Echo | None] = [None] * len(prompts)
    if body.echo:
        pairs = zip(asked_prompts(body), prompts, strict=True)
        echoes = [Echo.of(prompt, ids, serving.texts) for prompt, ids in pairs]
    choices = [
        CompletionChoice(
            index,
            serving.texts,
            logprobs=body.logprobs is not None,
            report=reports(body),
            echo=echoes[index // len(requests)],
        )
        for index in range(len(prompts) * len(requests))
    ]
    most = serving.service.limits.max_running + serving.service.limits.max_waiting
    if len(choices) > most:
        message = f"{len(choices)} choices at once are more than the {most} this server takes"
        raise ApiError(400, message, param="prompt", code="invalid_value")
    return asked(body, prompts=prompts, requests=requests, choices=choices, kind="text_completion")


def asked(body: ReplyRequest, **parts: Any) -> Asked:
    """Return what is asked, with how it is to be delivered."""
    streams = bool(body.stream)
    wanted = body.stream_options and body.stream_options.include_usage
    return Asked(
        streams=streams,
        includes_usage=bool(wanted),
        reports=reports(body),
        tells_progress=bool(body.return_progress),
        ignored=body.ignored,
        **parts,
    )


def reports(body: ReplyRequest) -> bool:
    """Return whether figures of drafting are asked for."""
    return body.speculation is not None and body.speculation.report


def splits_reasoning(serving: Serving, body: ChatRequest) -> bool:
    """Return whether what the model thinks is to have a field of its own."""
    return (body.reasoning_format or serving.options.reasoning_format) != "none"


def model(serving: Serving) -> dict[str, Any]:
    """Return the description of the model."""
    return {
        "id": serving.model_name,
        "object": "model",
        "created": serving.started_at,
        "owned_by": "pilotfish",
        "context_size": serving.engine.engine.target.context_size,
        **serving.description,
    }


def health_responses() -> dict[int | str, dict[str, Any]]:
    """Return the answers of `/health`: it says the same where the server is not well."""
    unwell = {"model": HealthAnswer, "description": "no requests are taken"}
    return {**responses(HealthAnswer, errors=(403,)), 503: unwell}


def health_response(serving: Serving) -> Response:
    """Return how the service is. What is loaded is left out where a key guards it."""
    state = serving.service.state
    word = "ok" if state.is_alive else "stopped"
    if state.is_alive and state.is_draining:
        word = "draining"
    document: dict[str, Any] = {
        "status": word,
        "num_running": state.num_running,
        "num_waiting": state.num_waiting,
        "num_cache_tokens": state.num_cache_tokens,
        "num_kept_tokens": state.num_kept_tokens,
        "seconds_since_progress": round(state.seconds_since_progress, 3),
    }
    if serving.options.api_key is None:
        document |= {"model": serving.model_name, **serving.description}
    return json_response(document, status=200 if word == "ok" else 503)
