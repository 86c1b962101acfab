"""The requests of the API: what may be in them, and what each field is when it is left out.

Ranges of numbers are OpenAI's where it has the field. Fields that OpenAI documents and that change
nothing here are accepted and not read; what we cannot do is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from pilotfish.server.complaints import UnknownField

MOST_CHOICES = 16
MOST_PROMPTS = 64
MOST_STOPS = 16
MOST_TOP_LOGPROBS = 20
MOST_BIASES = 1024
_INT64 = 2**63


def _whole(value: Any) -> Any:
    """Return 3 for 3.0, which JSON does not tell apart; other values as they are."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
# a body of a million wrong entries is wrong once
FIRST_FAILURE = Field(fail_fast=True)
Count = Annotated[int, Field(ge=1), WHOLE]
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, value: Any) -> Any:
        """Name the first field nobody knows: one, however many there are."""
        if not isinstance(value, dict):
            return value
        known = {field.alias or name for name, field in cls.model_fields.items()}
        for name in value:
            if name not in known:
                raise UnknownField(name, known=known, unsupported=cls.UNSUPPORTED)
        return value


class TextPart(_Strict):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], FIRST_FAILURE]


class FunctionCall(_Strict):
    """A call the model made; `arguments` is a JSON object, as text."""

    name: Text
    arguments: str


class ToolCall(_Strict):
    """A call of a tool, with the id its answer refers to."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: Annotated[int, WHOLE] | None = None


class SystemMessage(_Strict):
    """What the model is told about its task."""

    role: Literal["system"]
    content: Content
    name: str | None = None


class DeveloperMessage(_Strict):
    """The same by its newer name."""

    role: Literal["developer"]
    content: Content
    name: str | None = None


class UserMessage(_Strict):
    """What a user said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(_Strict):
    """What the model said before. What a reply of this or another server carries beyond text and
    calls is accepted and not read."""

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[ToolCall], FIRST_FAILURE] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: Any = None
    audio: None = None
    function_call: None = None
    reasoning_content: Any = None


class ToolMessage(_Strict):
    """What a called tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class Function(_Strict):
    """A function the model may call; `parameters` is a JSON schema."""

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(_Strict):
    """A tool the model may use."""

    type: Literal["function"]
    function: Function


class SchemaFormat(_Strict):
    """A JSON schema the reply keeps to."""

    name: str
    # `schema` is a method of the base class
    json_schema: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextFormat(_Strict):
    """Text without conditions."""

    type: Literal["text"]


class ObjectFormat(_Strict):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(_Strict):
    """JSON that keeps to a schema."""

    type: Literal["json_schema"]
    json_schema: SchemaFormat


ResponseFormat = Annotated[
    TextFormat | ObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StreamOptions(_Strict):
    """What a stream carries besides the reply; nothing is obfuscated here."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SpeculationWish(_Strict):
    """What a request asks of drafting: it changes the time of a reply, never its text.

    `report` adds figures to the reply, and the origin of each token to a stream.
    """

    drafter: Literal["auto", "none", "suffix", "ngram", "model"] = "auto"
    num_speculative_tokens: Annotated[int, Field(ge=0, le=1024), WHOLE] | None = None
    report: bool = False


def _few(value: Any) -> Any:
    """Return the value; an object of too many entries is refused before they are looked at."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"must have {MOST_BIASES} entries at most")
    return value


Biases = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MOST_BIASES, json_schema_extra={"additionalProperties": False}),
]


class ReplyRequest(_Strict):
    """The fields that both kinds of request have."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = None
    stop: Annotated[
        Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None,
        Field(description=f"text, or a list of at most {MOST_STOPS} texts, none of them empty"),
    ] = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64), WHOLE] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[Biases, BeforeValidator(_few)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=_INT64), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, lt=1000)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_INT64), WHOLE] | None = None
    speculation: SpeculationWish | None = None
    user: Any = None


class ChatRequest(ReplyRequest):
    """The body of `POST /v1/chat/completions`."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "functions": "use tools",
        "function_call": "use tool_choice",
        "audio": "replies are text",
        "web_search_options": "the server searches nothing",
        "moderation": "the server judges nothing",
        "reasoning_effort": "say it in the system message",
        "verbosity": "say it in the system message",
    }

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], FIRST_FAILURE] | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, Field(description="auto or none")] = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: Annotated[list[Literal["text"]], FIRST_FAILURE] | None = None
    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None


Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]


class CompletionRequest(ReplyRequest):
    """The body of `POST /v1/completions`."""

    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        "response_format": "it belongs to /v1/chat/completions",
        "messages": "they belong to /v1/chat/completions",
        "tools": "they belong to /v1/chat/completions",
    }

    prompt: Annotated[
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
        Field(description=f"text, token ids, or a list of at most {MOST_PROMPTS} of either"),
    ]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS), WHOLE] | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = None
    echo: bool | None = None
    suffix: str | None = None
