"""Turns configuration into objects: the only module that knows all concrete parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pilotfish import models
from pilotfish.backends.vocabulary import check_vocabularies
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import Engine
from pilotfish.errors import CacheNotTruncatable, ConfigError
from pilotfish.generation import Facts, TextEngine
from pilotfish.models import DEFAULT_TARGET
from pilotfish.protocols import Drafter

if TYPE_CHECKING:
    from pilotfish.backends.llama import LlamaModel

# While nothing is measured: with the pending token these fill one group of rows of llama.cpp's
# kernels, the last width before rows get dear.
DEFAULT_NUM_SPECULATIVE_TOKENS = 3
# on kernels where rows are dear, a draft from text must be more likely than not to stand
TEXT_MIN_PROBABILITY = 0.6


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
    speculation = config.speculation
    uses_draft = config.draft is not None and speculation.drafter in ("auto", "model")
    if speculation.drafter == "model" and config.draft is None:
        raise ConfigError("--drafter model needs a draft model", hint="name one with --draft")
    target = load_model(config.target, config, strict=speculation.strict)
    draft = None
    try:
        notices = list(target.notices)
        if speculation.drafter != "none":
            require_truncation(target, role="target")
        if uses_draft and config.draft is not None:
            draft = load_model(config.draft, config, strict=False)
            require_truncation(draft, role="draft")
            notices += pair_notices(target, draft)
        if number_of_drafts(speculation) >= target.max_width:
            notices.append(
                f"a pass holds {target.max_width} rows: at most {target.max_width - 1} tokens are "
                "drafted in a round"
            )
        drafter = make_drafter(speculation, draft, vocab_size=target.vocab_size)
        engine = Engine(
            target=target,
            drafter=drafter,
            controller=FixedController(number_of_drafts(speculation)),
            verify_rule=speculation.verify,
        )
    except BaseException:
        close_models(target, draft)
        raise
    return TextEngine(
        engine,
        target.tokenizer,
        facts=make_facts(speculation, target, draft, notices),
        close=lambda: close_models(target, draft),
    )


def load_model(config: ModelConfig, engine: EngineConfig, *, strict: bool) -> LlamaModel:
    """Return the loaded model of one side of the pair."""
    from pilotfish.backends.llama import LlamaModel

    return LlamaModel(
        models.resolve(config.reference),
        context_size=config.context_size,
        max_sessions=engine.max_sessions,
        threads=config.threads,
        batch_size=config.batch_size,
        cache_type=config.cache_type,
        strict=strict,
    )


def pair_notices(target: LlamaModel, draft: LlamaModel) -> list[str]:
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


def require_truncation(model: LlamaModel, *, role: str) -> None:
    """Raise CacheNotTruncatable, before the first token, if rejected tokens would stay."""
    if not model.can_truncate:
        raise CacheNotTruncatable(
            f"the {role} model keeps recurrent state and cannot discard rejected tokens",
            hint="run it with --drafter none" if role == "target" else "choose another draft model",
        )


def number_of_drafts(speculation: SpeculationConfig) -> int:
    """Return how many tokens are drafted in a round at most."""
    number = speculation.num_speculative_tokens
    return DEFAULT_NUM_SPECULATIVE_TOKENS if number is None else number


def make_drafter(
    speculation: SpeculationConfig, draft: LlamaModel | None, *, vocab_size: int
) -> Drafter:
    """Return the drafter the configuration names; `auto` is suffix, else model, else none."""
    if speculation.drafter == "none" or number_of_drafts(speculation) == 0:
        return NoDrafter()
    if speculation.drafter == "ngram":
        return NgramDrafter()
    suffix = SuffixDrafter(min_probability=TEXT_MIN_PROBABILITY)
    if speculation.drafter == "suffix":
        return suffix
    if draft is None:
        return suffix
    model = ModelDrafter(draft, vocab_size=vocab_size)
    return model if speculation.drafter == "model" else HybridDrafter([suffix, model])


def make_facts(
    speculation: SpeculationConfig,
    target: LlamaModel,
    draft: LlamaModel | None,
    notices: list[str],
) -> Facts:
    """Return what replies say about the loaded parts, read from the loaded objects."""
    described: dict[str, Any] = {
        "target": target.facts.to_dict(),
        "draft": None if draft is None else draft.facts.to_dict(),
    }
    number = number_of_drafts(speculation)
    off = speculation.drafter == "none" or number == 0
    return Facts(
        exactness=target.exactness,
        models=described,
        notices=tuple(notices),
        speculation_on=not off,
        speculation_reason="turned off" if off else f"fixed: up to {number} tokens a round",
    )


def close_models(*loaded: LlamaModel | None) -> None:
    """Free the models that were loaded."""
    for model in loaded:
        if model is not None:
            model.close()
