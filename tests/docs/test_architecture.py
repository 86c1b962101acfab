"""The rules of the house: who may import whom, and how long things may get."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pilotfish

ROOT = Path(pilotfish.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# room: the rooms it may import; a room may always import itself
BASE = {"errors", "types"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "types": {"errors"},
    "protocols": BASE,
    "config": BASE,
    "sampling": BASE,
    "verify": {"types"},
    "gguf": {"errors"},
    "text": BASE | {"config"},
    "models": BASE | {"config", "gguf"},
    "prefixes": BASE | {"protocols"},
    "drafters": BASE | {"protocols", "config", "sampling", "prefixes"},
    "backends": BASE | {"protocols", "config", "gguf"},
    "control": BASE | {"protocols", "config", "accounting"},
    "engine": BASE | {"protocols", "config", "sampling", "verify", "prefixes"},
    "accounting": {"types"},
    "grammar": BASE | {"protocols", "text"},
    "replies": {"accounting", "text", "types"},
    "generation": BASE | {"engine", "text", "accounting", "config", "grammar", "replies"},
    "calibration": BASE | {"protocols", "config", "accounting", "backends"},
}
MAY_IMPORT["build"] = {*MAY_IMPORT, "protocols"} - {"build"}
MAY_IMPORT["bench"] = {*MAY_IMPORT} - {"verify", "sampling"}
MAY_IMPORT["server"] = {*MAY_IMPORT} - {"bench", "verify", "sampling", "drafters", "backends"}
MAY_IMPORT["pilotfish"] = {*MAY_IMPORT}  # the root, which loads its names when asked
MAY_IMPORT["server"] |= {"pilotfish"}  # the version, which the API and the page tell
MAY_IMPORT["cli"] = {*MAY_IMPORT, "pilotfish"}
MAY_IMPORT["__main__"] = {"cli"}

# parts that must not know their neighbours, and the neighbours that are parts of them
SHARED_BY_BACKENDS = {
    "exclusive",
    "facts",
    "footprint",
    "gguf_tokenizer",
    "machine",
    "segments",
    "self_check",
}
APART = {
    "drafters": {"suffix": {"suffix_automaton"}, "prediction": {"prediction_alignment"}},
    "backends": {"llama": SHARED_BY_BACKENDS, "native": SHARED_BY_BACKENDS},
    "control": {
        "cost_aware": {
            *("choice", "live_costs", "model_choice", "model_rule", "reasons", "request_state"),
        },
        "model_choice": {"choice", "live_costs", "reasons", "request_state"},
        "model_rule": {"choice", "reliability"},
        "request_state": {"guard", "reliability"},
    },
}
ONLY_ERRORS = ROOT / "backends" / "vocabulary.py"

# third-party library: the rooms that may import it
LIBRARIES = {
    "numpy": {
        *("types", "sampling", "verify", "gguf", "drafters", "backends", "engine"),
        *("calibration", "bench", "accounting", "control", "prefixes", "grammar"),
    },
    "llama_cpp": {"backends"},
    "tokenizers": {"backends"},
    "pilotfish_native": {"backends"},
    "huggingface_hub": {"models"},
    "jinja2": {"text", "bench"},
    "typer": {"cli"},
    "rich": {"cli"},
    "matplotlib": {"bench"},
    "llguidance": {"grammar"},
    "fastapi": {"server"},
    "starlette": {"server"},
    "pydantic": {"server"},
    "uvicorn": {"server"},
    "prometheus_client": {"server"},
}

ONE_HOME = {
    "llama_cpp": "backends.llama.library",
    "pilotfish_native": "backends.native.library",
    "matplotlib": "bench.charts",
    "llguidance": "grammar.library",
    "prometheus_client": "server.metrics",
}

MODULE_LINES = 400
FUNCTION_LINES = 60
PARAMETERS = 8
POSITIONAL_PARAMETERS = 4
# entrances: each of their keyword-only parameters is an option that users know
ENTRANCES = {
    "build.load",
    "backends.llama.model.LlamaModel.__init__",
    "backends.native.model.NativeModel.__init__",
    "backends.scripted.ScriptedModel.__init__",
    "engine.session.Session.__init__",
}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def dotted(path: Path) -> str:
    """Return a module's name below `pilotfish`; "" for the root."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(path: Path) -> str:
    return dotted(path).partition(".")[0] or "pilotfish"


def is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every node that runs: functions included, what is for type checkers left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and is_type_checking(child.test):
            for other in child.orelse:
                yield from runtime_nodes(other)
            continue
        yield child
        yield from runtime_nodes(child)


@functools.cache
def imported_names(path: Path) -> set[str]:
    """Return the dotted names a module imports at run time."""
    names: set[str] = set()
    for node in runtime_nodes(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path.name}"
            module = node.module or ""
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for name in imported_names(path):
        package, _, rest = name.partition(".")
        if package == "pilotfish":
            first = rest.partition(".")[0]
            rooms.add(first if first in MAY_IMPORT else "pilotfish")
    return rooms


def module_id(path: Path) -> str:
    return dotted(path) or "pilotfish"


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_a_room_imports_only_what_it_may_know(path: Path) -> None:
    assert room(path) in MAY_IMPORT, f"a new room: say in MAY_IMPORT what {path.name} may know"
    assert imported_rooms(path) <= MAY_IMPORT[room(path)] | {room(path)}


