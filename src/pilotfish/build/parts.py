"""Puts engines together over loaded models: drafters, controllers, and what replies say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pilotfish.accounting.cost_curve import PairCosts
from pilotfish.build.loading import ModelPair
from pilotfish.calibration import Progress
from pilotfish.config import EngineConfig, SpeculationConfig
from pilotfish.control.cost_aware import CostAwareController
from pilotfish.control.fixed import FixedController
from pilotfish.drafters.forced import ForcedDrafter
from pilotfish.drafters.hybrid import HybridDrafter
from pilotfish.drafters.model import ModelDrafter
from pilotfish.drafters.ngram import NgramDrafter
from pilotfish.drafters.none import NoDrafter
from pilotfish.drafters.prediction import PredictionDrafter
from pilotfish.drafters.suffix import SuffixDrafter
from pilotfish.engine.engine import PROMPT_CHUNK_TOKENS, Engine
from pilotfish.generation import Facts, TextEngine
from pilotfish.prefixes import PrefixPool
from pilotfish.protocols import Controller, Drafter, TargetModel

if TYPE_CHECKING:
    from pilotfish.build.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class BackendDefaults:
    """How many tokens are drafted in a round, and how likely a draft from text must be.

    Both follow the price of a row of a pass where it is not to be measured.
    """

    num_speculative_tokens: int
    text_min_probability: float


# the most drafts of a round where the controller decides
MOST_DRAFTS = 31
# a text's draft ends where it is less likely than this to be right so far
_LEAST_SURVIVAL = 0.03
# where drafters speak in turn, a prediction that lost its place leaves it to the others
_LEAST_FIRST_SURVIVAL = 0.3
# with these settings a request's prediction is drafted from
_PREDICTING = ("auto", "prediction")

DEFAULTS = {
    # four rows cost what one costs, eight cost about one and a half
    "native": BackendDefaults(7, 0.1),
    # four rows fill one group of the kernels and cost three, and the next is a dear one: a draft
    # must be more likely than not to stand
    "llama": BackendDefaults(3, 0.6),
}


def text_engine(
    pair: ModelPair, speculation: SpeculationConfig, *, progress: Progress | None = None
) -> TextEngine:
    """Return an engine over loaded models; several may share a pair, one at a time. Closing it
    closes the pair."""
    drafter, controller = make_parts(
        pair.target,
        pair.draft,
        speculation,
        backend=pair.target.facts.backend,
        costs=lambda: pair.measured_costs(progress).costs,
        prefixes=None if pair.draft is None else kept_prefixes(pair.draft, pair.config),
    )
    notices = list(pair.notices)  # measuring may have added some
    if pair.config.kept_sequences and not pair.target.can_truncate:
        notices.append(
            "the model keeps recurrent state: nothing is kept for prompts that begin alike"
        )
    asked = speculation.num_speculative_tokens
    if asked is not None and asked >= pair.target.max_width:
        notices.append(
            f"a pass holds {pair.target.max_width} rows: at most {pair.target.max_width - 1} "
            "tokens are drafted in a round"
        )
    target = pair.target
    # where rows do not depend on the pass they are in, beginnings can be cut anywhere; strict mode
    # keeps replies to one class of widths, and prompts are in another
    is_free = target.facts.backend == "native" and target.exactness["level"] == "bit-identical"
    unit = 1 if is_free else PROMPT_CHUNK_TOKENS
    engine = Engine(
        target=target,
        drafter=drafter,
        controller=controller,
        verify_rule=speculation.verify,
        prefixes=kept_prefixes(target, pair.config, unit=unit),
    )

    def close() -> None:
        if isinstance(controller, CostAwareController) and controller.costs.drifted:
            pair.forget_costs()
        pair.close()

    return TextEngine(
        engine,
        pair.target.tokenizer,
        facts=make_facts(pair, speculation, notices),
        close=close,
    )


def kept_prefixes(model: LoadedModel, config: EngineConfig, *, unit: int = 1) -> PrefixPool:
    """Return the pool of a model's caches; a draft model's may be cut anywhere, as drafts change
    no text. A model that cannot cut its caches keeps none."""
    return PrefixPool(
        model,
        most_sequences=config.kept_sequences if model.can_truncate else 0,
        most_tokens=config.kept_tokens,
        unit=unit,
    )


def decides_by_cost(speculation: SpeculationConfig) -> bool:
    """Return whether the number of drafts follows measured costs."""
    off = speculation.drafter == "none" or speculation.num_speculative_tokens == 0
    return speculation.controller == "auto" and not off


def make_parts(
    target: TargetModel,
    draft: TargetModel | None,
    speculation: SpeculationConfig,
    *,
    backend: str,
    costs: Callable[[], PairCosts],
    prefixes: PrefixPool | None = None,
) -> tuple[Drafter, Controller]:
    """Return who drafts and who decides how much, over any two models.

    backend  the target's, whose defaults hold where costs do not decide
    costs    gives the price of passes; asked only where they decide
    prefixes hands out the draft model's caches
    """
    number = number_of_drafts(speculation, max_width=target.max_width, backend=backend)
    if not decides_by_cost(speculation):
        drafter = make_drafter(target, draft, speculation, backend=backend, prefixes=prefixes)
        return (NoDrafter() if number == 0 else drafter), FixedController(number)
    both = make_cost_aware(
        target, draft, speculation, costs=costs(), number=number, prefixes=prefixes
    )
    return both, both


def make_cost_aware(
    target: TargetModel,
    draft: TargetModel | None,
    speculation: SpeculationConfig,
    *,
    costs: PairCosts,
    number: int,
    prefixes: PrefixPool | None = None,
) -> CostAwareController:
    """Return the controller, and drafter, that chooses among what the configuration allows."""
    text: Drafter = NoDrafter()
    if speculation.drafter == "ngram":
        text = NgramDrafter()
    elif speculation.drafter in ("auto", "suffix"):
        # whether an unlikely draft is worth its rows is the controller's to say
        text = SuffixDrafter(min_probability=_LEAST_SURVIVAL)
    text, model = ForcedDrafter(text), None
    prediction = None
    if speculation.drafter in _PREDICTING:
        prediction = PredictionDrafter(min_probability=_LEAST_SURVIVAL)
    if draft is not None and speculation.drafter in ("auto", "model"):
        model = make_model_drafter(target, draft, prefixes)
    return CostAwareController(
        costs, text=text, prediction=prediction, model=model, num_speculative_tokens=number
    )


def number_of_drafts(speculation: SpeculationConfig, *, max_width: int, backend: str) -> int:
    """Return how many tokens are drafted in a round at most; a pass holds `max_width` rows."""
    number = speculation.num_speculative_tokens
    if number is None and speculation.controller == "fixed":
        return DEFAULTS[backend].num_speculative_tokens
    return min(MOST_DRAFTS if number is None else number, max_width - 1)


def make_drafter(
    target: TargetModel,
    draft: TargetModel | None,
    speculation: SpeculationConfig,
    *,
    backend: str,
    prefixes: PrefixPool | None = None,
) -> Drafter:
    """Return the drafter the configuration names; `auto` is prediction, else suffix, else model,
    else none."""
    drafter, least = speculation.drafter, DEFAULTS[backend].text_min_probability
    if drafter == "none":
        return NoDrafter()
    texts: list[Drafter] = []
    if drafter in _PREDICTING:
        texts.append(PredictionDrafter(min_probability=max(least, _LEAST_FIRST_SURVIVAL)))
    if drafter == "ngram":
        texts.append(NgramDrafter())
    elif drafter in ("auto", "suffix") or (drafter == "model" and draft is None):
        texts.append(SuffixDrafter(min_probability=least))
    text = ForcedDrafter(HybridDrafter(texts))
    if drafter not in ("auto", "model") or draft is None:
        return text
    return HybridDrafter([text, make_model_drafter(target, draft, prefixes)])


def possible_drafters(speculation: SpeculationConfig, *, has_draft_model: bool) -> tuple[str, ...]:
    """Return who can draft under the configuration; nobody where that is `none`, or a draft model
    that is not there."""
    named = {"auto": ("prediction", "suffix", "model"), "none": ()}
    drafters = named.get(speculation.drafter, (speculation.drafter,))
    return tuple(name for name in drafters if name != "model" or has_draft_model)


def make_model_drafter(
    target: TargetModel, draft: TargetModel, prefixes: PrefixPool | None = None
) -> ModelDrafter:
    """Return the drafter of a draft model."""
    head = getattr(draft, "head", None)  # models of llama.cpp have whole heads
    return ModelDrafter(draft, vocab_size=target.vocab_size, head=head, prefixes=prefixes)


def make_facts(pair: ModelPair, speculation: SpeculationConfig, notices: list[str]) -> Facts:
    """Return what replies say about the loaded parts, read from the loaded objects."""
    target, draft = pair.target, pair.draft
    number = number_of_drafts(speculation, max_width=target.max_width, backend=target.facts.backend)
    off = speculation.drafter == "none" or number == 0
    drafters = () if off else possible_drafters(speculation, has_draft_model=draft is not None)
    reason = "turned off"
    if not off:
        kind = "by measured cost" if decides_by_cost(speculation) else "fixed"
        reason = f"{kind}: up to {number} tokens a round" if drafters else ""
    return Facts(
        exactness=target.exactness,
        models={
            "target": target.facts.to_dict(),
            "draft": None if draft is None else draft.facts.to_dict(),
        },
        notices=tuple(notices),
        speculation_on=bool(drafters),
        speculation_reason=reason,
        drafters=drafters,
        lost=pair.lost,
        target_size=pair.target_size,
        draft_size=pair.draft_size,
    )
