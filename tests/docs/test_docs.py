"""What the pages say is run, parsed or compared with the code."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import re
import shlex
import shutil
import subprocess
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import pilotfish
from pilotfish import build, errors
from pilotfish.accounting.metrics import ReplyStats
from pilotfish.config import DEFAULT_DRAFT_HEAD_SIZE, EngineConfig
from pilotfish.control import guard, request_state

ROOT = Path(pilotfish.__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WRITTEN = [page for page in PAGES if page.parent != REFERENCE]
# dated notes and measurements tell what was true on their day
CURRENT = [page for page in WRITTEN if page.name not in ("lab-notes.md", "CHANGELOG.md")]

SHELL = ("sh", "bash", "shell", "console")
# options that pages name and that belong to other programs
FOREIGN_OPTIONS = {"--check", "--durations"}
# file names of ours, and a pattern for each way to name a place on one machine or how we work
NOT_FOR_READERS = {
    "a path of one machine": r"(?<![\w.~}])/(?:work|farm|root|home/\w+)/",
    "a scratch path": r"(?<![\w.~}])/tmp/\w",
    "how we work": r"(?i)\bissue\s+#\d|\bsession of ours\b|\bthis workplace\b|\bmilestone\s+\d",
}
# other people's words for our things, and words that promise what they do not say
WORDS_WE_DO_NOT_USE = r"(?i)\b(assistant model|speculators?|proposers?|lossless(ly)?|draft-max)\b"


class Block(NamedTuple):
    """A fenced block of a page; `needs_models` when the mark stands right before it."""

    language: str
    code: str
    line: int
    needs_models: bool


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start, language, before = None, "", ""
    for number, line in enumerate(lines):
        fence = re.match(r"\s*```(.*)", line)
        if fence and start is None:
            start, language = number, fence[1].strip()
        elif fence:
            indent = len(lines[start]) - len(lines[start].lstrip())
            code = "\n".join(one[indent:] for one in lines[start + 1 : number])
            yield Block(language, code + "\n", start + 2, before == "<!-- models -->")
            start, before = None, ""
        elif start is None and line.strip():
            before = line.strip()


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"(?ms)^\s*```.*?^\s*```\s*$", "", page.read_text(encoding="utf-8"))


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture(scope="module")
def generator() -> types.ModuleType:
    """Return scripts/docs.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def help_texts(generator: types.ModuleType) -> Mapping[tuple[str, ...], str]:
    texts: Mapping[tuple[str, ...], str] = generator.help_texts()
    return texts


def python_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


PYTHON_PAGES = [page for page in WRITTEN if python_blocks(page)]


def run_blocks(page: Path, *, with_models: bool) -> None:
    """Run a page's blocks from top to bottom in one namespace, as a reader would."""
    namespace: dict[str, object] = {"__name__": "__page__"}
    for block in python_blocks(page):
        # the lines before keep the line numbers of the page in a traceback
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        if with_models or not block.needs_models:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(code, namespace)


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=page_id)
def test_python_on_the_pages_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(page, with_models=False)


