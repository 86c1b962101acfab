"""From arguments to values: groups of options, numbers, messages that name the option."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from pilotfish.errors import ConfigError

# fields whose option has another name; the others differ in dashes only
_FLAGS = {
    "model reference": "--target",
    "context_size": "--ctx",
    "cors_origins": "--cors-origin",
    "allowed_hosts": "--allowed-host",
    "logit_bias token id": "--logit-bias: the token id",
    "logit_bias value": "--logit-bias: the value",
}


def option(*names: str, panel: str, about: str, metavar: str = " ") -> Any:
    """Return an option on a panel of the help page; a flag takes no value, and the blank keeps
    Typer from printing a type."""
    return typer.Option(
        *names, metavar=metavar, help=about, rich_help_panel=panel, show_default=False
    )


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with one option for each field of its dataclass parameters."""
    hints = typing.get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {
        name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _field_parameters(groups[name])
        else:
            keyword = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(kind=keyword, annotation=hints[name]))

    @functools.wraps(command)
    def unfolded(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{f.name: values.pop(f.name) for f in dataclasses.fields(kind)})
        command(**values)

    unfolded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    unfolded.__annotations__ = {one.name: one.annotation for one in parameters}
    return unfolded


def _field_parameters(kind: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]


def as_number(text: str | None) -> Any:
    """Return the number that was typed, or the text itself, which the check then refuses."""
    for kind in (int, float):
        try:
            return None if text is None else kind(text)
        except ValueError:
            continue
    return text


@contextmanager
def naming_options() -> Iterator[None]:
    """Turn the name of a field in an error into that of the option it came from."""
    try:
        yield
    except ConfigError as error:
        found = re.match(r"([a-z_]+(?: reference| token id| value)?) must be ", str(error))
        if found is None:
            raise
        name = found[1]
        flag = _FLAGS.get(name, "--" + name.replace("_", "-"))
        message = flag + str(error)[len(name) :]
        raise type(error)(message, hint=error.hint) from error
