"""The cache directory: where models lie, what is there, and taking them out again.

models/FILE.gguf               named models
models/hub/ORG/REPO/FILE.gguf  other files of the hub
models/....gguf.json           beside each file: its SHA-256, bytes and source
downloads/                     what is on its way
locks/                         one lock file a model, so that two pulls do not meet
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotfish.config import cache_folder
from pilotfish.errors import DownloadError, ModelError, ModelFileError, UnknownModel
from pilotfish.gguf import split_names
from pilotfish.models.locking import exclusive
from pilotfish.models.references import (
    HubReference,
    NamedReference,
    PathReference,
    choose_file,
    parse_reference,
    same_name,
)
from pilotfish.models.table import NAMED_MODELS, NamedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelListing:
    """One line of the list of models; `state` is "downloaded", "absent" or "damaged"."""

    name: str
    description: str
    licence: str
    purpose: str
    size_bytes: int
    sha256: str
    source: str
    path: Path
    state: str


def models_folder() -> Path:
    """Return the directory of the model files."""
    return cache_folder() / "models"


def named_path(model: NamedModel) -> Path:
    """Return where the file of a named model lies or would lie."""
    return models_folder() / model.file_name


def hub_folder(repository: str) -> Path:
    """Return where the files of a hub repository lie or would lie."""
    return models_folder() / "hub" / Path(*repository.split("/"))


def staging_folder(label: str) -> Path:
    """Return the directory in which a download of this name is collected."""
    return cache_folder() / "downloads" / slug(label)


def lock_path(label: str) -> Path:
    """Return the lock file of the model of this name."""
    return cache_folder() / "locks" / f"{slug(label)}.lock"


def slug(label: str) -> str:
    """Return `label` as one file name."""
    return label.replace("/", "--").replace(":", "--")


def resolve(reference: str | os.PathLike[str]) -> Path:
    """Return the file a model reference means, looking on this machine only.

    Only the size of a file in the cache is compared with what it must be; whether a file is a
    whole GGUF model is for `pilotfish.gguf.check_file`. Raises UnknownModel where nothing is
    found or the model is not downloaded, ModelFileError where the size is wrong.
    """
    meaning = parse_reference(reference)
    if isinstance(meaning, PathReference):
        return meaning.path
    if isinstance(meaning, NamedReference):
        path, name = named_path(meaning.model), meaning.model.name
        _check_size(path, meaning.model.size_bytes, name)
        return path
    first = _local_hub_file(meaning)
    for path in _with_parts(first):
        _check_size(path, int(read_note(path).get("bytes", -1)), str(meaning))
    return first


def listed() -> list[ModelListing]:
    """Return the named models in the order of the table, then other models in the cache."""
    return [_named_listing(model) for model in NAMED_MODELS.values()] + list(_hub_listings())


def remove(reference: str | os.PathLike[str]) -> int:
    """Take a model out of the cache, with what is left of an interrupted download of it.

    Returns the number of bytes freed. Raises UnknownModel where there is nothing to remove, also
    for a path: files that are not ours are never deleted.
    """
    meaning = parse_reference(reference)
    if isinstance(meaning, PathReference):
        raise UnknownModel(
            f"{meaning.path} is not in the cache, so it is not removed",
            hint="name a model that `pilotfish models list` shows",
        )
    if isinstance(meaning, NamedReference):
        name, paths = meaning.model.name, [named_path(meaning.model)]
    else:
        first = _local_hub_file(meaning)
        name, paths = _kept_name(meaning.repository), _with_parts(first)
    staging = staging_folder(name)
    with exclusive(lock_path(name)):
        freed = folder_bytes(staging) + sum(_delete(path) for path in paths)
        shutil.rmtree(staging, ignore_errors=True)
    if not freed:
        raise UnknownModel(f"{name} is not downloaded, so there is nothing to remove")
    return freed


def read_note(path: Path) -> Mapping[str, Any]:
    """Return what is noted beside a model file (sha256, bytes, source), {} where nothing is."""
    try:
        note = json.loads(_note_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) and isinstance(note.get("bytes"), int) else {}


def write_note(path: Path, *, sha256: str, source: str) -> None:
    """Note beside a model file what it is, so that it need not be hashed again."""
    note = {"sha256": sha256, "bytes": path.stat().st_size, "source": source}
    temporary = _note_path(path).with_suffix(".json.part")
    temporary.write_text(json.dumps(note) + "\n", encoding="utf-8")
    os.replace(temporary, _note_path(path))


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files below a folder, which may change meanwhile or be absent."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except OSError:  # removed since it was listed
                continue
    return total


def require_free_space(folder: Path, needed_bytes: int, name: str) -> None:
    """Raise DownloadError unless the disk of `folder` has `needed_bytes` free."""
    while not folder.exists():
        folder = folder.parent
    free_bytes = shutil.disk_usage(folder).free
    if needed_bytes > free_bytes:
        raise DownloadError(
            f"{name} needs {human_bytes(needed_bytes)} of free space in {folder}, "
            f"but only {human_bytes(free_bytes)} is free",
            hint="free some space, or set PILOTFISH_CACHE to a folder on another disk",
        )


def human_bytes(num_bytes: int) -> str:
    """Return a size for people: 1117320768 -> "1.12 GB" (powers of 1000, as disks are sold)."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _with_parts(path: Path) -> list[Path]:
    return [path.with_name(name) for name in split_names(path.name)]


