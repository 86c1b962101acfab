"""The options that commands share, each written once, and the configurations they stand for.

A command takes a group of options as one parameter; `with_options` unfolds it. Numbers arrive as
they were typed: whether they are allowed is decided where it is decided for everybody, in `config`
and `types`, and the message then names the option instead of the field.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pilotfish import models
from pilotfish.config import (
    BACKENDS,
    DEFAULT_MAX_TOKENS,
    DRAFTERS,
    VERIFY_RULES,
    EngineConfig,
    ModelConfig,
    Request,
    RequestOptions,
    SpeculationConfig,
)
from pilotfish.errors import ConfigError

T = TypeVar("T")

_MODEL, _SPECULATION, _SAMPLING, _OUTPUT = "Model", "Speculation", "Sampling", "Output"
_FLAGS = {
    "model reference": "--target",
    "context_size": "--ctx",
    "logit_bias token id": "--logit-bias: the token id",
    "logit_bias value": "--logit-bias: the value",
}


def _option(*names: str, panel: str, about: str, metavar: str = " ") -> Any:
    # a flag takes no value: the blank keeps Typer from printing a type
    return typer.Option(
        *names, metavar=metavar, help=about, rich_help_panel=panel, show_default=False
    )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which models to load and how to draft; None is "not given"."""

    target: Annotated[
        str | None,
        _option(
            "--target",
            "-m",
            panel=_MODEL,
            metavar="REF",
            about="The model: a name, a .gguf file, or org/repo[:file].  "
            f"Default: {models.DEFAULT_TARGET}.",
        ),
    ] = None
    draft: Annotated[
        str | None,
        _option(
            "--draft",
            "-d",
            panel=_MODEL,
            metavar="REF",
            about="A small model that drafts, or none.  Default with the default target: "
            f"{models.DEFAULT_DRAFT}; else none.",
        ),
    ] = None
    backend: Annotated[
        str | None,
        _option("--backend", panel=_MODEL, metavar="NAME", about=f"{', '.join(BACKENDS)}."),
    ] = None
    threads: Annotated[
        str | None,
        _option("--threads", panel=_MODEL, metavar="N", about="Default: the physical cores."),
    ] = None
    ctx: Annotated[
        str | None,
        _option("--ctx", panel=_MODEL, metavar="N", about="Context size in tokens."),
    ] = None
    config: Annotated[
        str | None,
        _option(
            "--config",
            panel=_MODEL,
            metavar="FILE",
            about="A TOML file with these settings; options given here win.",
        ),
    ] = None
    drafter: Annotated[
        str | None,
        _option(
            "--drafter",
            panel=_SPECULATION,
            metavar="NAME",
            about=f"Who drafts: {', '.join(DRAFTERS)}.  Default: {DRAFTERS[0]}.",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        str | None,
        _option(
            "--num-speculative-tokens",
            panel=_SPECULATION,
            metavar="N",
            about="Most draft tokens in a round; 0 is off.",
        ),
    ] = None
    verify: Annotated[
        str | None,
        _option(
            "--verify",
            panel=_SPECULATION,
            metavar="RULE",
            about=f"{' or '.join(VERIFY_RULES)}: the same text by seed, or the same law.",
        ),
    ] = None
    strict: Annotated[
        bool,
        _option(
            "--strict",
            panel=_SPECULATION,
            about="Only passes that agree bit for bit; slower.",
        ),
    ] = False

    def engine_config(self) -> EngineConfig:
        """Return the configuration the options stand for; ConfigError names the wrong option."""
        base = _base_config(self.config)
        models_alike = {
            "backend": self.backend,
            "threads": as_number(self.threads),
            "context_size": as_number(self.ctx),
        }
        with naming_options():
            target = _given(base.target, reference=self.target, **models_alike)
            speculation = _given(
                base.speculation,
                drafter=self.drafter,
                num_speculative_tokens=as_number(self.num_speculative_tokens),
                verify=self.verify,
                strict=self.strict or None,
            )
            draft = self._draft(base, target, speculation)
            if draft is not None:
                draft = _given(draft, **models_alike)
            config = replace(base, target=target, draft=draft, speculation=speculation)
        for model in (config.target, config.draft):
            if model is not None:
                models.parse_reference(model.reference)  # a misspelt name is told at once
        return config

    def _draft(
        self, base: EngineConfig, target: ModelConfig, speculation: SpeculationConfig
    ) -> ModelConfig | None:
        if self.draft is not None:
            if self.draft.casefold() == "none":
                return None
            draft = base.draft or ModelConfig(reference=self.draft)
            return replace(draft, reference=self.draft)
        if base.draft is not None:
            return base.draft
        usable = (
            speculation.drafter in ("auto", "model") and speculation.num_speculative_tokens != 0
        )
        if usable and target.reference.casefold() == models.DEFAULT_TARGET and not self.config:
            return ModelConfig(reference=models.DEFAULT_DRAFT)
        return None


@dataclass(frozen=True, kw_only=True)
class ReplyOptions:
    """How a reply is made: its limits and the sampler."""

    max_tokens: Annotated[
        str,
        _option(
            "--max-tokens",
            panel=_SAMPLING,
            metavar="N",
            about=f"Longest reply.  Default: {DEFAULT_MAX_TOKENS}.",
        ),
    ] = str(DEFAULT_MAX_TOKENS)
    temperature: Annotated[
        str | None,
        _option(
            "--temperature",
            panel=_SAMPLING,
            metavar="X",
            about="0 takes the likeliest token (default); 1 is the model's own law.",
        ),
    ] = None
    top_k: Annotated[
        str | None,
        _option("--top-k", panel=_SAMPLING, metavar="N", about="Keep the N likeliest; 0 is off."),
    ] = None
    top_p: Annotated[
        str | None,
        _option(
            "--top-p", panel=_SAMPLING, metavar="P", about="Keep this much probability; 1 is off."
        ),
    ] = None
    min_p: Annotated[
        str | None,
        _option(
            "--min-p",
            panel=_SAMPLING,
            metavar="P",
            about="Drop what is less likely than P times the likeliest.",
        ),
    ] = None
    repetition_penalty: Annotated[
        str | None,
        _option(
            "--repetition-penalty",
            panel=_SAMPLING,
            metavar="X",
            about="Above 1 disfavours tokens of prompt and reply.",
        ),
    ] = None
    presence_penalty: Annotated[
        str | None,
        _option(
            "--presence-penalty",
            panel=_SAMPLING,
            metavar="X",
            about="Taken off tokens the reply has.",
        ),
    ] = None
    frequency_penalty: Annotated[
        str | None,
        _option(
            "--frequency-penalty",
            panel=_SAMPLING,
            metavar="X",
            about="The same, once for each time.",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _option(
            "--logit-bias",
            panel=_SAMPLING,
            metavar="ID=VALUE",
            about="Add VALUE to a token's logit; repeatable.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        _option(
            "--stop", panel=_SAMPLING, metavar="TEXT", about="End before this text; repeatable."
        ),
    ] = None
    seed: Annotated[
        str | None,
        _option("--seed", panel=_SAMPLING, metavar="N", about="The same seed gives the same text."),
    ] = None
    system: Annotated[
        str | None,
        _option("--system", panel=_SAMPLING, metavar="TEXT", about="The system message."),
    ] = None
    raw: Annotated[
        bool,
        _option("--raw", panel=_SAMPLING, about="Send the prompt as it is: no chat template."),
    ] = False
    logprobs: Annotated[
        str | None,
        _option(
            "--logprobs",
            panel=_OUTPUT,
            metavar="N",
            about="With --json: log-probabilities of the N likeliest tokens.",
        ),
    ] = None

    def request_options(self) -> RequestOptions:
        """Return the keyword options of `TextEngine.stream`, checked; ConfigError otherwise."""
        numbers = (
            "max_tokens temperature top_k top_p min_p repetition_penalty presence_penalty "
            "frequency_penalty seed logprobs"
        )
        values: dict[str, Any] = {name: as_number(getattr(self, name)) for name in numbers.split()}
        values["stop"] = tuple(self.stop or ())
        values["system"] = self.system
        values["logit_bias"] = parse_logit_bias(self.logit_bias or ())
        given = {name: value for name, value in values.items() if value is not None}
        given["raw"] = self.raw
        with naming_options():
            Request.from_options(given)
        return typing.cast(RequestOptions, given)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown, and how."""

    color: Annotated[
        bool,
        _option("--color", panel=_OUTPUT, about="Paint each token by who drafted it."),
    ] = False
    json: Annotated[
        bool,
        _option("--json", panel=_OUTPUT, about="Print one JSON document."),
    ] = False
    verbose: Annotated[
        bool,
        _option("--verbose", panel=_OUTPUT, about="Statistics always; tracebacks of errors."),
    ] = False


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


def parse_logit_bias(entries: Sequence[str]) -> Mapping[int, float]:
    """Return the biases by token id; a later entry for the same token wins."""
    bias: dict[int, float] = {}
    for entry in entries:
        token, equals, value = entry.partition("=")
        token_id, number = as_number(token), as_number(value)
        if not equals or not isinstance(token_id, int) or not isinstance(number, int | float):
            raise ConfigError(
                f"--logit-bias must be ID=VALUE, got {entry!r}",
                hint="a token id and a number: --logit-bias 220=-5",
            )
        bias[token_id] = number
    return bias


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


def _base_config(path: str | None) -> EngineConfig:
    if path is None:
        return EngineConfig(target=ModelConfig(reference=models.DEFAULT_TARGET))
    return EngineConfig.from_toml(Path(path))


def _given(config: Any, **values: Any) -> Any:
    """Return the config with those values replaced that were given."""
    return replace(config, **{name: value for name, value in values.items() if value is not None})
