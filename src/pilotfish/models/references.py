"""What a model reference means: a named model, a file on the hub, or a path."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from pilotfish.errors import ModelError, UnknownModel, near_name
from pilotfish.gguf import split_names
from pilotfish.gguf.cursor import shown
from pilotfish.models.addresses import without_address
from pilotfish.models.table import NAMED_MODELS, NamedModel

_PREFERRED = "Q4_K_M"
# with a digit, and no dot: that would be the name of a file
_QUANTIZATION = re.compile(r"(?=\D*\d)[A-Za-z0-9][A-Za-z0-9_-]{0,40}|latest", re.ASCII | re.I)
_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class NamedReference:
    """A model of the table."""

    model: NamedModel


@dataclass(frozen=True, slots=True)
class HubReference:
    """A GGUF file of a hub repository, by its name or by its quantization, such as Q4_K_M; both
    are "" where the repository is to decide."""

    repository: str
    file_name: str
    quantization: str = ""

    def __str__(self) -> str:
        wanted = self.file_name or self.quantization
        return f"{self.repository}:{wanted}" if wanted else self.repository


@dataclass(frozen=True, slots=True)
class PathReference:
    """A file on this machine."""

    path: Path


Reference: TypeAlias = "NamedReference | HubReference | PathReference"


def parse_reference(reference: str | os.PathLike[str]) -> Reference:
    """Return what `reference` means, looking at the disk only to tell paths from hub references.

    Raises UnknownModel for what can be none of them, ModelError for a Hugging Face folder.
    """
    text = os.fspath(reference)
    named = NAMED_MODELS.get(text.casefold())
    if named is not None:
        return NamedReference(named)
    path = _expanded(text)
    if text and _exists(path):
        return _path_reference(path)
    text = without_address(text)
    repository, colon, wanted = text.partition(":")
    if _REPOSITORY.fullmatch(repository) and ".." not in repository:
        if _QUANTIZATION.fullmatch(wanted):
            return _hub_reference(repository, quantization=_quantization(wanted))
        if colon:
            return _hub_reference(repository, _checked_file_name(wanted, text))
        if not _means_file(text):
            return _hub_reference(repository)
    if _means_file(text) or (os.sep in text and not colon):
        raise UnknownModel(f"no such file: {shown(text)}", hint=_file_hint(text))
    raise _unknown(text)


def is_file_name(name: str) -> bool:
    """Return whether a name that somebody else chose stays below the folder it is joined to.

    Names with separators or drives of other systems do not, nor do those that no terminal shows
    as they are.
    """
    path = PurePosixPath(name)
    leads_out = path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name
    return bool(path.parts) and not leads_out and name.isprintable()


def choose_file(names: Sequence[str], repository: str, quantization: str = "") -> str:
    """Return the GGUF file to take from a repository with these files: the one in the quantization,
    where one is given, else the only one, else the one in Q4_K_M.

    Of a split model only part 1 counts. Raises ModelError naming the files where there is no one
    such file, and where the name of the file would lead out of the cache.
    """
    models = sorted(
        name
        for name in names
        # mmproj files hold the image encoder of a model, not a model
        if name.lower().endswith(".gguf")
        and "mmproj" not in name.lower()
        and split_names(name)[0] == name
    )
    if not models:
        raise ModelError(
            f"{repository} has no GGUF file",
            hint="name a repository with GGUF files; other formats come with the torch backend",
        )
    preferred = models
    if quantization or len(models) > 1:
        preferred = _in_quantization(models, quantization or _PREFERRED)
    if len(preferred) == 1:
        if not is_file_name(preferred[0]):
            raise ModelError(
                f"{repository} offers {shown(preferred[0])}, which is no name of a file inside it"
            )
        return preferred[0]
    names = [shown(name) for name in preferred or models]
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    found = (
        f"no GGUF file in {quantization}"
        if quantization and not preferred
        else "several GGUF files"
    )
    raise ModelError(
        f"{repository} has {found}: {', '.join(names[:8])}{more}",
        hint=f"choose one: {repository}:{names[0]}",
    )


def same_name(names: Sequence[str], wanted: str) -> str:
    """Return the name that is `wanted`, or the only one that differs from it in case; else ""."""
    if wanted in names:
        return wanted
    alike = [name for name in names if name.casefold() == wanted.casefold()]
    return alike[0] if len(alike) == 1 else ""


def _in_quantization(names: Sequence[str], quantization: str) -> list[str]:
    """Return the names that hold a quantization as a word, the shortest of them if it is the only
    one: x-Q4_K_M.gguf rather than x-UD-Q4_K_M.gguf."""
    found = sorted((name for name in names if _has_word(name, quantization)), key=len)
    is_clear = len(found) > 1 and len(found[0]) < len(found[1])
    return found[:1] if is_clear else found


def _has_word(name: str, word: str) -> bool:
    """Return whether a name holds a word whole, in any case: Q4_K is not in x-Q4_K_M.gguf."""
    name, word = f" {name.lower()} ", word.lower()
    start = name.find(word)
    while start > 0:
        before, after = name[start - 1], name[start + len(word)]
        if not before.isalnum() and not after.isalnum() and after != "_":
            return True
        start = name.find(word, start + 1)
    return False


_HINT = (
    "a model is a path to a .gguf file, a hub reference org/repo, org/repo:Q4_K_M or "
    f"org/repo:file.gguf, or one of: {', '.join(NAMED_MODELS)}"
)


def _file_hint(text: str) -> str:
    """Return what to do about a file that is not there; it may be meant as one of the hub."""
    repository, _, file_name = text.replace("/", ":", 2).replace(":", "/", 1).partition(":")
    if _REPOSITORY.fullmatch(repository) and is_file_name(file_name):
        return f"for a file of the hub: {repository}:{file_name}"
    return _HINT


def _quantization(wanted: str) -> str:
    """Return a quantization; `latest`, as some programs write, leaves the choice to us."""
    return "" if wanted.casefold() == "latest" else wanted


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        return Path(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a NUL byte: no path of ours
        return False


def _means_file(text: str) -> bool:
    return text.lower().endswith(".gguf") or text.startswith((".", "~", "/", os.sep))


def _path_reference(path: Path) -> PathReference:
    if path.is_dir() and (path / "config.json").exists():
        raise ModelError(
            f"{path} is a folder with a Hugging Face model, which needs the torch backend",
            hint="the torch backend comes later; use a GGUF file of the same model",
        )
    if path.is_dir():
        raise ModelError(f"{path} is a directory, not a model file", hint=_HINT)
    return PathReference(path)


def _checked_file_name(file_name: str, text: str) -> str:
    # the name becomes a path inside the cache: nothing may lead out of it
    if not is_file_name(file_name):
        raise UnknownModel(f"no file name of a hub repository: {shown(text)}", hint=_HINT)
    if not file_name.lower().endswith(".gguf"):
        raise UnknownModel(f"not a GGUF file: {shown(text)}", hint=_HINT)
    return str(PurePosixPath(file_name))


def _hub_reference(
    repository: str, file_name: str = "", *, quantization: str = ""
) -> NamedReference | HubReference:
    """Return the hub reference, or the named model it points at: that one has a mirror, too."""
    for model in NAMED_MODELS.values():
        if model.repository.casefold() != repository.casefold():
            continue
        is_named = file_name.casefold() in ("", model.file_name.casefold())
        if is_named and (not quantization or _in_quantization([model.file_name], quantization)):
            return NamedReference(model)
    return HubReference(repository, file_name, quantization)


def _unknown(text: str) -> UnknownModel:
    near = near_name(text, NAMED_MODELS)
    hint = f"did you mean {near}?" if near else _HINT
    return UnknownModel(f"unknown model: {shown(text) or '(empty)'}", hint=hint)
