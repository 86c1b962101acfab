"""`pilotfish models`: list, pull, path, info and rm."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from pilotfish import models

app = typer.Typer(help="Named models and the cache.", no_args_is_help=False)

_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_REFERENCE_HELP = "A name from the list, org/repo, org/repo:Q4_K_M, or a hub address."


@app.callback(invoke_without_command=True)
def main(context: typer.Context, as_json: _Json = False) -> None:
    """Named models and the cache; without a command, the list."""
    context.obj = as_json
    if context.invoked_subcommand is None:
        _print_list(as_json=as_json)


@app.command("list")
def list_models(context: typer.Context, as_json: _Json = False) -> None:
    """List the named models and what else is in the cache."""
    _print_list(as_json=as_json or bool(context.obj))


@app.command("pull")
def pull_models(
    context: typer.Context,
    references: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help=_REFERENCE_HELP + " Without one: the default pair."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Download models into the cache; those already there are left alone."""
    wanted = references or [models.DEFAULT_TARGET, models.DEFAULT_DRAFT]
    for reference in wanted:
        models.parse_reference(reference)  # a misspelt last name stops us before the first download
    pulled = [_pull(reference) for reference in wanted]
    if as_json or context.obj:
        _print_json({"models": pulled})
    else:
        for one in pulled:
            print(one["path"])


@app.command("path")
def show_path(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME", help=_REFERENCE_HELP)],
    as_json: _Json = False,
) -> None:
    """Print where a model's file is; an error if it is not downloaded."""
    path = str(models.resolve(reference))
    if as_json or context.obj:
        _print_json({"name": reference, "path": path})
    else:
        print(path)


@app.command("info")
def show_info(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REF", help="A name, a .gguf file, org/repo[:Q4_K_M], or a hub address."
        ),
    ],
    as_json: _Json = False,
) -> None:
    """Tell what a model is, which backend runs it, and what a step reads."""
    from pilotfish.cli.model_info import model_info, print_info  # not at the top: needs backends

    info = model_info(reference)
    if as_json or context.obj:
        _print_json(info)
    else:
        print_info(info)


@app.command("rm")
def remove_model(
    context: typer.Context,
    reference: Annotated[str, typer.Argument(metavar="NAME", help=_REFERENCE_HELP)],
    as_json: _Json = False,
) -> None:
    """Delete a model from the cache, with what is left of an interrupted download of it."""
    freed_bytes = models.remove(reference)
    if as_json or context.obj:
        _print_json({"name": reference, "freed_bytes": freed_bytes})
    else:
        print(f"removed {reference} ({models.human_bytes(freed_bytes)})")


def _print_list(*, as_json: bool) -> None:
    listings = models.listed()
    if as_json:
        rows = [asdict(listing) | {"path": str(listing.path)} for listing in listings]
        _print_json({"cache": str(models.cache_folder()), "models": rows})
        return
    console = Console()
    console.print(_table(listings))
    # printed whole: a path broken over two lines cannot be copied
    console.print(
        f"cache: {escape(_short(models.models_folder()))}", soft_wrap=True, highlight=False
    )


def _table(listings: Sequence[models.ModelListing]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", overflow="fold")
    table.add_column("for", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("state", no_wrap=True)
    styles = {"downloaded": "green", "damaged": "red", "absent": "dim"}
    for listing in listings:
        table.add_row(
            escape(listing.name),
            listing.purpose,
            models.human_bytes(listing.size_bytes),
            listing.licence,
            f"[{styles[listing.state]}]{listing.state}[/]",
        )
    return table


def _pull(reference: str) -> dict[str, Any]:
    """Download one model with progress on stderr and return what --json says about it."""
    began = time.monotonic()
    with _shown_progress() as progress:
        path = models.pull(reference, progress=progress)
    seconds = time.monotonic() - began
    size_bytes = path.stat().st_size
    listing = next((one for one in models.listed() if one.path == path), None)
    if listing is not None:
        size_bytes = listing.size_bytes
    print(
        f"{reference}: {models.human_bytes(size_bytes)} ready after {seconds:.1f} s",
        file=sys.stderr,
    )
    return {
        "name": reference,
        "path": str(path),
        "bytes": size_bytes,
        "sha256": listing.sha256 if listing else "",
        "source": listing.source if listing else "local",
        "seconds": round(seconds, 3),
    }


@contextmanager
def _shown_progress() -> Iterator[models.Progress]:
    """Give a progress callback: bars on a terminal, else one line for each thing being done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _line_progress()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def progress(done_bytes: int, total_bytes: int, label: str) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(escape(label), total=None)
            bars.update(tasks[label], completed=done_bytes, total=total_bytes or None)

        yield progress


def _line_progress() -> models.Progress:
    labels: set[str] = set()

    def progress(done_bytes: int, total_bytes: int, label: str) -> None:
        if label in labels:
            return
        labels.add(label)
        size = f" ({models.human_bytes(total_bytes)})" if total_bytes else ""
        print(f"{label}{size}", file=sys.stderr, flush=True)

    return progress


def _short(path: Path) -> str:
    """Return a path with the home directory as ~."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


def _print_json(document: dict[str, Any]) -> None:
    print(json.dumps(document, indent=2))
