"""pilotfish: speculative decoding that gives the same text as the target model alone, sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotfish.bench.api import benchmark
    from pilotfish.build import load, load_engine
    from pilotfish.config import EngineConfig, ModelConfig, SpeculationConfig
    from pilotfish.errors import PilotfishError
    from pilotfish.generation import Piece, Reply, ReplyStream, TextEngine
    from pilotfish.types import SamplingSettings

__version__ = "0.1.0"

__all__ = [
    "EngineConfig",
    "ModelConfig",
    "Piece",
    "PilotfishError",
    "Reply",
    "ReplyStream",
    "SamplingSettings",
    "SpeculationConfig",
    "TextEngine",
    "__version__",
    "benchmark",
    "load",
    "load_engine",
]

_HOMES = {
    "EngineConfig": "config",
    "ModelConfig": "config",
    "Piece": "generation",
    "PilotfishError": "errors",
    "Reply": "generation",
    "ReplyStream": "generation",
    "SamplingSettings": "types",
    "SpeculationConfig": "config",
    "TextEngine": "generation",
    "benchmark": "bench.api",
    "load": "build",
    "load_engine": "build",
}


def __getattr__(name: str) -> Any:
    # names are loaded on first use, so that `import pilotfish` costs next to nothing
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"pilotfish.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'pilotfish' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
