"""What a benchmark asks: our own set of prompts, JSONL files, and Spec-Bench's question file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pilotfish.errors import PromptError
from pilotfish.types import require, require_number

OWN = "own"
OWN_CATEGORIES = ("code_edit", "chat", "summary", "translation", "extraction", "story")
NO_CATEGORY = "other"

_FORM = 'a line is {"id": ..., "category": ..., "prompt": "..."} or has "messages" or "turns"'
# begins a prompt in the files of our own set; the rest of the line is its name
_MARK = "==== "


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a user's text, or the messages of a chat."""

    id: str
    category: str
    content: str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in the order in which they are asked; ids are unique."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> dict[str, int]:
        """Return how many prompts each category has, in the order of their first prompts."""
        counts: dict[str, int] = {}
        for prompt in self.prompts:
            counts[prompt.category] = counts.get(prompt.category, 0) + 1
        return counts

    def limited(self, limit: int) -> Workload:
        """Return `limit` of the prompts, spread evenly over the categories; ConfigError below 1.

        Every category gives its first prompts, one after the other in turn; the order stays.
        """
        require_number("limit", limit, wanted := "a whole number above 0", whole=True)
        require(limit > 0, "limit", limit, wanted)
        chosen = {prompt.id for prompt in in_turns(self.prompts)[:limit]}
        return Workload(self.name, tuple(one for one in self.prompts if one.id in chosen))


def in_turns(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return the prompts so that the categories take turns, each in its own order."""
    by_category: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_category.setdefault(prompt.category, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    return [prompt for prompt in turns if prompt is not None]


def load_workload(source: str) -> Workload:
    """Return our own set for "own", else what the JSONL file of that name holds.

    PromptError names the file and the line that cannot be used.
    """
    if source == OWN:
        return own_workload()
    try:
        text = Path(source).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PromptError(
            f"cannot read the workload {source}: {reason}",
            hint=f"name a JSONL file, or {OWN} for the prompts that come with pilotfish",
        ) from error
    return Workload(Path(source).name, tuple(_parsed(text, source)))


def own_workload() -> Workload:
    """Return the prompts that come with the package, the categories in turns."""
    folder = files("pilotfish.bench") / "prompts"
    prompts: list[Prompt] = []
    for category in OWN_CATEGORIES:
        text = (folder / f"{category}.txt").read_text(encoding="utf-8")
        for part in f"\n{text}".split(f"\n{_MARK}")[1:]:
            name, _, body = part.partition("\n")
            prompts.append(Prompt(f"{category}/{name.strip()}", category, body.strip()))
    return Workload(OWN, tuple(in_turns(prompts)))


def _parsed(text: str, source: str) -> list[Prompt]:
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{source}, line {number}"
        prompt = _prompt(line, place, number)
        if prompt.id in lines:
            raise PromptError(f"{place}: line {lines[prompt.id]} has the id {prompt.id!r}, too")
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise PromptError(f"the workload {source} has no prompts", hint=_FORM)
    return prompts


def _prompt(line: str, place: str, number: int) -> Prompt:
    """Return the prompt of one line; an id and a category that are missing are filled in."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{place} is not JSON: {error}", hint=_FORM) from error
    if not isinstance(row, dict):
        raise PromptError(f"{place} is not a JSON object", hint=_FORM)
    name = row.get("id", row.get("question_id", f"line-{number}"))
    category = row.get("category", NO_CATEGORY)
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise PromptError(f"{place}: the id must be text or a number, got {name!r:.50}")
    if not isinstance(category, str) or not category:
        raise PromptError(f"{place}: the category must be text, got {category!r:.50}")
    return Prompt(str(name), category, _content(row, place))


def _content(row: Mapping[str, Any], place: str) -> str | list[Mapping[str, Any]]:
    """Return what is asked: the prompt, the messages, or the first turn of several."""
    given = [key for key in ("prompt", "messages", "turns") if key in row]
    if len(given) != 1:
        what = "none" if not given else " and ".join(given)
        raise PromptError(
            f"{place} needs one of prompt, messages, turns; it has {what}", hint=_FORM
        )
    content = row[given[0]]
    if given == ["messages"]:
        if not isinstance(content, list) or not content:
            raise PromptError(f"{place}: messages must be a list of messages", hint=_FORM)
        if not all(isinstance(message, dict) for message in content):
            raise PromptError(f'{place}: a message is {{"role": ..., "content": ...}}')
        return content
    if given == ["turns"]:
        # a later turn would follow a reply that nobody has given
        content = content[0] if isinstance(content, list) and content else None
    if not isinstance(content, str) or not content.strip():
        raise PromptError(f"{place}: {given[0]} must hold text, got {content!r:.50}", hint=_FORM)
    return content
