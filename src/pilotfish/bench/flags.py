"""Advice as options of other engines: what they call the nearest thing they have."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

ENGINES = ("llama-server", "vllm", "sglang")

# tokens that must have occurred before what follows them is drafted: short, as a copy often begins
_LOOKUP_TOKENS = 3
_SAME_ROUNDS = "the number is drafted in every round, whatever it costs there"
_NO_CONTROLLER = "no controller, no guard against losses"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draftable:
    """What is worth drafting in an engine that drafts the same number in every round.

    text, model   draft tokens from the text and by the draft model; 0: leave it off
    draft_name    the draft model's file
    prefers_text  which one to take where only one can be had
    least_chance  of a token of the draft model, below which it does not pay
    """

    text: int
    model: int = 0
    draft_name: str = ""
    prefers_text: bool = True
    least_chance: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineFlags:
    """The options for one engine, and what does not carry over."""

    flags: str
    note: str


def engine_flags(found: Draftable) -> dict[str, EngineFlags]:
    """Return the options for each of `ENGINES`, as their releases of autumn 2026 name them."""
    if not found.text and not found.model:
        off = EngineFlags("", "speculation is off unless asked for: leave its options out")
        return dict.fromkeys(ENGINES, off)
    takes_text = bool(found.text) and (found.prefers_text or not found.model)
    return {
        "llama-server": _llama_server(found),
        "vllm": _vllm(found, takes_text=takes_text),
        "sglang": _sglang(found, takes_text=takes_text),
    }


def _llama_server(found: Draftable) -> EngineFlags:
    kinds, words = [], []
    if found.model:
        kinds.append("draft-simple")
        words += ["--spec-draft-model", found.draft_name, "--spec-draft-n-max", str(found.model)]
        words += ["--spec-draft-n-min", "0", "--spec-draft-p-min", f"{found.least_chance:.2f}"]
    if found.text:
        kinds.append("ngram-map-k")
        words += ["--spec-ngram-map-k-size-n", str(_LOOKUP_TOKENS)]
        words += ["--spec-ngram-map-k-size-m", str(found.text)]
    note = (
        f"{_SAME_ROUNDS}, and a text draft goes first where both are on; its passes may cost more "
        "than ours: measure there. Builds before May 2026 have other names"
    )
    return EngineFlags(shlex.join(["--spec-type", ",".join(kinds), *words]), note)


def _vllm(found: Draftable, *, takes_text: bool) -> EngineFlags:
    config: dict[str, str | int]
    if takes_text:
        config = {"method": "suffix", "num_speculative_tokens": found.text}
    else:
        config = {
            "method": "draft_model",
            "model": found.draft_name,
            "num_speculative_tokens": found.model,
        }
    note = f"one source for all requests, {_NO_CONTROLLER}; models are named by folder or hub id"
    return EngineFlags(shlex.join(["--speculative-config", json.dumps(config)]), note)


def _sglang(found: Draftable, *, takes_text: bool) -> EngineFlags:
    # its number counts the pending token, too
    if takes_text:
        words = ["--speculative-algorithm", "NGRAM"]
        words += ["--speculative-num-draft-tokens", str(found.text + 1)]
        words += ["--speculative-ngram-max-bfs-breadth", "1"]
    else:
        words = ["--speculative-algorithm", "STANDALONE"]
        words += ["--speculative-draft-model-path", found.draft_name]
        words += ["--speculative-num-steps", str(found.model), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(found.model + 1)]
    note = f"one source for all requests, {_SAME_ROUNDS}; NGRAM looks into past replies and on GPUs"
    return EngineFlags(shlex.join(words), note)
