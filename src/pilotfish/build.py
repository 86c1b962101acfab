"""Turns configuration into objects: the only module that knows all concrete parts."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pilotfish import gguf, models
from pilotfish.backends.vocabulary import check_vocabularies
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import (
    CacheNotTruncatable,
    ConfigError,
    MissingExtra,
    ModelError,
    StrictUnavailable,
)
from pilotfish.generation import Facts, TextEngine
from pilotfish.gguf import GgufHeader
from pilotfish.models import DEFAULT_TARGET
from pilotfish.protocols import Drafter

if TYPE_CHECKING:
    from pilotfish.backends.llama import LlamaModel
    from pilotfish.backends.native import NativeModel

    LoadedModel: TypeAlias = LlamaModel | NativeModel


@dataclass(frozen=True, slots=True)
class BackendDefaults:
    """How many tokens are drafted in a round, and how likely a draft from text must be.

    Both follow the price of a row of a pass, while nothing is measured.
    """

    num_speculative_tokens: int
    text_min_probability: float


DEFAULTS = {
    # four rows cost what one costs, eight cost about one and a half
    "native": BackendDefaults(7, 0.1),
    # four rows fill one group of the kernels and cost three, and the next is a dear one: a draft
    # must be more likely than not to stand
    "llama": BackendDefaults(3, 0.6),
}


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """Which backend runs a file.

    reason   why `auto` did not take the native one; empty where it did, or where one was named
    header   the file's, where it had to be read
    """

    backend: str
    reason: str = ""
    header: GgufHeader | None = None


def load(
    target: str = DEFAULT_TARGET,
    *,
    draft: str | None = None,
    drafter: str = "auto",
    num_speculative_tokens: int | None = None,
    verify: str = "match",
    strict: bool = False,
    backend: str = "auto",
    threads: int | None = None,
    context_size: int | None = None,
    max_sessions: int = 1,
) -> TextEngine:
    """Load a target model, and a draft model if one is named, and return an engine for text.

    References are names (`pilotfish models list`), paths or hub ids. `context_size` is in tokens,
    `max_sessions` how many replies may be generated at once. Everything else of both models can
    be set apart with `EngineConfig` and `load_engine`. Raises ModelError, ConfigError,
    StrictUnavailable or MissingExtra.
    """

    def model(reference: str) -> ModelConfig:
        return ModelConfig(
            reference=reference, backend=backend, threads=threads, context_size=context_size
        )

    speculation = SpeculationConfig(
        drafter=drafter,
        num_speculative_tokens=num_speculative_tokens,
        verify=verify,
        strict=strict,
    )
    return load_engine(
        EngineConfig(
            target=model(target),
            draft=None if draft is None else model(draft),
            speculation=speculation,
            max_sessions=max_sessions,
        )
    )


def load_engine(config: EngineConfig) -> TextEngine:
    """Load what the configuration names and return an engine for text."""
    pair = load_pair(config)
    try:
        return text_engine(pair, config.speculation)
    except BaseException:
        pair.close()
        raise


@dataclass(slots=True)
class ModelPair:
    """A loaded target and, where drafts may come from one, its draft model."""

    target: LoadedModel
    draft: LoadedModel | None
    notices: list[str]

    def close(self) -> None:
        """Free the models."""
        self.target.close()
        if self.draft is not None:
            self.draft.close()


def load_pair(config: EngineConfig) -> ModelPair:
    """Load the models a configuration needs; raises as `load` does."""
    speculation = config.speculation
    if speculation.drafter == "model" and config.draft is None:
        raise ConfigError("--drafter model needs a draft model", hint="name one with --draft")
    pair = ModelPair(load_model(config.target, config, strict=speculation.strict), None, [])
    try:
        pair.notices += pair.target.notices
        if speculation.drafter != "none":
            require_truncation(pair.target, role="target")
        if config.draft is not None and speculation.drafter in ("auto", "model"):
            pair.draft = load_model(config.draft, config, as_draft=True)
            require_truncation(pair.draft, role="draft")
            pair.notices += [*pair.draft.notices, *pair_notices(pair.target, pair.draft)]
    except BaseException:
        pair.close()
        raise
    return pair


def text_engine(pair: ModelPair, speculation: SpeculationConfig) -> TextEngine:
    """Return an engine over loaded models; several may share a pair, one at a time. Closing it
    closes the pair."""
    notices = list(pair.notices)
    number = number_of_drafts(speculation, pair.target)
    if number >= pair.target.max_width:
        notices.append(
            f"a pass holds {pair.target.max_width} rows: at most {pair.target.max_width - 1} "
            "tokens are drafted in a round"
        )
    engine = Engine(
        target=pair.target,
        drafter=make_drafter(speculation, pair.target, pair.draft),
        controller=FixedController(number),
        verify_rule=speculation.verify,
    )
    return TextEngine(
        engine,
        pair.target.tokenizer,
        facts=make_facts(speculation, pair.target, pair.draft, notices),
        close=pair.close,
    )


def choose_backend(config: ModelConfig, path: Path) -> BackendChoice:
    """Return the backend that runs the file `path` under the configuration.

    `auto` is native where that can run the file here, else llama. Raises ModelError when the
    native one was asked for and cannot, ModelFileError for a damaged file, and MissingExtra when
    the backend that is left is not installed.
    """
    if config.backend == "llama":
        return BackendChoice("llama")
    from pilotfish.backends import native

    reason = native.missing_reason()
    header = None
    if reason is None:
        header = gguf.check_file(path)
        reason = native.unsupported_reason(header)
    if reason is None and config.backend == "auto" and config.cache_type not in native.CACHE_TYPES:
        reason = f"cache type {config.cache_type} is kept there only"
    if reason is None:
        return BackendChoice("native", header=header)
    if config.backend == "native":
        raise ModelError(
            f"{path.name} does not run on the native backend: {reason}",
            hint="use --backend llama, or auto",
        )
    if find_spec("llama_cpp") is None:
        raise MissingExtra("llama", needed_for=f"{path.name} ({reason})")
    return BackendChoice("llama", reason)


def load_model(
    config: ModelConfig, engine: EngineConfig, *, strict: bool = False, as_draft: bool = False
) -> LoadedModel:
    """Return the loaded model of one side of the pair; raises as `load` does.

    `as_draft` makes it as small as the configuration says, where its backend can.
    """
    path = models.resolve(config.reference)
    choice = choose_backend(config, path)
    sizes: dict[str, Any] = {
        "context_size": config.context_size,
        "max_sessions": engine.max_sessions,
        "threads": config.threads,
        "cache_type": config.cache_type,
    }
    if choice.backend == "native":
        if as_draft:
            sizes["head_size"] = engine.speculation.draft_head_size
            sizes["requantize"] = engine.speculation.draft_requantize
        return load_native(path, choice.header, sizes, strict=strict)
    from pilotfish.backends.llama import LlamaModel

    model = LlamaModel(
        path,
        batch_size=config.batch_size,
        # llama.cpp keeps a quantised cache with this attention only
        flash_attention=config.cache_type.startswith("q"),
        strict=strict,
        **sizes,
    )
    if choice.reason:
        model.notices.append(f"{config.reference} runs on llama.cpp: {choice.reason}")
    return model


def load_native(
    path: Path, header: GgufHeader | None, sizes: dict[str, Any], *, strict: bool
) -> NativeModel:
    """Return a model on the native backend; StrictUnavailable if its self-check failed."""
    from pilotfish.backends.native import NativeModel

    model = NativeModel(path, header=header, **sizes)
    # this backend always keeps to bit-identical rows: strict mode has nothing to add
    if strict and model.exactness["level"] != "bit-identical":
        reason = model.exactness["reason"]
        model.close()
        raise StrictUnavailable(
            f"strict mode is not available for {path.name} here: {reason}",
            hint="leave out --strict, or use --backend llama",
        )
    return model


def pair_notices(target: LoadedModel, draft: LoadedModel) -> list[str]:
    """Return what a user should know about the pair; VocabularyMismatch if it cannot work."""
    notices = check_vocabularies(target.tokenizer, draft.tokenizer)
    if draft.facts.path == target.facts.path:
        notices.append("draft and target are the same file: drafting cannot save time")
    if draft.context_size < target.context_size:
        notices.append(
            f"the draft's context holds {draft.context_size} tokens, the target's "
            f"{target.context_size}: nothing is drafted beyond the smaller one"
        )
    return notices


def require_truncation(model: LoadedModel, *, role: str) -> None:
    """Raise CacheNotTruncatable, before the first token, if rejected tokens would stay."""
    if not model.can_truncate:
        raise CacheNotTruncatable(
            f"the {role} model keeps recurrent state and cannot discard rejected tokens",
            hint="run it with --drafter none" if role == "target" else "choose another draft model",
        )


def number_of_drafts(speculation: SpeculationConfig, target: LoadedModel) -> int:
    """Return how many tokens are drafted in a round at most."""
    number = speculation.num_speculative_tokens
    return DEFAULTS[target.facts.backend].num_speculative_tokens if number is None else number


def make_drafter(
    speculation: SpeculationConfig, target: LoadedModel, draft: LoadedModel | None
) -> Drafter:
    """Return the drafter the configuration names; `auto` is suffix, else model, else none."""
    if speculation.drafter == "none" or number_of_drafts(speculation, target) == 0:
        return NoDrafter()
    if speculation.drafter == "ngram":
        return NgramDrafter()
    suffix = SuffixDrafter(min_probability=DEFAULTS[target.facts.backend].text_min_probability)
    if speculation.drafter == "suffix" or draft is None:
        return suffix
    head = getattr(draft, "head", None)  # models of llama.cpp have whole heads
    model = ModelDrafter(draft, vocab_size=target.vocab_size, head=head)
    return model if speculation.drafter == "model" else HybridDrafter([suffix, model])


def make_facts(
    speculation: SpeculationConfig,
    target: LoadedModel,
    draft: LoadedModel | None,
    notices: list[str],
) -> Facts:
    """Return what replies say about the loaded parts, read from the loaded objects."""
    described: dict[str, Any] = {
        "target": target.facts.to_dict(),
        "draft": None if draft is None else draft.facts.to_dict(),
    }
    number = number_of_drafts(speculation, target)
    off = speculation.drafter == "none" or number == 0
    return Facts(
        exactness=target.exactness,
        models=described,
        notices=tuple(notices),
        speculation_on=not off,
        speculation_reason="turned off" if off else f"fixed: up to {number} tokens a round",
    )
