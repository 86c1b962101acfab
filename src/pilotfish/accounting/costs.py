"""The three costs of decoding: latency, compute and serving, from closed forms or from records.

They are three because they disagree: drafts save time, cost arithmetic, and take memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import mul
from typing import Any

from pilotfish.accounting.cost_model import Acceptance, RoundCosts, expected_tokens_per_round
from pilotfish.types import RoundRecord

NOT_MEASURED = "not measured"
# sources of drafts that take passes of a draft model
MODEL_SOURCES = frozenset({"model"})
_BYTES_PER_LOGIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a model holds and what its passes touch.

    parameters             weights that each row is multiplied with
    weight_bytes           all weights in memory
    step_bytes             weights that one pass reads, whatever its width
    cache_bytes_per_token  keys and values of one token
    vocabulary             entries of a row of logits; 0: unknown, and left out
    attention_flops_per_token  arithmetic of one row for each token of context, 4 x layers x heads
                           x head size; 0: unknown, and left out
    """

    parameters: int
    weight_bytes: int
    step_bytes: int
    cache_bytes_per_token: int
    vocabulary: int = 0
    attention_flops_per_token: float = 0.0


def multiplied_parameters(
    parameters: int, *, vocabulary: int, head_rows: int, width: int, is_tied: bool
) -> int:
    """Return how many of a file's `parameters` each row is multiplied with.

    vocabulary, head_rows  tokens of the file, and of the head as it is used
    width                  length of an embedding
    is_tied                whether the embedding is the head; of one beside the head a pass reads
                           rows, and multiplies with none
    """
    unused_rows = vocabulary - head_rows + (0 if is_tied else vocabulary)
    return parameters - unused_rows * width


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyCost:
    """What a request waits for. `speedup` is over plain decoding; None where that is unknown."""

    seconds_per_token: float | None
    speedup: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeCost:
    """What an emitted token takes of the machine; None is unknown.

    A pass that n requests share counts 1 / n for each. Rows are tokens the target evaluated after
    the prompt; wasted are those whose token was not emitted. Draft passes, and with them FLOPs and
    bytes, are *at least* so many: those that ended in no draft, and tokens the draft model read to
    catch up, leave no record.
    """

    target_passes_per_token: float | None
    verified_rows_per_token: float | None
    wasted_rows_per_token: float | None
    draft_passes_per_token: float | None
    flops_per_token: float | None
    bytes_read_per_token: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCost:
    """What it takes to offer this; None is unknown.

    memory_bytes  weights, caches at the longest context, and rows of logits, of both models
    price_per_million_tokens  in the currency of the price per hour
    energy_joules_per_token   of the whole processor, or "not measured"
    """

    memory_bytes: int | None
    tokens_per_second: float | None
    price_per_million_tokens: float | None
    energy_joules_per_token: float | str = NOT_MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The three costs of one way of decoding."""

    latency: LatencyCost
    compute: ComputeCost
    serving: ServingCost

    def to_dict(self) -> dict[str, Any]:
        """Return the costs as plain JSON values."""
        return asdict(self)


def side_by_side(*, plain: Costs, speculative: Costs) -> dict[str, Any]:
    """Return both as plain JSON values, each cost with `plain` and `speculative`."""
    both = {"plain": plain.to_dict(), "speculative": speculative.to_dict()}
    return {
        cost: {way: costs[cost] for way, costs in both.items()}
        for cost in ("latency", "compute", "serving")
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Passes of one model, summed over rounds.

    passes           weights read: one shared by n requests counts 1 / n
    rows             tokens evaluated
    context_tokens   cached tokens read: the context of every pass
    attended_tokens  the context of every row
    """

    passes: float = 0.0
    rows: float = 0.0
    context_tokens: float = 0.0
    attended_tokens: float = 0.0

    def flops(self, size: ModelSize) -> float:
        """Return floating-point operations: two for each weight and row, and the attention's."""
        attention = size.attention_flops_per_token * self.attended_tokens
        return 2.0 * size.parameters * self.rows + attention

    def bytes_read(self, size: ModelSize) -> float:
        """Return bytes of weights and caches."""
        return size.step_bytes * self.passes + size.cache_bytes_per_token * self.context_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoding:
    """What was decoded and what it took, summed over rounds.

    seconds         as the requests waited
    shared_seconds  a round of n requests counts 1 / n for each of them
    """

    emitted_tokens: float
    target: Passes
    draft: Passes
    seconds: float
    shared_seconds: float
    longest_context: int
    widest_pass: int
    num_sessions: int = 1


