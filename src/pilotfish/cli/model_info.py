"""`pilotfish models info`: what a file is and what running it costs, from its header alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pilotfish import build, gguf, models
from pilotfish.backends.footprint import format_bytes, read_footprint
from pilotfish.config import DEFAULT_CONTEXT, DEFAULT_DRAFT_HEAD_SIZE, ModelConfig
from pilotfish.errors import PilotfishError
from pilotfish.gguf import GgufHeader


def model_info(reference: str) -> dict[str, Any]:
    """Return what `models info --json` prints about a model; no weights are loaded."""
    path = models.resolve(reference)
    header = gguf.check_file(path)
    whole = read_footprint(header)
    shape = _shape(header)
    context = min(shape["trained_context"] or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
    backend = _backend(reference, path)
    return {
        "name": reference,
        "path": str(path),
        **shape,
        "backend": backend,
        **asdict(whole),
        "context_size": context,
        "memory_bytes": whole.weight_bytes + context * whole.cache_bytes_per_token,
        "as_draft": _as_draft(header) if backend["name"] == "native" else None,
    }


def _shape(header: GgufHeader) -> dict[str, Any]:
    def value(name: str, default: int | None = None) -> int | None:
        return header.integer(f"{header.architecture}.{name}") or default

    heads = value("attention.head_count")
    return {
        "bytes": sum(path.stat().st_size for path in header.paths),
        "architecture": header.architecture,
        "parameters": header.parameter_count,
        "formats": dict(format_bytes(header)),
        "layers": value("block_count"),
        "width": value("embedding_length"),
        "heads": heads,
        "kv_heads": value("attention.head_count_kv", heads),
        "trained_context": value("context_length"),
        "vocabulary": header.vocabulary_size,
        "tokenizer": "/".join(
            filter(None, (header.text(f"tokenizer.ggml.{name}") for name in ("model", "pre")))
        ),
        "chat_template": "tokenizer.chat_template" in header.metadata,
    }


def _backend(reference: str, path: Path) -> dict[str, str | None]:
    try:
        choice = build.choose_backend(ModelConfig(reference=reference), path)
    except PilotfishError as error:
        return {"name": None, "reason": str(error)}
    return {"name": choice.backend, "reason": choice.reason or "it runs all that the file holds"}


def _as_draft(header: GgufHeader) -> dict[str, Any]:
    small = read_footprint(header, head_rows=DEFAULT_DRAFT_HEAD_SIZE, requantize=True)
    return {
        "head_size": min(DEFAULT_DRAFT_HEAD_SIZE, header.vocabulary_size),
        "requantized": True,
        "step_bytes": small.step_bytes,
        "weight_bytes": small.weight_bytes,
    }


def print_info(info: Mapping[str, Any]) -> None:
    """Print the facts of one model as a table of two columns."""
    size = models.human_bytes
    backend, draft = info["backend"], info["as_draft"]
    formats = ", ".join(f"{name} {size(count)}" for name, count in info["formats"].items())
    rows = {
        "file": info["path"],
        "architecture": info["architecture"],
        "parameters": f"{info['parameters']:,}",
        "bytes": f"{size(info['bytes'])}: {formats}",
        "shape": f"{info['layers']} layers, width {info['width']}, {info['heads']} heads, "
        f"{info['kv_heads']} for keys and values",
        "context": f"{info['trained_context']:,} tokens as trained"
        if info["trained_context"]
        else "unknown",
        "vocabulary": f"{info['vocabulary']:,} tokens, {info['tokenizer'] or 'no tokenizer'}, "
        f"{'a' if info['chat_template'] else 'no'} chat template",
        "backend": f"{backend['name'] or 'none'}: {backend['reason']}",
        "a step reads": f"{size(info['step_bytes'])} of weights, and "
        f"{size(info['cache_bytes_per_token'])} for each token of context",
        "memory": f"about {size(info['memory_bytes'])} with {info['context_size']:,} tokens",
    }
    if draft is not None:
        rows["as a draft"] = (
            f"{size(draft['step_bytes'])} a step: {draft['head_size']:,} tokens in the head, "
            "4 bits a weight"
        )
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows.items():
        table.add_row(name, escape(text))
    Console().print(table, highlight=False)
