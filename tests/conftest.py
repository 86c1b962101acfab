"""What all tests share: repeatable generated cases, a cache of their own, tiny model files."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest

from support.tiny_gguf import write_tiny

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")

_CACHE = "PILOTFISH_CACHE"
_users_cache = os.environ.get(_CACHE)
_own_cache = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_own_cache] = tempfile.mkdtemp(prefix="pilotfish-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_own_cache], ignore_errors=True)
    _set_cache(_users_cache)


# a hook and not a fixture: fixtures of whole modules are set up before those of one test
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs_models = item.get_closest_marker("models") is not None
    _set_cache(_users_cache if needs_models else item.config.stash[_own_cache])


def _set_cache(folder: str | None) -> None:
    if folder is None:
        os.environ.pop(_CACHE, None)
    else:
        os.environ[_CACHE] = folder


@dataclass(frozen=True)
class TinyPair:
    """Two tiny fp32 files of one vocabulary and different weights."""

    target: Path
    draft: Path


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    folder = tmp_path_factory.mktemp("tiny-pair")
    return TinyPair(
        target=write_tiny(folder / "target.gguf", seed=1),
        draft=write_tiny(folder / "draft.gguf", seed=2, layers=1),
    )