def test_rooms_do_not_import_in_a_circle() -> None:
    known = {name: set() for name in MAY_IMPORT}
    for path in MODULES:
        known[room(path)] |= imported_rooms(path) - {room(path)}
    left = dict(known)
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    assert not left


@pytest.mark.parametrize("package", APART)
def test_parts_of_one_kind_do_not_know_each_other(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        part = dotted(path).split(".")[1] if dotted(path) != package else ""
        others = {
            name.split(".")[2]
            for name in imported_names(path)
            if name.startswith(f"pilotfish.{package}.")
        }
        assert others <= {part} | APART[package].get(part, set()), path.name


def test_the_vocabulary_rule_knows_no_backend() -> None:
    assert imported_rooms(ONLY_ERRORS) == {"errors"}


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_libraries_are_imported_where_they_belong(path: Path) -> None:
    packages = {name.partition(".")[0] for name in imported_names(path)} - {"pilotfish"}
    for package in packages - sys.stdlib_module_names:
        assert package in LIBRARIES, f"{package} is not a declared library"
        assert room(path) in LIBRARIES[package], f"{room(path)} imports {package}"
    for package, home in ONE_HOME.items():
        assert package not in packages or dotted(path) == home


def test_no_module_outgrows_one_sitting() -> None:
    lengths = {dotted(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: n for name, n in lengths.items() if n > MODULE_LINES} == {}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[tuple[str, Function]]:
    """Yield (dotted name, function) for every function of a module, inner ones included."""

    def below(node: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield f"{prefix}.{child.name}", child
            named = isinstance(child, Function | ast.ClassDef)
            yield from below(child, f"{prefix}.{child.name}" if named else prefix)

    yield from below(parsed(path), module_id(path))


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_functions_stay_short_and_take_few_arguments(path: Path) -> None:
    for name, function in functions(path):
        assert num_lines(function) <= FUNCTION_LINES, name
        positional = positional_names(function)
        if not function.name.startswith("_"):
            assert len(positional) <= POSITIONAL_PARAMETERS, name
        if name not in ENTRANCES:
            assert len(positional) + len(function.args.kwonlyargs) <= PARAMETERS, name


def num_lines(function: Function) -> int:
    """Return the lines of a function, its docstring left out."""
    assert function.end_lineno is not None
    first = function.body[0]
    documented = ast.get_docstring(function) is not None and first.end_lineno is not None
    docstring = first.end_lineno - first.lineno + 1 if documented else 0
    return function.end_lineno - function.lineno + 1 - docstring


def positional_names(function: Function) -> list[str]:
    names = [argument.arg for argument in function.args.posonlyargs + function.args.args]
    return [name for name in names if name not in ("self", "cls")]


def test_every_exception_to_the_rules_is_still_needed() -> None:
    counts = {
        name: len(positional_names(function)) + len(function.args.kwonlyargs)
        for path in MODULES
        for name, function in functions(path)
    }
    assert {name for name in ENTRANCES if counts.get(name, 0) <= PARAMETERS} == set()


def public_definitions(path: Path) -> Iterator[tuple[str, Function | ast.ClassDef]]:
    def below(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Function | ast.ClassDef]]:
        for node in body:
            if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
                continue
            yield f"{prefix}.{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from below(node.body, f"{prefix}.{node.name}")

    yield from below(parsed(path).body, module_id(path))


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_public_definitions_have_docstrings_and_annotations(path: Path) -> None:
    tree = parsed(path)
    assert ast.get_docstring(tree) or not tree.body, f"{path.name} has no docstring"
    for name, node in public_definitions(path):
        assert ast.get_docstring(node), f"{name} has no docstring"
    for name, function in functions(path):
        own = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        unannotated = [a.arg for a in own if a.annotation is None and a.arg not in ("self", "cls")]
        assert not unannotated, f"{name}: {unannotated}"
        assert function.returns is not None, f"{name} says nothing about what it returns"


@pytest.mark.parametrize("path", MODULES, ids=module_id)
def test_public_names_are_sorted_and_importable(path: Path) -> None:
    if path.name == "__main__.py":
        return
    module = importlib.import_module(".".join(filter(None, ["pilotfish", dotted(path)])))
    names = list(getattr(module, "__all__", []))
    assert len(names) == len(set(names))
    # constants, then classes, then functions, as the formatter orders them
    assert names == sorted(names) or names == sorted(
        names, key=lambda n: (not n.isupper(), not n[0].isupper(), n)
    )
    for name in names:
        assert getattr(module, name) is not None


def test_the_root_has_few_names_and_lists_them() -> None:
    assert len(pilotfish.__all__) <= 40
    assert dir(pilotfish) == sorted(pilotfish.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        _ = pilotfish.lode


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import pilotfish", {"numpy"}),
        ("import pilotfish; pilotfish.SamplingSettings, pilotfish.TextEngine", {"numpy"}),
        ("import pilotfish; pilotfish.load", {"numpy"}),
        ("import pilotfish.backends.scripted", {"numpy"}),
    ],
)
def test_importing_brings_in_numpy_and_the_standard_library_at_most(
    statement: str, allowed: set[str]
) -> None:
    program = (
        "import sys\n"
        "before = set(sys.modules)\n"
        f"{statement}\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    output = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    ).stdout
    foreign = set(output.split()) - sys.stdlib_module_names - {"pilotfish"}
    assert foreign <= allowed
