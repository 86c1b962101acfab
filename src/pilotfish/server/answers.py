"""The answers of the API, for its description: what every one of them has.

Answers are put together as plain values where they are made; tests hold them against these.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Failure(_Open):
    """What went wrong: `param` is the field that is wrong, `code` a word for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(_Open):
    """The body of every answer that is not a success."""

    error: Failure


class CachedTokens(_Open):
    """How much of the prompts had been read before, for other requests."""

    cached_tokens: int


class PredictedTokens(_Open):
    """Drafts from the request's prediction: those that became part of a reply, and the others,
    which count nowhere else."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageAnswer(_Open):
    """Tokens of a request: each prompt once, and all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: PredictedTokens


class CalledFunction(_Open):
    """Which function is to be called; `arguments` is a JSON object, as text."""

    name: str
    arguments: str


class ToolCallAnswer(_Open):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class MessageAnswer(_Open):
    """A message of the model; `content` is null where it only calls tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallAnswer] = []


class ChatChoiceAnswer(_Open):
    """One choice of a chat."""

    index: int
    message: MessageAnswer
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class ReplyAnswer(_Open):
    """What replies of both kinds have; `speculation` is there when `report` asks for it."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageAnswer
    speculation: dict[str, Any] = {}


class ChatAnswer(ReplyAnswer):
    """The reply to a chat."""

    object: Literal["chat.completion"]
    choices: list[ChatChoiceAnswer]


class CompletionChoiceAnswer(_Open):
    """One choice of a completion."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class CompletionAnswer(ReplyAnswer):
    """The completion of a text, or of several."""

    object: Literal["text_completion"]
    choices: list[CompletionChoiceAnswer]


class SpeculationAnswer(_Open):
    """Whether drafts are made, why or why not, and by whom; null where that is not known."""

    on: bool
    reason: str
    drafters: list[str] | None


class ModelAnswer(_Open):
    """The model, and what is loaded for it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_size: int
    target: dict[str, Any] | None
    draft: dict[str, Any] | None
    speculation: SpeculationAnswer


class ModelsAnswer(_Open):
    """All models there are: one."""

    object: Literal["list"]
    data: list[ModelAnswer]


class HealthAnswer(_Open):
    """How the server is."""

    status: Literal["ok", "draining", "stopped"]
    num_running: int
    num_waiting: int
    seconds_since_progress: float
