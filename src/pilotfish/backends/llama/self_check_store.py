"""Keep the results of the width self-check on disk, one JSON file for each combination."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pilotfish.backends.llama.library import library_version
from pilotfish.backends.llama.loading import LoadOptions
from pilotfish.backends.llama.machine import processor_name
from pilotfish.backends.llama.strict import WidthReport
from pilotfish.config import cache_folder

# raise it when the check itself changes: older results then no longer count
_CHECK_VERSION = 1


def describe(path: Path, options: LoadOptions, widths: Sequence[int]) -> dict[str, Any]:
    """Return everything the bits of a row can depend on besides its prefix."""
    state = path.stat()
    return {
        "check_version": _CHECK_VERSION,
        "file": [path.name, state.st_size, state.st_mtime_ns],
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
        stored = json.loads(_file_of(description).read_text())
        if stored["for"] != description:
            return None
        return _report_from(stored["report"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def save_report(description: Mapping[str, Any], report: WidthReport) -> None:
    """Store a result; a folder that cannot be written only means checking again next time."""
    target = _file_of(description)
    scratch = target.with_suffix(f".{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_text(json.dumps({"for": description, "report": asdict(report)}, indent=1))
        os.replace(scratch, target)
    except OSError:
        with suppress(OSError):
            scratch.unlink()


def _file_of(description: Mapping[str, Any]) -> Path:
    key = json.dumps(description, sort_keys=True).encode()
    return cache_folder() / "self-check" / f"{hashlib.sha256(key).hexdigest()[:24]}.json"


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
