"""The options that commands share, each written once, and the configurations they stand for.

A command takes a group of options as one parameter; `arguments.with_options` unfolds it. Numbers
arrive as they were typed: whether they are allowed is decided where it is decided for everybody, in
`config` and `types`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pilotfish import models
from pilotfish.cli.arguments import as_number, naming_options, option
from pilotfish.cli.schema_file import read_schema
from pilotfish.cli.template_options import ABOUT, parse_template_options
from pilotfish.config import (
    BACKENDS,
    DEFAULT_CONTEXT,
    DEFAULT_DRAFT_HEAD_SIZE,
    DEFAULT_MAX_TOKENS,
    DRAFTERS,
    VERIFY_RULES,
    EngineConfig,
    ModelConfig,
    Request,
    RequestOptions,
    SpeculationConfig,
)
from pilotfish.errors import ConfigError, ModelFileError, UnknownModel

T = TypeVar("T", ModelConfig, SpeculationConfig)

_MODEL, _SPECULATION, _SAMPLING, _OUTPUT = "Model", "Speculation", "Sampling", "Output"


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which models to load and how to draft; None is "not given"."""

    target: Annotated[
        str | None,
        option(
            "--target",
            "-m",
            panel=_MODEL,
            metavar="REF",
            about="The model: a name, a .gguf file, org/repo[:Q4_K_M], or a hub address.  "
            f"Default: {models.DEFAULT_TARGET}.",
        ),
    ] = None
    draft: Annotated[
        str | None,
        option(
            "--draft",
            "-d",
            panel=_MODEL,
            metavar="REF",
            about="A small model that drafts, or none.  Default: with the default target "
            f"{models.DEFAULT_DRAFT} where it is downloaded, else none.",
        ),
    ] = None
    backend: Annotated[
        str | None,
        option(
            "--backend",
            panel=_MODEL,
            metavar="NAME",
            about=f"{', '.join(BACKENDS)}: native where it can run the file.",
        ),
    ] = None
    threads: Annotated[
        str | None,
        option("--threads", panel=_MODEL, metavar="N", about="Default: the physical cores."),
    ] = None
    ctx: Annotated[
        str | None,
        option(
            "--ctx",
            panel=_MODEL,
            metavar="N",
            about="Context size in tokens.  Default: as the model was trained, at most "
            f"{DEFAULT_CONTEXT}.",
        ),
    ] = None
    config: Annotated[
        str | None,
        option(
            "--config",
            panel=_MODEL,
            metavar="FILE",
            about="A TOML file with these settings; options given here win.",
        ),
    ] = None
    drafter: Annotated[
        str | None,
        option(
            "--drafter",
            panel=_SPECULATION,
            metavar="NAME",
            about=f"Who drafts: {', '.join(DRAFTERS)}.  Default: {DRAFTERS[0]}.",
        ),
    ] = None
    num_speculative_tokens: Annotated[
        str | None,
        option(
            "--num-speculative-tokens",
            panel=_SPECULATION,
            metavar="N",
            about="Most draft tokens in a round; 0 is off.  Default: as many as pay.",
        ),
    ] = None
    verify: Annotated[
        str | None,
        option(
            "--verify",
            panel=_SPECULATION,
            metavar="RULE",
            about=f"{' or '.join(VERIFY_RULES)}: the same text by seed, or the same law.",
        ),
    ] = None
    strict: Annotated[
        bool,
        option(
            "--strict",
            panel=_SPECULATION,
            about="Only passes that agree bit for bit; on llama slower, on native always so.",
        ),
    ] = False
    draft_head_size: Annotated[
        str | None,
        option(
            "--draft-head-size",
            panel=_SPECULATION,
            metavar="N",
            about="Tokens a native draft model chooses from, the context's besides; 0 is all.  "
            f"Default: {DEFAULT_DRAFT_HEAD_SIZE}.",
        ),
    ] = None
    no_draft_requantize: Annotated[
        bool,
        option(
            "--no-draft-requantize",
            panel=_SPECULATION,
            about="Keep a native draft model's weights as they are, not in 4 bits.",
        ),
    ] = False

    def engine_config(self, defaults: Mapping[str, Any] | None = None) -> EngineConfig:
        """Return the configuration the options stand for, with `defaults` for what neither they nor
        a file set; ConfigError names the wrong option."""
        base = _base_config(self.config, defaults or {})
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
                draft_head_size=as_number(self.draft_head_size),
                draft_requantize=False if self.no_draft_requantize else None,
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
        default = models.NamedReference(models.NAMED_MODELS[models.DEFAULT_TARGET])
        if not usable or self.config or models.parse_reference(target.reference) != default:
            return None
        if self.drafter is None and not _is_here(models.DEFAULT_DRAFT):
            return None
        return ModelConfig(reference=models.DEFAULT_DRAFT)


