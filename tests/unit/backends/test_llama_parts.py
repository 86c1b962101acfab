"""The llama backend's parts: tokenizer, machine, batch planning, slow passes, library loading."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotfish.backends import machine
from pilotfish.backends.llama import LlamaModel, placement
from pilotfish.backends.llama.batch import Piece, plan_passes
from pilotfish.backends.llama.cache import LlamaCache
from pilotfish.backends.llama.slow_pass import SlowPassDetector
from pilotfish.backends.llama.tokenizer import LlamaTokenizer
from pilotfish.errors import BackendError, MissingExtra
from pilotfish.types import Segment
from support.tiny_gguf import BEGIN, CHAT_TEMPLATE, END, TURN, vocabulary, write_tiny

TEXTS, TYPES = vocabulary()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTokenizer]:
    path = write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf", padding=5)
    with LlamaModel(path, context_size=64, threads=1) as model:
        yield model.tokenizer


@pytest.mark.parametrize("text", ["", "the cat and a hat", "naïve 🐟 ünder\r\n\t", "x" * 5000])
def test_bytes_of_the_ids_give_back_the_text(tokenizer: LlamaTokenizer, text: str):
    ids = tokenizer.encode(text, parse_special=False)
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()


def test_merges_are_used(tokenizer: LlamaTokenizer):
    assert tokenizer.encode("the", parse_special=False) == [TEXTS.index("the")]


def test_control_tokens_are_parsed_only_when_asked(tokenizer: LlamaTokenizer):
    text = f"{TURN}user{END}"
    parsed = tokenizer.encode(text, parse_special=True)
    assert (parsed[0], parsed[-1]) == (TEXTS.index(TURN), TEXTS.index(END))
    plain = tokenizer.encode(text, parse_special=False)
    assert not any(tokenizer.is_control(token_id) for token_id in plain)
    assert b"".join(map(tokenizer.token_bytes, plain)) == text.encode()


def test_control_tokens_stand_for_no_bytes(tokenizer: LlamaTokenizer):
    assert tokenizer.token_bytes(TEXTS.index(END)) == b""
    assert tokenizer.token_text(TEXTS.index(END)) == END


def test_facts_about_the_vocabulary(tokenizer: LlamaTokenizer):
    assert tokenizer.vocab_size == len(TEXTS)
    assert tokenizer.all_token_texts() == TEXTS
    assert set(tokenizer.special_texts) == {BEGIN, TURN, END}
    assert [len(text) for text in tokenizer.special_texts] == sorted(
        (len(text) for text in (BEGIN, TURN, END)), reverse=True
    )
    assert tokenizer.end_ids == {TEXTS.index(END)}
    assert tokenizer.bos_id == TEXTS.index(BEGIN)
    assert (tokenizer.bos_text, tokenizer.eos_text) == (BEGIN, END)
    assert not tokenizer.add_bos
    assert tokenizer.chat_template == CHAT_TEMPLATE
    assert tokenizer.kind == "gpt2/gpt-2"


@pytest.mark.parametrize("token_id", [-1, len(TEXTS), 10**9])
def test_ids_outside_the_vocabulary_are_errors(tokenizer: LlamaTokenizer, token_id: int):
    for read in (tokenizer.token_bytes, tokenizer.token_text, tokenizer.is_control):
        with pytest.raises(BackendError, match="outside the vocabulary"):
            read(token_id)


def test_passes_take_every_token_once_and_keep_the_limits():
    cache = LlamaCache(None, 0)  # type: ignore[arg-type]
    segments = [
        Segment(cache, list(range(10)), first_row=7),
        Segment(cache, []),
        Segment(cache, list(range(5))),
    ]
    for max_tokens in (1, 3, 4, 100):
        for max_rows in (1, 2, 100):
            passes = plan_passes(segments, max_tokens=max_tokens, max_rows=max_rows)
            taken = [
                (piece.index, i)
                for pieces in passes
                for piece in pieces
                for i in range(piece.start, piece.stop)
            ]
            assert taken == [(0, i) for i in range(10)] + [(2, i) for i in range(5)]
            for pieces in passes:
                assert 0 < sum(p.stop - p.start for p in pieces) <= max_tokens
                rows = sum(
                    max(0, p.stop - max(p.start, segments[p.index].first_row)) for p in pieces
                )
                assert rows <= max_rows
    assert plan_passes(segments, max_tokens=100, max_rows=100) == [
        [Piece(0, 0, 10), Piece(2, 0, 5)]
    ]


def test_hyperthreads_of_one_core_count_once(tmp_path: Path):
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert machine.count_cores(frozenset({0, 1, 2, 3}), tmp_path) == 2
    assert machine.count_cores(frozenset({0, 2}), tmp_path) == 1
    # CPUs of unknown topology
    assert machine.count_cores(frozenset({8, 9}), tmp_path) == 2


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
    ],
)
def test_the_quota_of_a_container_is_read(
    tmp_path: Path, files: dict[str, str], expected: float | None
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert machine.cpu_quota(tmp_path) == expected


def test_threads_are_at_least_one_and_at_most_the_quota(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "GRANTED_CPUS", frozenset(range(1000, 1008)))
    for quota, threads in ((None, 8), (0.5, 1), (2.9, 2), (64.0, 8)):
        monkeypatch.setattr(machine, "cpu_quota", lambda quota=quota: quota)
        assert machine.default_threads() == threads


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"])
def test_placement_the_user_chose_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "0")
    before = dict(os.environ)
    with placement.protected_placement() as is_ours:
        assert not is_ours
        assert dict(os.environ) == before


def test_placement_is_set_while_loading_and_taken_back(monkeypatch: pytest.MonkeyPatch):
    for name in ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"):
        monkeypatch.delenv(name, raising=False)
    with placement.protected_placement() as is_ours:
        assert is_ours
        assert os.environ["OMP_PROC_BIND"] == "close"
    assert "OMP_PROC_BIND" not in os.environ


def test_a_slow_machine_is_told_from_a_slow_pass():
    detector = SlowPassDetector(10**9, threads=2, bandwidth=lambda: 10e9)
    # 0.1 s to read; the limit of suspicion is higher
    assert [detector.observe(seconds) for seconds in (0.1, 0.6, 0.1)] == [None] * 3
    # slow, but not eight times slower than reading
    assert [detector.observe(0.75) for _ in range(6)] == [None] * 6
    # one quick pass in between means the threads are well
    assert [detector.observe(seconds) for seconds in (2, 2, 0.1, 2, 2)] == [None] * 5
    notice = detector.observe(2.2)
    assert notice is not None
    assert "2000 ms" in notice
    assert "100 ms" in notice
    assert "OMP_PROC_BIND" in notice
    assert [detector.observe(2.0) for _ in range(9)] == [None] * 9


def test_a_single_thread_cannot_share_its_core():
    detector = SlowPassDetector(10**9, threads=1, bandwidth=lambda: 10e9)
    assert [detector.observe(5.0) for _ in range(5)] == [None] * 5


def test_a_slow_pass_is_noticed_once_by_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write_tiny(tmp_path / "tiny.gguf")
    with LlamaModel(path, context_size=64, threads=2) as model:
        # a tiny file cannot be slow, so it is made out to be a small one of a fast machine
        model._slow_passes = SlowPassDetector(1, threads=2, bandwidth=lambda: 1e18)
        model._slow_passes.suspicious_seconds = 0.0
        cache = model.new_cache()
        with caplog.at_level(logging.WARNING, logger="pilotfish"):
            for token_id in range(9):
                model.forward([Segment(cache, [token_id])])
        assert len(model.notices) == len(caplog.records) == 1


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter and return what it wrote."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_importing_the_backend_does_not_load_llama_cpp():
    code = "import sys, pilotfish.backends.llama; print('llama_cpp' in sys.modules)"
    assert run_python(code).stdout.strip() == "False"


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    from pilotfish.backends.llama import library

    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingExtra) as caught:
        library.load_library.__wrapped__()
    assert caught.value.hint == f"{Path(__file__).parents[3]}/scripts/install llama"


def test_loading_and_running_writes_nothing_to_the_terminal(tmp_path: Path):
    path = write_tiny(tmp_path / "tiny.gguf")
    code = (
        "from pilotfish.backends.llama import LlamaModel; from pilotfish.types import Segment; "
        f"m = LlamaModel({str(path)!r}, context_size=64); c = m.new_cache(); "
        "m.forward([Segment(c, [1, 2])]); c.truncate(1); m.close()"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_passes_leave_this_thread_and_child_processes_all_cores(tmp_path: Path):
    path = write_tiny(tmp_path / "tiny.gguf")
    code = (
        "import json, os, subprocess, sys; os.sched_setaffinity(0, range(os.cpu_count())); "
        "before = sorted(os.sched_getaffinity(0)); "
        "from pilotfish.backends.llama import LlamaModel; from pilotfish.types import Segment; "
        f"m = LlamaModel({str(path)!r}, context_size=64, threads=2); c = m.new_cache(); "
        "m.forward([Segment(c, [1])]); m.forward([Segment(c, [1])]); "
        "child = subprocess.check_output([sys.executable, '-c', "
        "'import os; print(sorted(os.sched_getaffinity(0)))'], text=True); "
        "print(json.dumps([before, sorted(os.sched_getaffinity(0)), json.loads(child)]))"
    )
    done = run_python(code)
    before, after, child = json.loads(done.stdout)
    assert before == after == child
