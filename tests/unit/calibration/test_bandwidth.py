"""How fast memory is read: from a model's weights where it can, from an array elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotfish import gguf
from pilotfish.backends.footprint import read_footprint
from pilotfish.backends.llama import LlamaModel
from pilotfish.backends.native import NativeModel
from pilotfish.backends.scripted import ScriptedModel, random_logits
from pilotfish.calibration.bandwidth import bandwidth_reader, machine_of, step_bytes_of
from pilotfish.errors import BackendError
from support.file_model import FileModel
from support.tiny_gguf import write_tiny


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("bandwidth") / "tiny.gguf", quantised=True)


def test_a_model_that_reads_its_weights_is_asked(tmp_path: Path) -> None:
    model = FileModel(tmp_path / "model.gguf")
    read = bandwidth_reader(model)
    assert read is not None
    assert (read(), model.readings) == (2000.0, 1)
    assert machine_of(model).endswith(", 2 threads")


def test_a_model_without_weights_has_no_floor() -> None:
    model = ScriptedModel(random_logits(8), vocab_size=8)
    assert bandwidth_reader(model) is None
    assert step_bytes_of(model) == 0


def test_both_backends_say_what_a_step_reads(tiny: Path) -> None:
    promised = read_footprint(gguf.check_file(tiny)).step_bytes
    with NativeModel(tiny) as native, LlamaModel(tiny) as llama:
        assert llama.facts.step_bytes == promised
        # rows of so small a model are padded in memory
        assert native.facts.step_bytes == pytest.approx(promised, rel=1.0)
        for model in (native, llama):
            read = bandwidth_reader(model)
            assert read is not None
            assert 1e6 < read() < 1e13, "bytes per second of a real machine"


def test_reading_weights_gives_seconds_and_the_bytes_of_a_step(tiny: Path) -> None:
    model = NativeModel(tiny)
    seconds, num_bytes = model.read_weights()
    assert 0 < seconds < 10
    assert num_bytes == model.facts.step_bytes
    model.close()
    with pytest.raises(BackendError, match="closed"):
        model.read_weights()
