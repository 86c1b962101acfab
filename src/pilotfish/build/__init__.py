"""Turns configuration into objects: the only room that knows all concrete parts."""

from __future__ import annotations

from pilotfish.build.files import (
    BackendChoice,
    Check,
    CheckedModel,
    CheckedPair,
    check_files,
    check_model,
    choose_backend,
)
from pilotfish.build.loading import (
    ModelPair,
    load_model,
    load_pair,
    pair_notices,
    require_truncation,
)
from pilotfish.build.parts import (
    DEFAULTS,
    MOST_DRAFTS,
    decides_by_cost,
    make_drafter,
    make_model_drafter,
    make_parts,
    number_of_drafts,
    text_engine,
)
from pilotfish.calibration import Progress
from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
from pilotfish.control.model_choice import draft_can_pay
from pilotfish.generation import TextEngine
from pilotfish.models import DEFAULT_TARGET

__all__ = [
    "DEFAULTS",
    "MOST_DRAFTS",
    "BackendChoice",
    "Check",
    "CheckedModel",
    "CheckedPair",
    "ModelPair",
    "check_files",
    "check_model",
    "choose_backend",
    "decides_by_cost",
    "load",
    "load_engine",
    "load_model",
    "load_pair",
    "make_drafter",
    "make_model_drafter",
    "make_parts",
    "number_of_drafts",
    "pair_notices",
    "require_truncation",
    "text_engine",
]


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
    kept_sequences: int = 0,
    progress: Progress | None = None,
) -> TextEngine:
    """Load a target model, and a draft model if one is named, and return an engine for text.

    References are names (`pilotfish models list`), paths or hub ids. `context_size` is in tokens
    (None: as many as the model was trained for, at most 4096), `max_sessions` how many replies may
    be generated at once, `kept_sequences` how many texts are kept for prompts that begin like
    them. Everything else of both models can be set apart with `EngineConfig` and `load_engine`.
    What passes cost is measured at the first load of a pair here,
    which takes from seconds to a minute; `progress` is told. Raises ModelError, ConfigError,
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
            kept_sequences=kept_sequences,
        ),
        progress=progress,
    )


def load_engine(
    config: EngineConfig, *, progress: Progress | None = None, check: Check | None = None
) -> TextEngine:
    """Load what the configuration names and return an engine for text.

    Before weights are read, `check` may look at what the headers say, and raise.

    What passes cost is measured the first time; `progress` is told. A draft model that could not
    pay even if it were nearly always right is not kept.
    """
    pair = load_pair(config, check=check)
    try:
        if pair.draft is not None and decides_by_cost(config.speculation):
            costs = pair.measured_costs(progress).costs
            number = number_of_drafts(
                config.speculation,
                max_width=pair.target.max_width,
                backend=pair.target.facts.backend,
            )
            if not draft_can_pay(costs, number):
                pair.drop_draft()
        return text_engine(pair, config.speculation, progress=progress)
    except BaseException:
        pair.close()
        raise
