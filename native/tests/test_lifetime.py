"""Models come and go: threads, forks, closing, what stays behind, and what an idle model costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pilotfish_native import Model, Sequence
from pilotfish_native.files import open_file

from pilotfish import models
from support.memory import growth
from support.tiny_networks import TinyNetwork, shape_of_network, write_network

TEXT = [(11 * i * i + 5 * i) % 70 for i in range(64)]
# a pass that lasts long enough for another thread to come along
LONG = TEXT * 12
# read while tests are collected, before any of them runs
USERS_CACHE = os.environ.get("PILOTFISH_CACHE")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> TinyNetwork:
    return write_network(tmp_path_factory.mktemp("net") / "weights", "Q8_0", num_layers=2)


def rows_of(core: Model, ids: list[int] = TEXT) -> NDArray[np.float32]:
    return core.forward([core.new_sequence()], [ids], [0]).copy()


@contextmanager
def at_work(core: Model, sequence: Sequence) -> Iterator[threading.Thread]:
    """Run a long pass in another thread, and give it once it has begun."""

    def work() -> None:
        while True:
            with suppress(RuntimeError):  # the question below was there first
                core.forward([sequence], [LONG], [len(LONG)])
                return

    thread = threading.Thread(target=work)
    thread.start()
    try:
        # what is asked of a model at work is refused at once
        with suppress(RuntimeError):
            while thread.is_alive():
                core.read_weights()
        yield thread
    finally:
        thread.join()


def uses_of(core: Model, sequence: Sequence) -> list[Callable[[], object]]:
    return [
        lambda: core.forward([core.new_sequence()], [[1]], [0]),
        core.read_weights,
        core.close,
        sequence.close,
        lambda: sequence.truncate(0),
        lambda: sequence.prefix(0),
    ]


@pytest.mark.parametrize("use", range(6))
def test_a_model_at_work_refuses_other_threads_and_goes_on(network: TinyNetwork, use: int) -> None:
    core = network.open(instructions="portable")
    sequence = core.new_sequence()
    with at_work(core, sequence) as thread:
        with pytest.raises(RuntimeError, match="another thread"):
            uses_of(core, sequence)[use]()
        assert thread.is_alive()
    assert len(sequence) == len(LONG)
    expected = core.forward([core.new_sequence()], [[*LONG, 1]], [len(LONG)]).copy()
    np.testing.assert_array_equal(core.forward([sequence], [[1]], [0]), expected)


def test_threads_that_take_turns_get_the_rows_of_one(network: TinyNetwork) -> None:
    core = network.open(threads=2)
    expected, got = rows_of(core), []
    for _ in range(8):
        thread = threading.Thread(target=lambda: got.append(rows_of(core)))
        thread.start()
        thread.join()
    for rows in got:
        np.testing.assert_array_equal(rows, expected)


def test_a_closed_model_refuses_all_and_its_sequences_live_on(network: TinyNetwork) -> None:
    core = network.open(threads=2)
    sequence = core.new_sequence()
    core.forward([sequence], [TEXT], [0])
    core.close()
    core.close()
    assert not core.is_open
    with pytest.raises(RuntimeError, match="closed"):
        core.new_sequence()
    with pytest.raises(RuntimeError, match="closed"):
        core.read_weights()
    with pytest.raises(RuntimeError, match="closed"):
        core.forward([], [], [])
    del core
    sequence.truncate(40)
    copy = sequence.prefix(33)
    sequence.close()
    assert (len(sequence), len(copy)) == (0, 33)
    with pytest.raises(ValueError, match="another model"):
        network.open().forward([copy], [[1]], [0])


def test_files_that_cannot_be_read_are_named(network: TinyNetwork, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name, error in (("none", OSError), ("", OSError), ("empty", ValueError)):
        elsewhere = replace(network, path=tmp_path / name)
        with pytest.raises(error, match=str(elsewhere.path)):
            elsewhere.open()


FORK = """
import os, sys
from pathlib import Path
from support.tiny_networks import write_network

