"""The requests of the API: what may be in them, and what each field is when it is left out.

Ranges of numbers are OpenAI's where it has the field. What asks for nothing is ignored (`ignored`
has the tables); what would change the reply and cannot be done is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    model_validator,
)

from pilotfish.server.ignored import (
    IN_CHATS,
    IN_COMPLETIONS,
    IN_MESSAGES,
    IN_STREAM_OPTIONS,
    OF_PARTS,
    OF_REQUESTS,
    IgnoredFields,
)
from pilotfish.server.strict import StrictObject

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
# in chats it is a switch, and clients send its default
OFF_BY_FALSE = BeforeValidator(lambda value: None if value is False else value)
# a body of a million wrong entries is wrong once
FIRST_FAILURE = Field(fail_fast=True)
Count = Annotated[int, Field(ge=1), WHOLE]
Text = Annotated[str, Field(min_length=1)]


class TextPart(StrictObject):
    """A part of a message; only text is understood."""

    PLACE = "messages.content"
    UNREAD = OF_PARTS

    type: Literal["text"]
    text: str


class ThoughtPart(StrictObject):
    """What a model thought before it said something, as some servers tell it: not read again."""

    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})
    PLACE = "messages.content"

    type: Literal["thinking", "redacted_thinking", "reasoning"]

    @property
    def text(self) -> str:
        """Return what templates see of it."""
        return ""

    @classmethod
    def asks_nothing(cls, name: str, value: Any) -> bool:
        """Return True: all of it is ignored."""
        return True


Content = str | Annotated[list[TextPart], FIRST_FAILURE]
SaidContent = (
    str
    | Annotated[list[Annotated[TextPart | ThoughtPart, Field(discriminator="type")]], FIRST_FAILURE]
)


class FunctionCall(StrictObject):
    """A call the model made; `arguments` is a JSON object, as text."""

    PLACE = "messages.tool_calls.function"
    UNREAD = OF_PARTS

    name: Text
    arguments: str


class ToolCall(StrictObject):
    """A call of a tool, with the id its answer refers to."""

    PLACE = "messages.tool_calls"
    UNREAD = OF_PARTS

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class _Message(StrictObject):
    """What all messages have in common."""

    PLACE = "messages"
    UNREAD = OF_PARTS
    UNSUPPORTED = IN_MESSAGES


class SystemMessage(_Message):
    """What the model is told about its task."""

    role: Literal["system"]
    content: Content
    name: str | None = None


class DeveloperMessage(_Message):
    """The same by its newer name."""

    role: Literal["developer"]
    content: Content
    name: str | None = None


class UserMessage(_Message):
    """What a user said."""

    role: Literal["user"]
    content: Content
    name: str | None = None


class AssistantMessage(_Message):
    """What the model said before; its reasoning is the chat template's to write or leave out."""

    role: Literal["assistant"]
    content: SaidContent | None = None
    tool_calls: Annotated[list[ToolCall], FIRST_FAILURE] | None = None
    name: str | None = None
    reasoning_content: Any = None


class ToolMessage(_Message):
    """What a called tool answered."""

    role: Literal["tool"]
    content: Content
    tool_call_id: str
    name: str | None = None


Message = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage,
    Field(discriminator="role"),
]


class Function(StrictObject):
    """A function the model may call; `parameters` is a JSON schema."""

    PLACE = "tools.function"
    UNREAD = OF_PARTS

    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictObject):
    """A tool the model may use."""

    PLACE = "tools"
    UNREAD = OF_PARTS

    type: Literal["function"]
    function: Function


class SchemaFormat(StrictObject):
    """A JSON schema the reply keeps to."""

    PLACE = "response_format.json_schema"

    name: str | None = None
    # `schema` is a method of the base class
    json_schema: Annotated[dict[str, Any] | bool, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextFormat(StrictObject):
    """Text without conditions."""

    PLACE = "response_format"

    type: Literal["text"]


class ObjectFormat(StrictObject):
    """Any JSON object."""

    PLACE = "response_format"

    type: Literal["json_object"]


class JsonSchemaFormat(StrictObject):
    """JSON that keeps to a schema."""

    PLACE = "response_format"

    type: Literal["json_schema"]
    json_schema: SchemaFormat


ResponseFormat = Annotated[
    TextFormat | ObjectFormat | JsonSchemaFormat, Field(discriminator="type")
]


class StreamOptions(StrictObject):
    """What a stream carries besides the reply."""

    PLACE = "stream_options"
    UNREAD = ("include_obfuscation",)
    UNSUPPORTED = IN_STREAM_OPTIONS

    include_usage: bool | None = None


class PredictedContent(StrictObject):
    """What the reply is expected to be like: the tokens it shares come sooner."""

    PLACE = "prediction"

    type: Literal["content"]
    content: Content


class SpeculationWish(StrictObject):
    """What a request asks of drafting: it changes the time of a reply, never its text.

    `report` adds figures to the reply, and the origin of each token to a stream.
    """

    PLACE = "speculation"

    drafter: Literal["auto", "none", "suffix", "ngram", "model", "prediction"] = "auto"
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


class ReplyRequest(StrictObject):
    """The fields that both kinds of request have."""

    UNREAD = OF_REQUESTS

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
    return_progress: bool | None = None
    max_tokens: Count | None = None
    seed: Annotated[int, Field(ge=-_INT64, lt=_INT64), WHOLE] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[Biases, BeforeValidator(_few)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=_INT64), WHOLE] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.001, lt=1000)] | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=_INT64), WHOLE] | None = None
    prediction: PredictedContent | None = None
    speculation: SpeculationWish | None = None
    _ignored: IgnoredFields = PrivateAttr(default_factory=IgnoredFields)

    @model_validator(mode="after")
    def _keep_what_was_ignored(self, info: ValidationInfo) -> Self:
        if isinstance(info.context, IgnoredFields):
            self._ignored = info.context
        if self.stream_options is not None and not self.stream:
            self._ignored.add("", ["stream_options"])  # a whole reply has its usage anyway
        if self.return_progress and not self.stream:
            self._ignored.add("", ["return_progress"])  # there is nothing to say before the reply
        return self

    def ignore(self, place: str, names: Iterable[str]) -> None:
        """Take note of fields that turn out to change nothing."""
        self._ignored.add(place, names)

    @property
    def ignored(self) -> str:
        """Return the names of the fields that were ignored, in one line."""
        return self._ignored.text


class ChatRequest(ReplyRequest):
    """The body of `POST /v1/chat/completions`."""

    UNSUPPORTED = IN_CHATS

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS), WHOLE] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], FIRST_FAILURE] | None = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        Field(description="auto, none, required, a function, or allowed_tools"),
    ] = None
    parallel_tool_calls: bool | None = None
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: Annotated[list[Literal["text"]], FIRST_FAILURE] | None = None


Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1, fail_fast=True)]


class CompletionRequest(ReplyRequest):
    """The body of `POST /v1/completions`."""

    UNSUPPORTED = IN_COMPLETIONS

    prompt: Annotated[
        str
        | Annotated[list[str], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)]
        | Ids
        | Annotated[list[Ids], Field(min_length=1, max_length=MOST_PROMPTS, fail_fast=True)],
        Field(description=f"text, token ids, or a list of at most {MOST_PROMPTS} of either"),
    ]
    logprobs: Annotated[
        Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS), WHOLE] | None, OFF_BY_FALSE
    ] = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES), WHOLE] | None = None
    echo: bool | None = None
    suffix: str | None = None
