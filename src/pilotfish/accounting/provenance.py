"""Where a figure comes from: the command, the code, the libraries, the machine, the day."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

# what can change a figure
_PACKAGES = ("pilotfish-native", "llama-cpp-python", "numpy", "tokenizers")


def provenance(
    command: Sequence[str],
    *,
    version: str,
    processor: str,
    cores: int,
    memory_bytes: int | None,
    threads: int | None,
) -> dict[str, Any]:
    """Return the origin of a measurement as plain JSON values.

    `command` is the words of the program's call; paths in it are cut to file names. `commit` is
    that of the source tree this file is in, with "-dirty" behind it when files were changed, or
    None outside of one; `packages` are the versions of those that are installed.
    """
    return {
        "command": shlex.join(without_folders(word) for word in command),
        "version": version,
        "commit": commit(),
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _installed(name))},
        "processor": processor,
        "cores": cores,
        "memory_bytes": memory_bytes,
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def without_folders(word: str) -> str:
    """Return a word of a command with the folders of an absolute path left out."""
    option, equals, value = word.partition("=")
    path = value if equals else word
    if not (path.startswith("~") or Path(path).is_absolute()):
        return word
    return option + equals + Path(path).name if equals else Path(path).name


def commit(folder: Path = Path(__file__).parent) -> str | None:
    """Return the commit of the source tree `folder` is in, or None where git knows none.

    A package installed somewhere below an unrelated repository is not part of that.
    """
    if _git(folder, "ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def total_memory_bytes() -> int | None:
    """Return the memory of the machine, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def peak_memory_bytes() -> int | None:
    """Return the most memory this process has held, or None where the system does not say."""
    try:
        import resource  # not on every system
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
