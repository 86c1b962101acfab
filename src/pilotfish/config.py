"""Configuration: frozen values with strict readers. An option nobody knows is an error."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, TypeVar

from pilotfish.errors import ConfigError, near_name
from pilotfish.types import (
    DraftWish,
    SamplingSettings,
    StructuralTags,
    require,
    require_in_range,
    require_number,
)

DRAFTERS = ("auto", "none", "suffix", "ngram", "model", "prediction")
CONTROLLERS = ("auto", "fixed")
VERIFY_RULES = ("match", "token")
BACKENDS = ("auto", "native", "llama")
CACHE_TYPES = ("f16", "f32", "q8_0")
DEFAULT_MAX_TOKENS = 512
# tokens of context a model gets unless told otherwise, if it was trained for as many
DEFAULT_CONTEXT = 4096
DEFAULT_DRAFT_HEAD_SIZE = 65_536

T = TypeVar("T")
EndRule: TypeAlias = Callable[[str], bool]


def _strict(kind: type[T], raw: Mapping[str, Any], what: str) -> T:
    _known(raw, [f.name for f in fields(kind)], what)  # type: ignore[arg-type]
    missing = [f.name for f in fields(kind) if _required(f) and f.name not in raw]  # type: ignore[arg-type]
    if missing:
        raise ConfigError(f"{what} option missing: {', '.join(missing)}")
    return kind(**raw)


def _known(raw: Iterable[str], known: Iterable[str], what: str) -> None:
    known = list(known)
    for name in raw:
        if name not in known:
            near = near_name(name, known)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"unknown {what} option: {name}", hint=hint)


def _required(option: Field[Any]) -> bool:
    return option.default is MISSING and option.default_factory is MISSING


def _table(raw: object, what: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{what} must be a table of options, got {raw!r}")
    return raw


def _text(name: str, value: object, wanted: str) -> None:
    require(isinstance(value, str) and bool(value), name, value, wanted)


def _switch(name: str, value: object) -> None:
    require(isinstance(value, bool), name, value, "true or false")


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    require(value in allowed, name, value, "one of " + ", ".join(allowed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """One model: where it is and how it runs. Target and draft may differ in everything here.

    `context_size` and `batch_size` are in tokens; None for `context_size` is as many as the model
    was trained for, at most 4096, for `threads` the physical cores given to this process.
    `batch_size` and `cache_type` q8_0 are for the llama backend.
    """

    reference: str
    backend: str = "auto"
    context_size: int | None = None
    threads: int | None = None
    batch_size: int = 512
    cache_type: str = "f16"

    def __post_init__(self) -> None:
        _text("reference", self.reference, "a name, path or hub id")
        _one_of("backend", self.backend, BACKENDS)
        _one_of("cache_type", self.cache_type, CACHE_TYPES)
        for name in ("context_size", "threads", "batch_size"):
            value = getattr(self, name)
            if value is not None:
                require_in_range(name, value, "a whole number above 0", low=1, whole=True)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any] | str) -> ModelConfig:
        """Return the config from a mapping, or from a bare reference."""
        if isinstance(raw, str):
            return cls(reference=raw)
        return _strict(cls, _table(raw, "a model"), "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationConfig:
    """How drafting is done.

    The controller `auto` drafts as many tokens as measured costs say, `num_speculative_tokens` at
    most; `fixed` drafts that many in every round. None is as many as a pass may hold for `auto`
    and the backend's default for `fixed`; 0 turns drafting off.

    On the native backend a draft model keeps `draft_head_size` tokens in its head (0: all), and,
    with `draft_requantize`, at most 4 bits a weight. Both make drafts cheaper, and change replies
    as little as any other draft model would: not at all.
    """

    drafter: str = "auto"
    num_speculative_tokens: int | None = None
    controller: str = "auto"
    verify: str = "match"
    strict: bool = False
    draft_head_size: int = DEFAULT_DRAFT_HEAD_SIZE
    draft_requantize: bool = True

    def __post_init__(self) -> None:
        _one_of("drafter", self.drafter, DRAFTERS)
        _one_of("controller", self.controller, CONTROLLERS)
        _one_of("verify", self.verify, VERIFY_RULES)
        _switch("strict", self.strict)
        _switch("draft_requantize", self.draft_requantize)
        if self.num_speculative_tokens is not None:
            self._check("num_speculative_tokens", "a whole number, 0 (off) or more")
        self._check("draft_head_size", "a whole number, 0 (all tokens) or more")

    def _check(self, name: str, wanted: str) -> None:
        require_in_range(name, getattr(self, name), wanted, low=0, whole=True)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> SpeculationConfig:
        """Return the config from a mapping; ConfigError names an unknown key."""
        return _strict(cls, raw, "speculation")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything `build.load_engine` needs.

    max_sessions    replies that are made at once; others wait
    kept_sequences  texts of ended requests whose caches are kept for requests that begin alike; one
                    of them gives its place up to the last reply that may be made at once
    kept_tokens     tokens of all of them together, which bounds their memory
    """

    target: ModelConfig
    draft: ModelConfig | None = None
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    max_sessions: int = 1
    kept_sequences: int = 0
    kept_tokens: int = 65_536

    def __post_init__(self) -> None:
        require_number("max_sessions", self.max_sessions, "a whole number above 0", whole=True)
        require(self.max_sessions > 0, "max_sessions", self.max_sessions, "above 0")
        for name in ("kept_sequences", "kept_tokens"):
            wanted = "a whole number, 0 or more"
            require_in_range(name, getattr(self, name), wanted, low=0, whole=True)

    @property
    def num_places(self) -> int:
        """Return how many sequences each model must hold at once: one kept one is handed on, or
        dropped, when all others are in use, so that a chat needs no more memory than one reply."""
        return self.max_sessions + max(0, self.kept_sequences - 1)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> EngineConfig:
        """Return the config from nested mappings, as a TOML file gives them."""
        values = dict(raw)
        if "target" in values:
            values["target"] = ModelConfig.from_dict(values["target"])
        if values.get("draft") is not None:
            values["draft"] = ModelConfig.from_dict(values["draft"])
        if "speculation" in values:
            values["speculation"] = SpeculationConfig.from_dict(
                _table(values["speculation"], "speculation")
            )
        return _strict(cls, values, "engine")

    @classmethod
    def from_toml(cls, path: Path, *, defaults: Mapping[str, Any] | None = None) -> EngineConfig:
        """Return the config from a TOML file, with `defaults` for what it leaves out; ConfigError
        names the file if it cannot be read."""
        try:
            raw = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error
        return cls.from_dict({**(defaults or {}), **raw})