def _check_size(path: Path, expected_bytes: int, name: str) -> None:
    """Raise unless the file has its size; a negative size means that the right one is unknown."""
    pull = f"pilotfish models pull {name}"
    if not _is_file(path):
        raise UnknownModel(f"{name} is not downloaded", hint=pull)
    actual_bytes = path.stat().st_size
    if expected_bytes >= 0 and actual_bytes != expected_bytes:
        raise ModelFileError(
            f"{path} is damaged: expected {expected_bytes:,} bytes but it has {actual_bytes:,}",
            hint=pull,
        )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # longer than paths may be
        return False


def _local_hub_file(reference: HubReference) -> Path:
    """Return the file of a hub reference in the cache; raise UnknownModel where there is none."""
    folder = hub_folder(_kept_name(reference.repository))
    if reference.file_name and _is_file(path := folder / reference.file_name):
        # asked for by another part of a split model: the first one is what is loaded
        return _with_parts(path)[0]
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.gguf"))]
    if reference.file_name:
        if name := same_name(names, reference.file_name):
            return _with_parts(folder / name)[0]
    elif reference.quantization:
        with suppress(ModelError):  # of the files that are here, none or several
            return folder / choose_file(names, reference.repository, reference.quantization)
    elif names:
        return folder / choose_file(names, reference.repository)
    raise UnknownModel(f"{reference} is not downloaded", hint=f"pilotfish models pull {reference}")


def _kept_name(repository: str) -> str:
    """Return the name by which the cache keeps a repository: perhaps one in other cases."""
    if hub_folder(repository).is_dir():
        return repository
    base = models_folder() / "hub"
    kept = [path.relative_to(base).as_posix() for path in base.glob("*/*")]
    return same_name(kept, repository) or repository


def _delete(path: Path) -> int:
    _note_path(path).unlink(missing_ok=True)
    path.with_name(path.name + ".part").unlink(missing_ok=True)
    if not path.exists():
        return 0
    size_bytes = path.stat().st_size
    path.unlink()
    return size_bytes


def _named_listing(model: NamedModel) -> ModelListing:
    path = named_path(model)
    if not path.is_file():
        state = "absent"
    else:
        state = "downloaded" if path.stat().st_size == model.size_bytes else "damaged"
    return ModelListing(
        name=model.name,
        description=model.description,
        licence=model.licence,
        purpose=model.purpose,
        size_bytes=model.size_bytes,
        sha256=model.sha256,
        source=str(read_note(path).get("source", "")),
        path=path,
        state=state,
    )


def _hub_listings() -> Iterator[ModelListing]:
    base = models_folder() / "hub"
    for path in sorted(base.glob("*/*/**/*.gguf")):
        organisation, repository, *folders = path.relative_to(base).parts
        parts = _with_parts(path)
        if path != parts[0]:
            continue
        notes = [read_note(part) for part in parts]
        sizes = [part.stat().st_size if part.is_file() else 0 for part in parts]
        whole = all(n.get("bytes", s) == s > 0 for n, s in zip(notes, sizes, strict=True))
        yield ModelListing(
            name=f"{organisation}/{repository}:{'/'.join(folders)}",
            description="",
            licence="",
            purpose="",
            size_bytes=sum(sizes),
            sha256=str(notes[0].get("sha256", "")),
            source=str(notes[0].get("source", "")),
            path=path,
            state="downloaded" if whole else "damaged",
        )