def predicted_costs(
    acceptance: Acceptance,
    num_draft_tokens: int,
    costs: RoundCosts,
    *,
    target: ModelSize | None = None,
    draft: ModelSize | None = None,
    price_per_hour: float | None = None,
    in_seconds: bool = True,
) -> Costs:
    """Return what closed forms say of decoding with `num_draft_tokens` a round; 0 is plain.

    Drafts come from a model if a draft token costs time or `draft` is given. `in_seconds` says
    whether `costs` are seconds; otherwise they are steps, and only ratios are known.
    """
    context, rows = costs.context, num_draft_tokens + 1
    by_model = costs.draft_seconds > 0 or draft is not None
    round_seconds = costs.round_seconds(num_draft_tokens)
    found = _costs(
        _Decoding(
            emitted_tokens=expected_tokens_per_round(acceptance, num_draft_tokens),
            target=Passes(
                passes=1, rows=rows, context_tokens=context, attended_tokens=rows * context
            ),
            draft=_draft_passes([(num_draft_tokens if by_model else 0, 1, context)]),
            seconds=round_seconds,
            shared_seconds=round_seconds,
            longest_context=context,
            widest_pass=rows,
        ),
        target=target,
        draft=draft if num_draft_tokens else None,
        plain_seconds_per_token=costs.step_seconds,
        price_per_hour=price_per_hour,
    )
    if in_seconds:
        return found
    serving = replace(found.serving, tokens_per_second=None, price_per_million_tokens=None)
    return replace(found, latency=replace(found.latency, seconds_per_token=None), serving=serving)


def costs_from_records(
    rounds: Sequence[RoundRecord],
    *,
    target: ModelSize | None = None,
    draft: ModelSize | None = None,
    prompt_tokens: int | Mapping[int, int] = 0,
    plain_seconds_per_token: float | None = None,
    price_per_hour: float | None = None,
    energy_joules: float | None = None,
) -> Costs:
    """Return what records say of decoding, of one request or of several.

    target, draft   sizes of the loaded models; without them only times and counts are known
    prompt_tokens   of each request, or by request id; contexts begin with them
    plain_seconds_per_token  of the same requests without drafts, for the speedup
    energy_joules   what the machine used meanwhile

    A model's draft of k tokens counts k passes: one more is possible (see `ComputeCost`).
    """
    contexts = _contexts(rounds, prompt_tokens)
    widths = [r.num_drafted + 1 for r in rounds]
    pairs = list(zip(rounds, contexts, strict=True))
    return _costs(
        _Decoding(
            emitted_tokens=sum(r.num_emitted for r in rounds),
            target=Passes(
                passes=sum(1 / r.num_sessions for r in rounds),
                rows=sum(widths),
                context_tokens=sum(contexts),
                attended_tokens=sum(map(mul, widths, contexts)),
            ),
            draft=_draft_passes(
                (r.num_drafted, r.num_sessions, context)
                for r, context in pairs
                if r.source in MODEL_SOURCES
            ),
            seconds=sum(r.round_seconds for r in rounds),
            shared_seconds=sum(r.round_seconds / r.num_sessions for r in rounds),
            longest_context=max((context + r.num_emitted for r, context in pairs), default=0),
            widest_pass=max(widths, default=0),
            num_sessions=max((r.num_sessions for r in rounds), default=0),
        ),
        target=target,
        draft=draft,
        plain_seconds_per_token=plain_seconds_per_token,
        price_per_hour=price_per_hour,
        energy_joules=energy_joules,
    )


