"""What the measuring programs of the backends share: a text of our own, engines by name, rows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from prompts import CODE_EDITS, MIX

from pilotfish.models import resolve
from pilotfish.types import FloatArray, Segment

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
ENGINES = ("native", "native-avx2", "llama")
ROWS_PER_PASS = 50
_PACKAGES = ("pilotfish", "pilotfish-native", "llama-cpp-python", "numpy")
_PIECE = 700


def mixed_text(num_bytes: int) -> str:
    """Return text of at most `num_bytes` bytes: our prompts, pages and sources in turn."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    sources = sorted((ROOT / "src").rglob("*.py"))
    files = [file for pair in zip(pages, sources, strict=False) for file in pair]
    prompts = "\n\n".join([*MIX[11:], *CODE_EDITS])
    texts = [prompts, *(file.read_text(encoding="utf-8") for file in files)]
    pieces = []
    for begin in range(0, max(map(len, texts)), _PIECE):
        pieces += [text[begin : begin + _PIECE] for text in texts]
    whole = "\n".join(filter(None, pieces)).encode()
    if len(whole) < num_bytes:
        raise SystemExit(f"error: only {len(whole)} bytes of text here, {num_bytes} wanted")
    return whole[:num_bytes].decode("utf-8", "ignore")


def open_model(
    engine: str,
    path: Path,
    *,
    context_size: int,
    threads: int,
    max_sessions: int = 1,
    cache_type: str = "f16",
) -> Any:
    """Return a loaded model: a target model that is a context manager and has a tokenizer."""
    options = {
        "context_size": context_size,
        "max_sessions": max_sessions,
        "threads": threads,
        "cache_type": cache_type,
    }
    if engine == "llama":
        from pilotfish.backends.llama import LlamaModel

        return LlamaModel(path, **options)
    from pilotfish.backends.native import NativeModel

    _, _, instructions = engine.partition("-")
    return NativeModel(path, **options, instructions=instructions or "auto")


def rows_in_passes(
    model: Any, token_ids: Sequence[int], *, rows_per_pass: int = ROWS_PER_PASS
) -> Iterator[tuple[int, FloatArray]]:
    """Yield (first position, logits [rows, vocabulary]) of a text from an empty cache on.

    The rows are views that the next step overwrites.
    """
    cache = model.new_cache()
    for begin in range(0, len(token_ids), rows_per_pass):
        piece = list(token_ids[begin : begin + rows_per_pass])
        yield begin, model.forward([Segment(cache, piece)])[0]
    cache.close()


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every program has."""
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the result there, too")


def resolved(reference: str) -> Path:
    """Return the path of a named model or file."""
    return Path(resolve(reference))


def finish(report: dict[str, Any], path: Path | None) -> None:
    """Print a report as JSON, with where it comes from, and write it to `path` if given."""
    text = json.dumps(report | {"provenance": provenance()}, indent=1)
    print(text)
    if path is not None:
        path.write_text(text + "\n", encoding="utf-8")


def provenance() -> dict[str, Any]:
    """Return the command, the processor and the versions behind a result."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "processor": _processor_name(),
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), "")
