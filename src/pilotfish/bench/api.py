"""Benchmarks from Python: modes against plain decoding on one loaded pair of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pilotfish.bench.runner import (
    PLAIN,
    BenchSettings,
    mode_engines,
    parse_modes,
    run_benchmark,
)
from pilotfish.bench.summary import ModelSizes, summarize
from pilotfish.bench.workload import OWN, Prompt, Workload, load_workload
from pilotfish.config import EngineConfig, ModelConfig, Request, RequestOptions
from pilotfish.errors import ConfigError
from pilotfish.models import DEFAULT_TARGET

if TYPE_CHECKING:
    from typing import Unpack

# what a mode decides, and what a measured reply cannot have
_NOT_MEASURED = frozenset(
    {"drafter", "num_speculative_tokens", "prediction", "stop", "json_schema", "shown_tokens"}
)


def benchmark(
    target: str | EngineConfig = DEFAULT_TARGET,
    *,
    draft: str | None = None,
    modes: str | None = None,
    prompts: str | Sequence[str | Sequence[Mapping[str, Any]]] = OWN,
    rounds: int = 2,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Unpack[RequestOptions],
) -> dict[str, Any]:
    """Measure modes against plain decoding, and return what `pilotfish bench --json` prints but for
    where it was measured.

    Every prompt is answered by every mode in turn, with the same seed, so that all say the same;
    `summary["modes"][name]["speedup"]` says how much sooner, and `["same_text"]` how often. Nothing
    that one has read or written serves another.

    target   a reference, or a configuration in place of `target` and `draft`
    modes    such as "auto,suffix:7"; by default "auto,suffix", and "model" where there is a draft
    prompts  texts or chats, or what `--workload` takes: our own set, or a JSONL file
    options  of the replies: `max_tokens` (128), `seed` (0), `temperature`, ...

    Loads the models and closes them. Raises ModelError, ConfigError or PromptError.
    """
    config = target if isinstance(target, EngineConfig) else _config(target, draft)
    wanted = parse_modes(modes or ("auto,suffix,model" if config.draft else "auto,suffix"))
    if config.draft is None and any(mode.drafter == "model" for mode in wanted):
        raise ConfigError("mode model needs a draft model", hint="name one with draft=")
    settings = BenchSettings(rounds=rounds, request=_request(options))
    workload = _workload(prompts)

    from pilotfish import build  # not at the top: it brings in the backends

    pair = build.load_pair(config)
    try:
        engines = mode_engines(pair, wanted, config.speculation)
        result = run_benchmark(engines, workload.prompts, settings, progress=progress)
        facts = engines[PLAIN].facts
        sizes = ModelSizes(facts.target_size, facts.draft_size)
        return summarize(result, workload=workload.name, sizes=sizes)
    finally:
        pair.close()


def _config(target: str, draft: str | None) -> EngineConfig:
    return EngineConfig(
        target=ModelConfig(reference=target),
        draft=None if draft is None else ModelConfig(reference=draft),
    )


def _request(options: Mapping[str, Any]) -> Request:
    for name in options:
        if name in _NOT_MEASURED:
            raise ConfigError(
                f"{name} has no meaning in a benchmark",
                hint="modes say who drafts, and every reply is as long as it would be",
            )
    return Request.from_options({"max_tokens": 128, "seed": 0, **options})


def _workload(prompts: str | Sequence[str | Sequence[Mapping[str, Any]]]) -> Workload:
    if isinstance(prompts, str):
        return load_workload(prompts)
    if not prompts:
        raise ConfigError("prompts is empty", hint="give at least one text or chat")
    entries = enumerate(prompts, start=1)
    return Workload("given", tuple(Prompt(str(i), "given", content) for i, content in entries))
