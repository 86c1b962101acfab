"""Keep the results of the width self-check on disk, one JSON file for each combination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pilotfish.backends.llama.library import library_version
from pilotfish.backends.llama.loading import LoadOptions
from pilotfish.backends.llama.strict import WidthReport
from pilotfish.backends.machine import processor_name
from pilotfish.backends.self_check import file_identity, load_result, save_result

# raise it when the check itself changes: older results then no longer count
_CHECK_VERSION = 1


def describe(path: Path, options: LoadOptions, widths: Sequence[int]) -> dict[str, Any]:
    """Return everything the bits of a row can depend on besides its prefix."""
    return {
        "check_version": _CHECK_VERSION,
        "file": file_identity(path),
        "library": library_version(),
        "processor": processor_name(),
        "threads": options.threads,
        "cache_type": options.cache_type,
        "flash_attention": options.flash_attention,
        "repack": options.repack,
        "batch_size": options.batch_size,
        "several_sessions": options.max_sessions > 1,
        "widths": list(widths),
    }


def load_report(description: Mapping[str, Any]) -> WidthReport | None:
    """Return the stored result for `description`, or None when there is none that can be read."""
    try:
        return _report_from(load_result(description))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def save_report(description: Mapping[str, Any], report: WidthReport) -> None:
    """Store a result; a folder that cannot be written only means checking again next time."""
    save_result(description, asdict(report))


def _report_from(raw: Mapping[str, Any]) -> WidthReport:
    report = WidthReport(
        checked=tuple(int(width) for width in raw["checked"]),
        classes=tuple(tuple(int(width) for width in group) for group in raw["classes"]),
        unsteady=tuple(int(width) for width in raw["unsteady"]),
        strict_widths=tuple(int(width) for width in raw["strict_widths"]),
        num_positions=int(raw["num_positions"]),
        seconds_by_width={int(k): float(v) for k, v in raw["seconds_by_width"].items()},
        reason=str(raw["reason"]),
    )
    if not set(report.strict_widths) <= set(report.checked):
        raise ValueError("strict widths that were never checked")
    return report