@pytest.mark.models
@pytest.mark.parametrize(
    "page",
    [page for page in PYTHON_PAGES if any(b.needs_models for b in python_blocks(page))],
    ids=page_id,
)
def test_python_on_the_pages_runs_with_real_models(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(page, with_models=True)


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_configurations_on_the_pages_are_valid(page: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            EngineConfig.from_dict(tomllib.loads(block.code))


def shell_commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of every `pilotfish` command of a page, in blocks and between backticks."""
    texts = [block.code for block in blocks(page) if block.language in SHELL]
    texts += re.findall(r"`((?:\w+=\S+ )*pilotfish [^`]+)`", prose(page))
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            for command in split_at(words, {"|", "&&", ";", "||"}):
                while command and re.match(r"\w+=", command[0]):
                    command = command[1:]
                if command[:1] == ["pilotfish"]:
                    yield command[1:]


def split_at(words: list[str], ends: set[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if word in ends:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def options_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_commands_on_the_pages_have_these_options(
    page: Path, help_texts: Mapping[tuple[str, ...], str]
) -> None:
    for words in shell_commands(page):
        command: tuple[str, ...] = ()
        while (*command, *words[len(command) : len(command) + 1]) in help_texts and len(
            command
        ) < len(words):
            command = (*command, words[len(command)])
        rest = words[len(command) :]
        if not command:
            first = "".join(rest[:1])
            assert first.startswith("--"), f"no command: pilotfish {' '.join(words)}"
        known = options_in(help_texts[command]) | {"--help", "--verbose"}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used <= known, f"pilotfish {' '.join(words)}"


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_options_in_the_prose_exist(page: Path, help_texts: Mapping[tuple[str, ...], str]) -> None:
    known = set().union(*map(options_in, help_texts.values())) | FOREIGN_OPTIONS
    for script in (ROOT / "scripts").rglob("*.py"):
        known |= set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', script.read_text()))
    for span in re.findall(r"`([^`]+)`", prose(page)):
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span):
            assert option in known, f"{page.name} names {option}"


def anchors(page: Path) -> set[str]:
    """Return what the headings of a page can be linked as."""
    found = set()
    for heading in re.findall(r"(?m)^#+ (.+)$", prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_between_pages_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert linked.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(linked), f"{page.name} links to {target}"


def test_every_page_can_be_reached_from_the_first() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or not page.exists() or page.suffix != ".md":
            continue
        seen.add(page)
        targets = re.findall(r"\]\(([^)\s#]+)", prose(page))
        waiting += [(page.parent / t).resolve() for t in targets if "://" not in t]
        if page.name == "README.md":
            # the front page links to the guides; they link to each other
            waiting.append(ROOT / "docs" / "guides" / "getting-started.md")
    missing = {page_id(p) for p in PAGES if p.parent.name in ("guides", "concepts", "reference")}
    assert missing - {page_id(p) for p in seen} == set()


def test_the_reference_is_what_the_code_says(
    generator: types.ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    code = generator.main(["--check"])
    assert (code, capsys.readouterr().err) == (0, "")


def test_a_page_that_is_out_of_date_is_named_in_one_line(
    generator: types.ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(generator, "REFERENCE", tmp_path)
    for name in ("cli_page", "python_page"):
        text = f"{name}\n"
        monkeypatch.setattr(generator, name, lambda text=text: text)
    assert generator.main([]) == 0
    assert generator.main(["--check"]) == 0
    (tmp_path / "cli.md").write_text("old")
    capsys.readouterr()
    assert generator.main(["--check"]) == 1
    message = capsys.readouterr().err
    assert message == "error: out of date: cli.md in docs/reference; run scripts/docs.py\n"


def project_files() -> list[Path]:
    """Return the text files of the project, as git knows them."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    names = [name for name in listed if name and name != "LICENSE"]
    return [ROOT / name for name in names if (ROOT / name).is_file()]


def test_nothing_speaks_of_one_machine_or_of_how_we_work() -> None:
    found = []
    for path in project_files():
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            for what, pattern in NOT_FOR_READERS.items():
                if match := re.search(pattern, text):
                    found.append(f"{path.relative_to(ROOT)}: {match[0]!r} is {what}")
    assert not found


@pytest.mark.parametrize("page", CURRENT, ids=page_id)
def test_pages_use_our_words(page: Path) -> None:
    if page.name == "ARCHITECTURE.md":  # its list of words names the others, too
        return
    assert re.search(WORDS_WE_DO_NOT_USE, page.read_text(encoding="utf-8")) is None


def test_words_in_code_of_the_glossary_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = "\n".join(p.read_text() for p in (ROOT / "src").rglob("*.py"))
    rows = re.findall(r"(?m)^\| [^|`]+ \| ((?:`[^`]+`(?:, )?)+) \|", text)
    assert len(rows) >= 12
    for row in rows:
        for name in re.findall(r"`([^`]+)`", row):
            for part in re.findall(r"[A-Za-z_]\w+", name):
                assert re.search(rf"\b{part}\b", source), f"nothing is called {part}"


def test_every_error_is_in_the_drawn_tree_under_its_parent() -> None:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    parents: list[str] = []
    drawn: dict[str, str] = {}
    for line in tree.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+)", line)
        assert match is not None
        depth = len(match[1]) // 4
        parents[depth:] = [match[2]]
        drawn[match[2]] = parents[depth - 1] if depth else "Exception"
    real = {
        kind.__name__: kind.__base__.__name__
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__base__ is not None
    }
    assert drawn == real


def test_every_figure_of_a_reply_is_explained() -> None:
    page = (ROOT / "docs" / "concepts" / "accounting.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(ReplyStats):
        assert f"`{field.name}`" in page


def test_defaults_on_the_pages_are_those_of_the_code() -> None:
    numbers = [build.DEFAULTS[name].num_speculative_tokens for name in ("native", "llama")]
    drafters = (ROOT / "docs" / "concepts" / "drafters.md").read_text(encoding="utf-8")
    choosing = (ROOT / "docs" / "guides" / "choosing-a-drafter.md").read_text(encoding="utf-8")
    assert "it is {} on the native backend and {} on llama.cpp".format(*numbers) in drafters
    assert f"at most {build.MOST_DRAFTS}." in drafters
    assert f"at most {build.MOST_DRAFTS}." in choosing
    backoff = [min(16 << i, request_state.MOST_BACKOFF) for i in range(4)]
    assert "{}, {}, {}, {} ...".format(*backoff) in drafters
    assert f"{guard.SHARE:.0%}".replace("%", " %") in drafters
    assert f"{guard.START:.0f} to {guard.MOST:.0f} steps" in drafters
    assert f"{DEFAULT_DRAFT_HEAD_SIZE:,} most frequent" in drafters


def test_the_limit_of_the_promise_is_in_plain_words() -> None:
    page = (ROOT / "docs" / "concepts" / "same-text.md").read_text(encoding="utf-8")
    for words in ("quantised", "strict", "other text", "width"):
        assert words in page


@pytest.mark.parametrize(("name", "limit"), [("ARCHITECTURE.md", 150), ("CONTRIBUTING.md", 80)])
def test_pages_for_developers_stay_short(name: str, limit: int) -> None:
    assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= limit


def test_the_changelog_has_the_version_or_is_about_to() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^## \[?([^\]\s]+)", text)
    assert headings[0] in ("Unreleased", pilotfish.__version__)
