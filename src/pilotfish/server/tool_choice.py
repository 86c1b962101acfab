"""Which functions a request may call, which it must, and what the reply then has to be."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pilotfish.errors import ConfigError
from pilotfish.grammar import Schema, check_schema
from pilotfish.server.errors import ApiError, naming
from pilotfish.server.schema import ChatRequest, Function, Tool
from pilotfish.server.tagged_calls import TaggedCallReader
from pilotfish.server.tools import CallFinder, CallReader, call_tag
from pilotfish.types import StructuralTags

log = logging.getLogger("pilotfish.server")

_KINDS = "auto, none, required, a function of tools, or allowed_tools"
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANY_ARGUMENTS = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Which tools a request may call.

    tools        those the model may call, by their places in the request
    is_required  whether it must call one
    is_named     whether the request says which one
    is_single    whether one call is all
    """

    tools: Mapping[int, Tool]
    is_required: bool = False
    is_named: bool = False
    is_single: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the functions."""
        return frozenset(tool.function.name for tool in self.tools.values())

    def reply_schema(
        self, answer: Schema | None, ignore: Callable[[str, list[str]], None]
    ) -> Schema | StructuralTags | None:
        """Return what the reply must be, if anything; `answer` is what it must be without calls.

        `ignore` is told what asks for nothing then. Raises ApiError for a schema that cannot be
        enforced and must be.
        """
        if not self.tools or (answer is None and not self.is_required):
            return answer
        if answer is not None and self.is_required:
            ignore("", ["response_format"])
        elif answer is not None:
            with naming("response_format", ConfigError):
                check_schema(answer)
        tags = []
        for place, tool in self.tools.items():
            schema = _arguments_schema(tool.function, f"tools[{place}].function.parameters")
            if schema is None:
                ignore("tools.function", ["parameters"])
            tags.append(call_tag(tool.function.name, schema or _ANY_ARGUMENTS))
        return StructuralTags(
            tuple(tags),
            separator=None if self.is_single else "\n",
            otherwise=None if self.is_required else answer,
        )

    def reader(self, *, is_tagged: bool) -> CallReader | None:
        """Return what finds the calls of one reply, if there can be any."""
        if is_tagged:
            return TaggedCallReader()
        return CallFinder(self.names, only_first=self.is_single) if self.tools else None


def tool_choice(body: ChatRequest) -> ToolChoice:
    """Return which tools a request may call; ApiError for a choice that is none."""
    choice, tools = body.tool_choice, dict(enumerate(body.tools or ()))
    is_single = body.parallel_tool_calls is False
    if choice == "none":
        return ToolChoice(tools={})
    if choice is None or choice == "auto":
        return ToolChoice(tools=tools, is_single=is_single)
    if choice == "required":
        _check_any(tools)
        return ToolChoice(tools=tools, is_required=True, is_single=is_single)
    if isinstance(choice, dict) and choice.get("type") == "function":
        named = _named(tools, [choice])
        return ToolChoice(tools=named, is_required=True, is_named=True, is_single=True)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        mode, allowed = _allowed(tools, choice.get("allowed_tools"))
        if mode == "required":
            _check_any(allowed)
        return ToolChoice(tools=allowed, is_required=mode == "required", is_single=is_single)
    raise _refused(f"must be {_KINDS}")


def _allowed(tools: Mapping[int, Tool], given: Any) -> tuple[str, dict[int, Tool]]:
    mode, wanted = (given.get("mode"), given.get("tools")) if isinstance(given, dict) else ("", "")
    if mode not in ("auto", "required") or not isinstance(wanted, list):
        raise _refused("allowed_tools must have a mode, auto or required, and tools")
    return mode, _named(tools, wanted)


def _check_any(tools: Mapping[int, Tool]) -> None:
    if not tools:
        raise _refused("demands a call, and there are no tools (give some, or leave it out)")


def _named(tools: Mapping[int, Tool], wanted: list[Any]) -> dict[int, Tool]:
    """Return the tools that are named, in their own order."""
    names = set()
    known = {tool.function.name for tool in tools.values()}
    for one in wanted:
        function = one.get("function") if isinstance(one, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or one.get("type") != "function":
            raise _refused('names a function as {"type": "function", "function": {"name": ...}}')
        if name not in known:
            few = ", ".join(json.dumps(one)[:60] for one in sorted(known)[:5])
            hint = f"there are {few}" if few else "there are no tools"
            raise _refused(f"names {json.dumps(name)[:60]}, which is not among the tools ({hint})")
        names.add(name)
    return {place: tool for place, tool in tools.items() if tool.function.name in names}


def _refused(what: str) -> ApiError:
    return ApiError(400, f"tool_choice {what}", param="tool_choice", code="invalid_value")


def _arguments_schema(function: Function, path: str) -> Schema | None:
    """Return the schema that the arguments of a function are held to, None where they cannot be.

    That is refused where the function is strict; elsewhere a schema is a description, as it is to
    OpenAI, and any object will do.
    """
    given = function.parameters
    if given is None:
        return _NO_ARGUMENTS
    kind = given.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        message = f"{path} must be the schema of an object: arguments are one"
        raise ApiError(400, message, param=path, code="invalid_value")
    schema = {**given, "type": "object"}
    try:
        check_schema(schema)
    except ConfigError as error:
        reason = str(error).removeprefix("json_schema")
        if function.strict:
            message = f"{path}{reason} ({error.hint or 'or leave strict out'})"
            raise ApiError(400, message, param=path, code="invalid_value") from error
        log.warning("%s%s; any arguments are taken", path, reason)
        return None
    return schema