core = write_network(Path(sys.argv[1]), "Q8_0").open(threads=3)
sequence = core.new_sequence()
first = core.forward([sequence], [[1, 2, 3]], [0]).copy()
child = os.fork()
if child == 0:
    refused = 0
    for call in (lambda: core.forward([sequence], [[4]], [0]), core.read_weights, core.close):
        try:
            call()
        except RuntimeError as error:
            refused += "fork" in str(error)
    sequence.truncate(1)
    # the way out through the interpreter: everything of the parent's is let go
    sys.exit(refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
assert len(sequence) == 3
sequence.truncate(0)
assert (core.forward([sequence], [[1, 2, 3]], [0]) == first).all()
child = os.fork()
if child == 0:
    # a model of its own works in a child
    own = write_network(Path(sys.argv[1]).with_name("own"), "Q8_0").open(threads=3)
    os._exit(int((own.forward([own.new_sequence()], [[1, 2, 3]], [0]) == first).all()))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
"""


def test_a_forked_child_is_refused_and_the_parent_goes_on(tmp_path: Path) -> None:
    subprocess.run(
        # newer interpreters warn of forks beside threads, which is what this is about
        [sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path / "weights")],
        check=True,
        timeout=60,
        cwd=Path(__file__).parents[2] / "tests",
    )


FIRST_IN_THREADS = """
import json, sys, threading
from pilotfish_native import Model

parameters = json.loads(sys.argv[1])
begin, errors = threading.Barrier(4), []


def load():
    begin.wait()
    try:
        # known on every processor, and the last that is looked for
        Model(["/nowhere"], [], parameters, threads=1, instructions="portable")
    except OSError:
        pass
    except BaseException as error:
        errors.append(error)


# what this processor has is asked for by the first two that load at once, and by nobody before
threads = [threading.Thread(target=load) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not errors, errors
"""


def test_the_first_models_may_be_loaded_in_several_threads_at_once() -> None:
    """A build with the thread sanitizer finds races here; without one they are too rare."""
    subprocess.run(
        [sys.executable, "-c", FIRST_IN_THREADS, json.dumps(shape_of_network())],
        check=True,
        timeout=60,
    )


@pytest.mark.parametrize("instructions", ["auto", "portable"])
def test_an_idle_model_uses_no_processor(network: TinyNetwork, instructions: str) -> None:
    core = network.open(threads=3, instructions=instructions)
    for _ in range(3):
        rows_of(core)
    time.sleep(0.1)  # threads of other libraries come to rest, too
    begun = time.process_time()
    time.sleep(0.5)
    # three threads that look for work would use up all there is
    assert time.process_time() - begun < 0.05


def round_trip(network: TinyNetwork) -> None:
    core = network.open(threads=2, head_ids=np.arange(20, dtype=np.int32))
    sequence = core.new_sequence()
    core.forward([sequence], [TEXT * 3], [0])
    copy = sequence.prefix(70)
    core.extend_head(np.array([33], dtype=np.int32))
    core.forward([copy, sequence], [TEXT, [1]], [0, 0])
    core.close()


def test_loading_and_freeing_does_not_raise_memory(network: TinyNetwork) -> None:
    grown = growth(lambda: round_trip(network), rounds=200, warm_up=20)
    assert (grown.num_threads, grown.num_files) == (0, 0)
    assert grown.resident_bytes < 2 * 2**20


def test_refused_files_do_not_raise_memory(network: TinyNetwork) -> None:
    others = {name: t for name, t in network.tensors.items() if "ffn_down" not in name}
    missing = replace(network, tensors=others)

    def refused() -> None:
        with pytest.raises(ValueError, match="ffn_down"):
            missing.open(threads=2, head_ids=np.arange(20, dtype=np.int32))

    grown = growth(refused, rounds=200, warm_up=20)
    assert (grown.num_threads, grown.num_files) == (0, 0)
    assert grown.resident_bytes < 2 * 2**20


@pytest.fixture
def users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what other tests did to the place of the models."""
    if USERS_CACHE is None:
        monkeypatch.delenv("PILOTFISH_CACHE", raising=False)
    else:
        monkeypatch.setenv("PILOTFISH_CACHE", USERS_CACHE)


@pytest.mark.models
@pytest.mark.usefixtures("users_cache")
def test_loading_and_freeing_a_real_model_does_not_raise_memory() -> None:
    path = str(models.resolve("smollm2-135m"))

    def load_and_free() -> None:
        core = open_file(path, threads=2, context_size=64, max_sessions=1)
        core.forward([core.new_sequence()], [list(range(1, 20))], [18])
        core.close()

    grown = growth(load_and_free, rounds=200, warm_up=10)
    assert (grown.num_threads, grown.num_files) == (0, 0)
    assert grown.resident_bytes < 4 * 2**20
