"""The command line: `main` runs it and turns every failure into one line and an exit code.

Exit codes: 0 ok, 1 failure, 2 usage or bad input, 130 interrupted. Data goes to stdout, talk to
stderr. A traceback is shown with `--verbose` only.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from pilotfish import __version__
from pilotfish.cli import advise, bench, calc, calibrate, chat, generate, models, serve
from pilotfish.cli.console import forget_line, print_error
from pilotfish.cli.usage import usage_message
from pilotfish.errors import PilotfishError

INTERRUPTED = 130
USAGE = 2

app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["--help", "-h"]})
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("bench")(bench.bench)
app.command("advise")(advise.advise)
app.command("calibrate")(calibrate.calibrate)
app.command("calc")(calc.calc)
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"pilotfish {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", metavar=" ", help="Tell more, tracebacks too; goes with every command."
        ),
    ] = False,
) -> None:
    """Speculative decoding: the text of the target model alone, sooner.

    A small drafter proposes tokens, the large target model checks them in one pass.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; `argv` defaults to the program's own."""
    verbose, arguments = _without_verbose(sys.argv[1:] if argv is None else argv)
    _write_every_character()
    try:
        return _run(arguments, verbose=verbose)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1
    except Exception as error:
        return _report(error, arguments, verbose=verbose)
    finally:
        forget_line()
        _settle_stdout()


def _run(arguments: Sequence[str], *, verbose: bool) -> int:
    command = typer.main.get_command(app)
    shown = {name: {"verbose": verbose} for name in ("generate", "chat")}
    try:
        code = command.main(
            args=list(arguments) or ["--help"],
            prog_name="pilotfish",
            standalone_mode=False,
            default_map=shown,
        )
    except typer.Abort:
        return INTERRUPTED
    except SystemExit as stop:  # a broken pipe, in Typer's own words
        code = stop.code
    return code if isinstance(code, int) else 0


def _without_verbose(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Take `--verbose` out, wherever it stands before `--`, so that every command knows it."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--verbose"]
    return len(options) < end, [*options, *arguments[end:]]


def _report(error: Exception, arguments: Sequence[str], *, verbose: bool) -> int:
    """Print what went wrong and return the exit code."""
    if verbose:
        traceback.print_exception(error)
    if isinstance(error, PilotfishError):
        hint = error.hint or (_help_hint(arguments) if error.exit_code == USAGE else "")
        print_error(str(error), hint=hint)
        return error.exit_code
    if hasattr(error, "format_message"):
        message, hint = usage_message(error)
        print_error(message, hint=hint or _help_hint(arguments))
        return USAGE
    if isinstance(error, OSError):
        print_error(str(error))
        return 1
    print_error(
        f"unexpected {type(error).__name__}: {error}",
        hint="this is a fault of pilotfish; --verbose shows where it happened",
    )
    return 1


def _help_hint(arguments: Sequence[str]) -> str:
    names = [name for name in command_names() if name in arguments[:1]]
    return f"{' '.join(['pilotfish', *names])} --help shows what is allowed"


def command_names() -> list[str]:
    """Return the commands of the program."""
    return list(typer.main.get_group(app).commands)


def _write_every_character() -> None:
    """Make streams of an old encoding escape what they lack rather than fail half-way."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _settle_stdout() -> None:
    """Flush; when the reader has gone, send the rest nowhere, so that the exit stays quiet."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
        os.close(nowhere)
    except ValueError:  # closed already
        pass