def memory_bytes(
    target: ModelSize, draft: ModelSize | None = None, *, context_tokens: int, width: int = 1
) -> int:
    """Return weights, caches of `context_tokens` tokens and the rows of logits of one pass.

    A draft model keeps one row, the target one a token of the pass.
    """

    def held(size: ModelSize, rows: int) -> int:
        logits = _BYTES_PER_LOGIT * size.vocabulary * rows
        return size.weight_bytes + size.cache_bytes_per_token * context_tokens + logits

    return held(target, width) + (held(draft, 1) if draft is not None else 0)


def _contexts(rounds: Sequence[RoundRecord], prompt_tokens: int | Mapping[int, int]) -> list[int]:
    """Return how many tokens of its request each round began with, the pending one included."""
    lengths = {
        r.request_id: prompt_tokens
        if isinstance(prompt_tokens, int)
        else prompt_tokens[r.request_id]
        for r in rounds
    }
    contexts = []
    for record in rounds:
        contexts.append(lengths[record.request_id])
        lengths[record.request_id] += record.num_emitted
    return contexts


def _draft_passes(drafts: Iterable[tuple[int, int, int]]) -> Passes:
    """Return the passes behind drafts of (tokens, sessions, context): a row for each token."""
    listed = list(drafts)
    cached_tokens = sum(tokens * context for tokens, _, context in listed)
    return Passes(
        passes=sum(tokens / num_sessions for tokens, num_sessions, _ in listed),
        rows=sum(tokens for tokens, _, _ in listed),
        context_tokens=cached_tokens,
        attended_tokens=cached_tokens,
    )


def _costs(
    decoding: _Decoding,
    *,
    target: ModelSize | None,
    draft: ModelSize | None,
    plain_seconds_per_token: float | None,
    price_per_hour: float | None,
    energy_joules: float | None = None,
) -> Costs:
    tokens = decoding.emitted_tokens
    seconds = decoding.seconds / tokens if tokens else None
    gain = plain_seconds_per_token / seconds if plain_seconds_per_token and seconds else None
    speed = tokens / decoding.shared_seconds if decoding.shared_seconds > 0 else None
    price = price_per_hour / 3600 / speed * 1e6 if price_per_hour is not None and speed else None
    if draft is None and decoding.draft.passes:
        target = None  # a draft model of unknown size makes the sums unknown, not smaller
    memory = None
    if target is not None:
        context = decoding.longest_context * decoding.num_sessions
        width = decoding.widest_pass * decoding.num_sessions
        memory = memory_bytes(target, draft, context_tokens=context, width=width)
    energy: float | str = NOT_MEASURED
    if energy_joules is not None and tokens:
        energy = energy_joules / tokens
    return Costs(
        latency=LatencyCost(seconds_per_token=seconds, speedup=gain),
        compute=_compute(decoding, target, draft),
        serving=ServingCost(
            memory_bytes=memory,
            tokens_per_second=speed,
            price_per_million_tokens=price,
            energy_joules_per_token=energy,
        ),
    )


def _compute(decoding: _Decoding, target: ModelSize | None, draft: ModelSize | None) -> ComputeCost:
    def per_token(total: float | None) -> float | None:
        tokens = decoding.emitted_tokens
        return total / tokens if total is not None and tokens else None

    flops = bytes_read = None
    if target is not None:
        flops = decoding.target.flops(target)
        bytes_read = decoding.target.bytes_read(target)
        if draft is not None:
            flops += decoding.draft.flops(draft)
            bytes_read += decoding.draft.bytes_read(draft)
    return ComputeCost(
        target_passes_per_token=per_token(decoding.target.passes),
        verified_rows_per_token=per_token(decoding.target.rows),
        wasted_rows_per_token=per_token(decoding.target.rows - decoding.emitted_tokens),
        draft_passes_per_token=per_token(decoding.draft.passes),
        flops_per_token=per_token(flops),
        bytes_read_per_token=per_token(bytes_read),
    )