@dataclass(frozen=True, kw_only=True)
class ReplyOptions:
    """How a reply is made: its limits and the sampler."""

    max_tokens: Annotated[
        str,
        option(
            "--max-tokens",
            panel=_SAMPLING,
            metavar="N",
            about=f"Longest reply.  Default: {DEFAULT_MAX_TOKENS}.",
        ),
    ] = str(DEFAULT_MAX_TOKENS)
    temperature: Annotated[
        str | None,
        option(
            "--temperature",
            panel=_SAMPLING,
            metavar="X",
            about="0 takes the likeliest token (default); 1 is the model's own law.",
        ),
    ] = None
    top_k: Annotated[
        str | None,
        option("--top-k", panel=_SAMPLING, metavar="N", about="Keep the N likeliest; 0 is off."),
    ] = None
    top_p: Annotated[
        str | None,
        option(
            "--top-p", panel=_SAMPLING, metavar="P", about="Keep this much probability; 1 is off."
        ),
    ] = None
    min_p: Annotated[
        str | None,
        option(
            "--min-p",
            panel=_SAMPLING,
            metavar="P",
            about="Drop what is less likely than P times the likeliest.",
        ),
    ] = None
    repetition_penalty: Annotated[
        str | None,
        option(
            "--repetition-penalty",
            panel=_SAMPLING,
            metavar="X",
            about="Above 1 disfavours tokens of prompt and reply.",
        ),
    ] = None
    presence_penalty: Annotated[
        str | None,
        option(
            "--presence-penalty",
            panel=_SAMPLING,
            metavar="X",
            about="Taken off tokens the reply has.",
        ),
    ] = None
    frequency_penalty: Annotated[
        str | None,
        option(
            "--frequency-penalty",
            panel=_SAMPLING,
            metavar="X",
            about="The same, once for each time.",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        option(
            "--logit-bias",
            panel=_SAMPLING,
            metavar="ID=VALUE",
            about="Add VALUE to a token's logit; repeatable.",
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        option(
            "--stop",
            panel=_SAMPLING,
            metavar="TEXT",
            about="End before this text, or this control token; repeatable.",
        ),
    ] = None
    seed: Annotated[
        str | None,
        option("--seed", panel=_SAMPLING, metavar="N", about="The same seed gives the same text."),
    ] = None
    system: Annotated[
        str | None,
        option("--system", panel=_SAMPLING, metavar="TEXT", about="The system message."),
    ] = None
    raw: Annotated[
        bool,
        option("--raw", panel=_SAMPLING, about="Send the prompt as it is: no chat template."),
    ] = False
    json_schema: Annotated[
        str | None,
        option(
            "--json-schema",
            panel=_SAMPLING,
            metavar="SCHEMA",
            about="Reply with JSON that satisfies this JSON Schema: a file, or the schema itself.",
        ),
    ] = None
    template_option: Annotated[
        list[str] | None,
        option("--template-option", panel=_SAMPLING, metavar="NAME=VALUE", about=ABOUT),
    ] = None
    logprobs: Annotated[
        str | None,
        option(
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
        given["template_options"] = parse_template_options(self.template_option or ())
        if self.json_schema is not None:
            given["json_schema"] = read_schema(self.json_schema)
        with naming_options():
            Request.from_options(given)
        return cast(RequestOptions, given)


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown, and how."""

    color: Annotated[
        bool,
        option("--color", panel=_OUTPUT, about="Paint each token by who drafted it."),
    ] = False
    json: Annotated[
        bool,
        option("--json", panel=_OUTPUT, about="Print one JSON document."),
    ] = False
    verbose: Annotated[
        bool,
        option("--verbose", panel=_OUTPUT, about="Statistics always; tracebacks of errors."),
    ] = False


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


def _is_here(reference: str) -> bool:
    """Return whether the default draft is downloaded; ModelFileError if it is damaged, as a lost
    draft model must not look like one that was never there."""
    try:
        models.resolve(reference)
    except UnknownModel:
        return False
    except ModelFileError as error:
        raise ModelFileError(
            str(error), hint=f"{error.hint}, or go on without it: --draft none"
        ) from error
    return True


def _base_config(path: str | None, defaults: Mapping[str, Any]) -> EngineConfig:
    if path is None:
        return EngineConfig(target=ModelConfig(reference=models.DEFAULT_TARGET), **defaults)
    return EngineConfig.from_toml(Path(path), defaults=defaults)


def _given(config: T, **values: Any) -> T:
    """Return the config with those values replaced that were given."""
    return replace(config, **{name: value for name, value in values.items() if value is not None})