def cache_folder() -> Path:
    """Return the cache directory: PILOTFISH_CACHE, else below XDG_CACHE_HOME, else ~/.cache.

    Raises ConfigError where that takes a home folder the system does not know.
    """
    own = os.environ.get("PILOTFISH_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser().absolute()
        # the XDG specification says that a relative path is to be ignored
        base = Path(shared) if shared and Path(shared).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise ConfigError(
            f"the cache has no place, as the home folder is not known: {own or '~'}",
            hint="set PILOTFISH_CACHE to an absolute path",
        ) from error
    return base / "pilotfish"


class RequestOptions(TypedDict, total=False):
    """The keyword options of `generate` and `stream`; see `Request` and `SamplingSettings`."""

    max_tokens: int | None
    seed: int | None
    stop: str | Sequence[str]
    system: str | None
    raw: bool
    suffix: str | None
    drafter: str
    num_speculative_tokens: int | None
    json_schema: Mapping[str, Any] | bool | None
    template_options: Mapping[str, Any]
    continue_final_message: bool | None
    shown_tokens: Sequence[str]
    prediction: str | Sequence[int] | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    banned_tokens: tuple[int, ...]
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None


def no_end_rule() -> EndRule:
    """Return the rule of replies whose text alone ends nothing."""
    return lambda text: False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, checked: everything but the prompt.

    `max_tokens` None is as many as the context holds; `seed` None draws one; `raw` uses the
    prompt as it is, without a chat template, and with `suffix` what fills the gap between the two.
    `drafter` and `num_speculative_tokens` (a ceiling)
    narrow what the engine was loaded with; they change time, never text. `json_schema` is what
    the reply must be: an object of JSON Schema, True for any JSON, or schemas in tags. `end_rule`
    makes, for each reply, a rule that is given the text as each token adds to it and says when it
    is complete.
    `template_options` are values for what else the chat template reads, such as `enable_thinking`.
    Where the final message is one of the assistant the reply continues it, unless
    `continue_final_message` is False. `prediction` is what the reply is expected to be like, text
    or token ids: where it is right the reply comes sooner. `shown_tokens` are texts of control
    tokens that stand in the reply's text.
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    seed: int | None = None
    stop: tuple[str, ...] = ()
    system: str | None = None
    raw: bool = False
    suffix: str | None = None
    drafter: str = "auto"
    num_speculative_tokens: int | None = None
    json_schema: Mapping[str, Any] | bool | StructuralTags | None = None
    end_rule: Callable[[], EndRule] = no_end_rule
    shown_tokens: tuple[str, ...] = ()
    template_options: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool | None = None
    prediction: str | tuple[int, ...] | None = None
    settings: SamplingSettings = field(default_factory=SamplingSettings)

    @property
    def wish(self) -> DraftWish:
        """Return what the request asks of drafting; a prediction only once it is token ids."""
        return DraftWish(
            drafter=self.drafter,
            num_speculative_tokens=self.num_speculative_tokens,
            prediction=self.prediction if isinstance(self.prediction, tuple) else (),
        )

    def __post_init__(self) -> None:
        require(self.drafter in DRAFTERS, "drafter", self.drafter, "one of " + ", ".join(DRAFTERS))
        _ = self.wish  # checks its numbers
        if self.max_tokens is not None:
            wanted = "a whole number above 0"
            require_in_range("max_tokens", self.max_tokens, wanted, low=1, whole=True)
        if self.seed is not None:
            require_number("seed", self.seed, "a whole number", whole=True)
        _switch("raw", self.raw)
        require(isinstance(self.stop, tuple), "stop", self.stop, "text or a list of texts")
        for text in self.stop:
            _text("stop", text, "non-empty text")
        shown = self.shown_tokens
        are_texts = isinstance(shown, tuple) and all(isinstance(text, str) for text in shown)
        require(are_texts, "shown_tokens", shown, "a list of texts")
        if self.system is not None:
            require(isinstance(self.system, str), "system", self.system, "text")
        schema, wanted = self.json_schema, "an object of JSON Schema, or true"
        is_schema = schema is None or isinstance(schema, Mapping | bool | StructuralTags)
        require(is_schema, "json_schema", schema, wanted)
        options, wanted = self.template_options, "a mapping of names to values"
        are_named = isinstance(options, Mapping) and all(isinstance(one, str) for one in options)
        require(are_named, "template_options", options, wanted)
        if self.continue_final_message is not None:
            _switch("continue_final_message", self.continue_final_message)
        self._check_prediction()
        if self.raw and self.system is not None:
            raise ConfigError("system and raw exclude each other: a raw prompt has no roles")
        if self.suffix is not None:
            require(isinstance(self.suffix, str), "suffix", self.suffix, "text")
            if not self.raw:
                raise ConfigError("suffix needs raw: a chat has no gap to fill")
        if self.raw and (options or self.continue_final_message):
            name = "template_options" if options else "continue_final_message"
            raise ConfigError(f"{name} and raw exclude each other: a raw prompt has no template")

    def _check_prediction(self) -> None:
        prediction, wanted = self.prediction, "text or a list of token ids"
        if self.drafter == "prediction" and prediction is None:
            raise ConfigError(
                "drafter is prediction, and there is no prediction",
                hint="give one, or leave the drafter to be auto",
            )
        is_known = prediction is None or isinstance(prediction, str | tuple)
        require(is_known, "prediction", prediction, wanted)
        if isinstance(prediction, tuple):
            wrong = next((token for token in prediction if type(token) is not int), None)
            require(wrong is None, "prediction", wrong, wanted)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Request:
        """Return the request from keyword options; ConfigError names an unknown one."""
        own = {f.name for f in fields(cls)} - {"settings"}
        values = {name: options[name] for name in options if name in own}
        stop = values.get("stop") or ()
        if isinstance(stop, str):
            stop = (stop,)
        values["stop"] = tuple(stop) if isinstance(stop, Sequence) else stop
        for name in ("prediction", "shown_tokens"):
            if isinstance(values.get(name), list):
                values[name] = tuple(values[name])
        sampling = {name: options[name] for name in options if name not in own}
        _known(sampling, RequestOptions.__annotations__, "request")
        return cls(**values, settings=SamplingSettings(**sampling))
