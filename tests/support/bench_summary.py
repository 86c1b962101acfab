"""A benchmark summary as `pilotfish bench --json` writes it, with made-up figures.

Six categories of two prompts, two modes: `auto` wins everywhere, `model` loses on chat.
"""

from __future__ import annotations

from typing import Any

CATEGORIES = ("code_edit", "chat", "summary", "translation", "extraction", "story")
# category -> speedup, and its interval, of each mode
SPEEDUPS: dict[str, dict[str, tuple[float, float, float]]] = {
    "auto": {
        "code_edit": (2.71, 2.4, 3.02),
        "chat": (1.18, 1.1, 1.27),
        "summary": (1.62, 1.4, 1.88),
        "translation": (1.21, 1.12, 1.3),
        "extraction": (2.3, 1.9, 2.8),
        "story": (1.05, 1.01, 1.09),
    },
    "model": {
        "code_edit": (1.92, 1.8, 2.05),
        "chat": (0.93, 0.9, 0.96),
        "summary": (1.38, 1.3, 1.47),
        "translation": (1.2, 1.1, 1.31),
        "extraction": (1.51, 1.4, 1.63),
        "story": (1.02, 0.95, 1.09),
    },
}
OVERALL = {"auto": (1.58, 1.43, 1.75), "model": (1.28, 1.17, 1.4)}
RATIOS = {"1": 1.0, "2": 1.03, "3": 1.07, "4": 1.12, "6": 1.27, "8": 1.58, "12": 2.4, "16": 2.9}


def interval(value: float, low: float, high: float) -> dict[str, float]:
    """Return a speedup as the summary holds it."""
    return {"geomean": value, "low": low, "high": high}


def make_summary() -> dict[str, Any]:
    """Return a complete summary; change what a test is about."""
    return {
        "modes": {name: make_mode(name) for name in SPEEDUPS},
        "plain": {
            "tokens_per_second": 30.4,
            "passes": 1536,
            "emitted": 1536,
            "seconds": {"target": 50.1, "draft": 0.0, "overhead": 0.3, "prompt": 9.5},
            "costs": make_costs(0.0328, 1.0, 0.0),
            "rounds_spread": {"min": 29.8, "median": 30.4, "max": 31.0},
        },
        "prompts": [make_prompt(f"{one}-{i}", one) for one in CATEGORIES for i in (1, 2)],
        "workload": {
            "name": "own",
            "prompts": 12,
            "categories": dict.fromkeys(CATEGORIES, 2),
            "max_tokens": 128,
            "temperature": 0.0,
            "seed": 0,
            "rounds": 2,
        },
        "models": {
            "target": {
                "name": "qwen2.5-coder-1.5b",
                "backend": "native",
                "parameters": 1543714304,
                "bytes": 1117320768,
            },
            "draft": {
                "name": "qwen2.5-coder-0.5b",
                "backend": "native",
                "parameters": 494032768,
                "bytes": 491400064,
            },
        },
        "memory": {"target": 1290000000, "draft": 410000000, "peak_process": 2040000000},
        "calibration": make_calibration(),
        "provenance": {
            "command": "pilotfish bench --modes auto,model --limit 12 --output own.json",
            "version": "0.1.0",
            "commit": "0123456789abcdef0123456789abcdef01234567",
            "python": "3.12.4",
            "packages": {"numpy": "2.4.6", "pilotfish-native": "0.1.0"},
            "processor": "A processor of 2 cores",
            "cores": 2,
            "memory_bytes": 25769803776,
            "threads": 2,
            "date": "2026-11-30",
        },
    }


def make_mode(name: str) -> dict[str, Any]:
    """Return the figures of `auto` or `model`."""
    draft_seconds = {"auto": 2.2, "model": 9.8}[name]
    return {
        "speedup": interval(*OVERALL[name]),
        "total_speedup": interval(*(0.9 * value for value in OVERALL[name])),
        "rounds_spread": {"min": 1.27, "median": 1.28, "max": 1.3},
        "by_category": {
            category: {
                "speedup": interval(*SPEEDUPS[name][category]),
                "prompts": 2,
                "tokens_per_second": 30.4 * SPEEDUPS[name][category][0],
                "tokens_per_round": 2.1,
                "acceptance_rate": 0.61,
            }
            for category in CATEGORIES
        },
        "same_text": [12, 12],
        "tokens_per_second": 30.4 * OVERALL[name][0],
        "tokens_per_round": 2.31,
        "mean_acceptance_length": 2.9,
        "acceptance_rate": 0.66,
        "acceptance_by_position": [0.84, 0.71, 0.6, 0.52],
        "passes": 665,
        "drafted": 1320,
        "accepted": 871,
        "emitted": 1536,
        "seconds": {
            "target": 29.4,
            "draft": draft_seconds,
            "overhead": 0.4,
            "prompt": 9.5,
            "draft_prompt": 3.1,
        },
        "draft_time_share": draft_seconds / (29.8 + draft_seconds),
        "by_drafter": {"model": {"rounds": 455, "drafted": 1320, "accepted": 871}},
        "decisions": {"worth it": 455, "off: costs more than it saves": 210},
        "costs": make_costs(0.0328 / OVERALL[name][0], 0.43, 0.42),
        "repeated": None,
    }


def make_costs(seconds: float, passes: float, wasted: float) -> dict[str, Any]:
    """Return the three costs of plain decoding or of a mode, per emitted token."""
    return {
        "latency": {"seconds_per_token": seconds},
        "compute": {
            "target_passes_per_token": passes,
            "wasted_rows_per_token": wasted,
            "flops_per_token": 3.1e9 * (1 + wasted),
            "bytes_per_token": None,
        },
        "serving": {"memory_bytes": 2.04e9, "energy": "not measured"},
    }


def make_prompt(name: str, category: str) -> dict[str, Any]:
    """Return one prompt's row."""
    return {
        "id": name,
        "category": category,
        "prompt_tokens": 210,
        "reply_tokens": 128,
        "speedup": {mode: SPEEDUPS[mode][category][0] for mode in SPEEDUPS},
        "parted": dict.fromkeys(SPEEDUPS),
        "error": None,
    }


def make_calibration() -> dict[str, Any]:
    """Return what `calibrate --json` prints, of two contexts."""
    step = 0.0312
    near = {
        "curve_seconds": {width: step * ratio for width, ratio in RATIOS.items()},
        "minimum_seconds": {width: 0.98 * step * ratio for width, ratio in RATIOS.items()},
        "ratio": RATIOS,
        "free_width": 4,
        "draft_curve_seconds": {"1": 0.25 * step, "4": 0.3 * step},
    }
    far_ratio = {width: 1 + 1.1 * (ratio - 1) for width, ratio in RATIOS.items()}
    limits = {"2": 0.03, "3": 0.04, "4": 0.04, "6": 0.06, "8": 0.37, "12": 0.6, "16": 0.66}
    return {
        **{name: near[name] for name in ("curve_seconds", "ratio", "draft_curve_seconds")},
        "read_bandwidth_bytes_per_second": 3.9e10,
        "floor_seconds": 0.0264,
        "draft_cost_ratio": 0.25,
        "overhead_seconds": 0.0002,
        "context": 256,
        "contexts": {"256": near, "2000": {**near, "ratio": far_ratio}},
        "break_even": limits,
        "break_even_draft_model": {**limits, "4": 0.51, "16": None},
        "sentence": "On this machine checking 4 tokens costs 1.1 single steps.",
        "plan": "quick",
        "steady": True,
        "machine": "A processor of 2 cores",
    }
