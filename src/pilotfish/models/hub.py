"""The Hugging Face hub, through the `huggingface_hub` library."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pilotfish.errors import DownloadError
from pilotfish.models.cache import folder_bytes

# An unreachable hub must not hold up the mirror: the first answer is due within this time.
_FIRST_ANSWER_SECONDS = 5.0
_POLL_SECONDS = 0.1
_CHUNK_BYTES = 1 << 20
_SHA256 = re.compile(r"[0-9a-f]{64}")

Report = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file as the hub describes it; `sha256` is "" and `size_bytes` 0 where it does not say."""

    repository: str
    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class HubListing:
    """The files of a repository, and its own name: the hub forgives other cases."""

    repository: str
    names: tuple[str, ...]


def list_files(repository: str) -> HubListing:
    """Return what a repository holds. Raises DownloadError."""
    with _hub_errors(repository):
        from huggingface_hub import HfApi

        information = HfApi(endpoint=_endpoint()).model_info(
            repository, timeout=_FIRST_ANSWER_SECONDS
        )
    names = tuple(file.rfilename for file in information.siblings or [])
    own_name = str(information.id or "")
    # the name becomes a folder of the cache, so that only its case may be another
    is_same = own_name.casefold() == repository.casefold()
    return HubListing(own_name if is_same else repository, names)


def describe(repository: str, name: str) -> HubFile:
    """Return size and checksum of a file as the hub gives them. Raises DownloadError."""
    with _hub_errors(f"{repository}:{name}"):
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(repository, name, endpoint=_endpoint())
        metadata = get_hf_file_metadata(url, timeout=_FIRST_ANSWER_SECONDS, endpoint=_endpoint())
    # large files are stored by their SHA-256, which then is the entity tag
    etag = metadata.etag or ""
    sha256 = etag if _SHA256.fullmatch(etag) else ""
    return HubFile(repository, name, metadata.size or 0, sha256)


def fetch_from_hub(file: HubFile, staging: Path, report: Report) -> Path:
    """Download a file into `staging` and return its path there.

    The library resumes a broken connection by itself. The file is compared with `file`'s size and
    SHA-256 as far as these are known. Raises DownloadError; after any failure nothing is left in
    `staging`, as the library starts an interrupted download afresh anyway.
    """
    # what a killed process left behind would be taken for progress
    shutil.rmtree(staging, ignore_errors=True)
    try:
        path = _download(file, staging, report)
        size_bytes = path.stat().st_size
        wrong_size = file.size_bytes and size_bytes != file.size_bytes
        if wrong_size or (file.sha256 and file_sha256(path) != file.sha256):
            raise DownloadError(
                f"what the hub sent for {file.name} does not have the right checksum"
            )
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return path


def _download(file: HubFile, staging: Path, report: Report) -> Path:
    with _hub_errors(f"{file.repository}:{file.name}"), _watched(staging, file, report):
        from huggingface_hub import hf_hub_download

        path = hf_hub_download(
            file.repository,
            file.name,
            local_dir=staging,
            endpoint=_endpoint(),
            etag_timeout=_FIRST_ANSWER_SECONDS,
        )
    return Path(path)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _endpoint() -> str | None:
    # The library reads HF_ENDPOINT once, when it is imported; the user may set it later.
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _hub_errors(what: str) -> Iterator[None]:
    """Turn every error of the library, its network library and the disk into DownloadError."""
    try:
        yield
    except DownloadError:
        raise
    # Not narrower: the library raises its own errors, ValueError, OSError and those of the network
    # library, which differs between its versions (requests, then httpx).
    except Exception as error:
        raise DownloadError(f"{what}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    # by name: the classes live in different places of the library's versions
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        return "the repository asks for its terms to be accepted and for a login"
    if "RepositoryNotFoundError" in kinds:
        return "no such repository, or it is private"
    if "EntryNotFoundError" in kinds:
        return "no such file in the repository"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no reason given'}"


@contextmanager
def _watched(staging: Path, file: HubFile, report: Report) -> Iterator[None]:
    """Report the growth of `staging` while the library works, in place of its own bars."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            done_bytes = min(folder_bytes(staging), file.size_bytes)
            report(done_bytes, file.size_bytes, f"{file.name}: hub")

    were_disabled = are_progress_bars_disabled()
    if not were_disabled:
        disable_progress_bars()
    watcher = threading.Thread(target=poll, name="pilotfish-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        if not were_disabled:
            enable_progress_bars()
