"""Render chat templates as Hugging Face does, in Jinja's sandbox: a template is foreign code.

Imported only when a chat is rendered, so that Jinja costs nothing before.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pilotfish.errors import PromptError

_MAX_ERROR_CHARACTERS = 200


class _GenerationBlock(Extension):
    """`{% generation %}` marks what the model wrote, for training; here its body is plain text."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration is a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(time_format: str) -> str:
    return datetime.now().strftime(time_format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # `ensure_ascii` is accepted and not obeyed: an escaped mark could not be taken out again
    return json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=16)
def variables(source: str) -> frozenset[str]:
    """Return the names that the template expects to be given; none for one that cannot be read,
    which `rendered` tells."""
    environment = _environment()
    try:
        names = meta.find_undeclared_variables(environment.parse(source))
    except Exception:
        return frozenset()
    return frozenset(names).difference(environment.globals)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_ERROR_CHARACTERS else text[:_MAX_ERROR_CHARACTERS] + "..."


def rendered(source: str, variables: dict[str, Any]) -> str:
    """Return the text the template makes of the variables; any failure is a PromptError."""
    try:
        template = _compiled(source)
    except Exception as error:
        raise PromptError(
            f"the model's chat template cannot be read: {_one_line(error)}",
            hint="generate --raw sends a prompt without a template",
        ) from error
    try:
        return template.render(variables)
    except TemplateError as error:
        raise PromptError(f"the chat template rejects the messages: {_one_line(error)}") from error
    except Exception as error:  # a template can fail in as many ways as any program
        raise PromptError(
            f"the chat template fails on the messages: {type(error).__name__}: {_one_line(error)}"
        ) from error
