"""Addresses of the Hugging Face hub, as people copy them, turned into hub references."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from pilotfish.errors import UnknownModel
from pilotfish.gguf.cursor import shown

_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_SCHEMES = ("https", "http", "hf")
# what an address of the hub names before the revision and the file
_VIEWS = ("blob", "resolve", "raw", "tree")
_REVISION = "main"
_FORMS = "name it as org/repo, org/repo:Q4_K_M or org/repo:file.gguf"


def without_address(text: str) -> str:
    """Return the reference `org/repo` or `org/repo:...` that an address of the hub stands for, and
    any other text as it is. Raises UnknownModel for addresses that lead to no model of it."""
    scheme, found, rest = text.strip().partition("://")
    if found and scheme.casefold() not in _SCHEMES:
        return text
    if not found:
        rest = text
    path = rest
    if scheme.casefold() != "hf" or not found:
        host, _, path = rest.partition("/")
        if host.casefold() not in (*_HOSTS, _own_host()):
            if found:
                raise _no_model(text, "download the file and name its path, or " + _FORMS)
            return text
    path = unquote(path.partition("?")[0].partition("#")[0])
    return _reference(path.strip("/").split("/"), text)


def _reference(parts: list[str], text: str) -> str:
    """Return the reference that the parts of an address' path stand for."""
    if len(parts) < 2 or parts[0] in ("datasets", "spaces", "collections", "api"):
        raise _no_model(text, _FORMS)
    repository, rest = "/".join(parts[:2]), parts[2:]
    if rest and rest[0] in _VIEWS:
        view, *revision, file = (*rest[:2], "/".join(rest[2:]))
        if revision not in ([], [_REVISION]):
            raise _no_model(text, f"only the revision {_REVISION} is read: " + _FORMS)
        if view == "tree" and file:
            raise _no_model(text, "it is a folder: " + _FORMS)
        rest = [file] if file else []
    return ":".join([repository, *(["/".join(rest)] if rest else [])])


def _own_host() -> str:
    """Return the host of the user's own endpoint, in lower case; "" where there is none."""
    try:
        return urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc.casefold()
    except ValueError:
        return ""


def _no_model(text: str, hint: str) -> UnknownModel:
    return UnknownModel(f"no address of a model of the hub: {shown(text)}", hint=hint)
