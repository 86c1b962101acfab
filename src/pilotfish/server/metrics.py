"""`GET /metrics`: the totals and the state of a service in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pilotfish.server.service import Service
from pilotfish.server.totals import WIDTHS, Histogram, Totals

OUTCOMES = ("stop", "length", "cancelled", "timeout", "error")
REFUSALS = ("queue_full", "shutting_down")
DRAFTERS = ("forced", "model", "ngram", "prediction", "suffix")
LOADABLE = ("model", "ngram", "prediction", "suffix")
# draft positions that are there from the start; longer drafts add theirs
NUM_POSITIONS = 32

_PREFIX = "pilotfish_"


class ServerMetrics(Totals, Collector):
    """Counts what a service does, as its `Watcher`, and says it in Prometheus' words.

    Every metric is there from the start, with 0 for every known label.
    """

    def collect(self) -> Iterable[Metric]:
        """Return all counters and histograms, of one moment."""
        with self.lock:
            return [*self._requests(), *self._tokens(), *self._drafts(), *self._times()]

    def _requests(self) -> Iterator[Metric]:
        yield _counter(
            "submitted_requests",
            "Requests that were taken; each choice counts as one, here and everywhere.",
            self.num_submitted,
        )
        yield _counters(
            "requests", "Requests that ended, by how.", "outcome", _by(OUTCOMES, self.outcomes)
        )
        yield _counters(
            "refused",
            "Requests that were turned away, by reason.",
            "reason",
            _by(REFUSALS, self.refusals),
        )
        yield _histogram("queue_seconds", "From arrival until a place is free.", self.queued)
        yield _histogram(
            "first_token_seconds", "From arrival to the first token.", self.first_token
        )
        yield _histogram("request_seconds", "From arrival to the end.", self.whole)
        yield _histogram(
            "between_rounds_seconds",
            "From one round of a request to its next: what its reader waits for more text.",
            self.between_rounds,
        )

    def _tokens(self) -> Iterator[Metric]:
        yield _counter("prompt_tokens", "Tokens of prompts that were read.", self.num_prompt_tokens)
        yield _counter(
            "reused_prompt_tokens",
            "Of those, tokens that had been read for another request.",
            self.num_reused_tokens,
        )
        yield _counter("completion_tokens", "Tokens of replies.", self.num_completion_tokens)

    def _drafts(self) -> Iterator[Metric]:
        lengths = self.accepted_lengths
        yield _counters(
            "rounds",
            "Rounds of requests by who drafted; a pass is a round of each request in it.",
            "drafter",
            _by(("none", *DRAFTERS), {name: sum(lengths[name].values()) for name in lengths}),
        )
        drafted = {name: number for name, number in self.num_drafted.items() if name != "none"}
        yield _counters("drafted_tokens", "Draft tokens scored.", "drafter", _by(DRAFTERS, drafted))
        accepted = {
            name: sum(length * number for length, number in lengths[name].items())
            for name in drafted
        }
        yield _counters(
            "accepted_tokens", "Draft tokens of replies.", "drafter", _by(DRAFTERS, accepted)
        )
        yield self._accepted_at_positions(_by(DRAFTERS, drafted))
        yield _counter(
            "failed_draft_rounds",
            "Rounds of requests that went on with fewer drafts, or none, as a drafter failed.",
            self.num_failed_rounds,
        )

    def _accepted_at_positions(self, drafters: Iterable[str]) -> Metric:
        metric = CounterMetricFamily(
            _PREFIX + "accepted_at_position",
            "Rounds in which the draft token at this position was accepted.",
            labels=["drafter", "position"],
        )
        for drafter in drafters:
            lengths = self.accepted_lengths.get(drafter, Counter())
            for position in range(1, max(NUM_POSITIONS, *lengths, 0) + 1):
                number = sum(count for length, count in lengths.items() if length >= position)
                metric.add_metric([drafter, str(position)], number)
        return metric

    def _times(self) -> Iterator[Metric]:
        passes = SummaryMetricFamily(
            _PREFIX + "pass_seconds",
            "Passes of the target over tokens of replies, by their rows.",
            labels=["width"],
        )
        for width, (number, seconds) in zip(WIDTHS, self.passes, strict=True):
            passes.add_metric([width], number, seconds)
        yield passes
        yield _counter("passes", "Passes, of all widths.", sum(n for n, _ in self.passes))
        yield _counter("read_seconds", "Reading of prompts.", self.read_seconds)
        yield _counter("round_seconds", "Rounds; one that requests share once.", self.round_seconds)
        yield _counter("draft_seconds", "Of those, inside drafters.", self.draft_seconds)
        yield _counter(
            "plain_seconds_estimate",
            "What the rounds would have taken without drafts, by measured costs, where known.",
            self.plain_seconds,
        )
        yield GaugeMetricFamily(
            _PREFIX + "saved_seconds",
            "That estimate less what the same rounds took; below 0 drafts lost time.",
            self.plain_seconds - self.estimated_seconds,
        )


class StateCollector(Collector):
    """Says what a service is and how it stands at this moment."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges."""
        state = self._service.state
        gauges = {
            "running_requests": ("Requests that have a place.", state.num_running),
            "waiting_requests": ("Requests that wait for one.", state.num_waiting),
            "cache_tokens": ("Tokens in the caches of those that run.", state.num_cache_tokens),
            "kept_tokens": (
                "Tokens in caches kept for prompts that begin alike.",
                state.num_kept_tokens,
            ),
            "draining": ("1 while nothing new is taken.", state.is_draining),
            "engine_alive": ("1 while the engine's thread runs.", state.is_alive),
            "seconds_since_progress": (
                "Since the engine last did something; 0 while there is nothing to do.",
                state.seconds_since_progress,
            ),
            "speculation_on": (
                "1 where the engine may draft.",
                self._service.engine.facts.speculation_on,
            ),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(_PREFIX + name, text, float(value))
        yield self._models()
        yield self._drafters()

    def _drafters(self) -> Metric:
        metric = GaugeMetricFamily(
            _PREFIX + "loaded_drafter", "1 where such drafts can be made.", labels=["drafter"]
        )
        loaded = self._service.engine.facts.drafters
        for name in () if loaded is None else dict.fromkeys((*LOADABLE, *loaded)):
            metric.add_metric([name], float(name in (loaded or ())))
        return metric

    def _models(self) -> Metric:
        metric = InfoMetricFamily(_PREFIX + "model", "The loaded models.", labels=["role"])
        for role, facts in self._service.engine.facts.models.items():
            if facts is not None:
                metric.add_metric([role], _model_labels(facts))
        return metric


def make_router(metrics: ServerMetrics, service: Service) -> APIRouter:
    """Return the route `GET /metrics` of a service that `metrics` watches."""
    registry = CollectorRegistry()
    registry.register(metrics)
    registry.register(StateCollector(service))
    router = APIRouter()

    @router.get("/metrics", response_class=_Exposition, summary="Metrics in Prometheus' format")
    async def read_metrics() -> Response:
        return _Exposition(generate_latest(registry))

    return router


class _Exposition(Response):
    media_type = CONTENT_TYPE_LATEST


def _model_labels(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what tells a model from others; where its file lies is nobody's business."""
    names = ("backend", "architecture", "parameters", "vocabulary", "bytes", "context_size")
    labels = {name: str(facts[name]) for name in names if name in facts}
    return {"file": PurePath(str(facts.get("path", ""))).name, **labels}


def _by(known: Sequence[str], numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the numbers with 0 for what is known and has none."""
    return {**dict.fromkeys(known, 0), **numbers}


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value)


def _counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    metric = CounterMetricFamily(_PREFIX + name, text, labels=[label])
    for key, value in values.items():
        metric.add_metric([key], value)
    return metric


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    counts = accumulate(histogram.counts)
    buckets = list(zip(bounds, counts, strict=True))
    return HistogramMetricFamily(_PREFIX + name, text, buckets, histogram.sum_seconds)
