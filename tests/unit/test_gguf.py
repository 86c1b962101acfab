"""GGUF headers: what is read from a good file, and one clear line for every bad one."""

from __future__ import annotations

import builtins
import os
import random
import struct
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf as reference_gguf
import numpy as np
import pytest

from pilotfish.errors import ModelFileError
from pilotfish.gguf import TENSOR_TYPES, check_file, read_header, split_names

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def packed_string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def packed_value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return packed_string(value)
    if kind == ARRAY:
        element_kind, elements = value
        start = struct.pack("<IQ", element_kind, len(elements))
        return start + b"".join(packed_value(element_kind, one) for one in elements)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}[kind], value)


def packed_file(
    metadata: Sequence[tuple[str, int, Any]], tensors: Sequence[tuple[str, tuple[int, ...], int]]
) -> bytes:
    """Return a GGUF file with these metadata and zero tensors of (name, shape, type id)."""
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, kind, value in metadata:
        header += packed_string(key) + struct.pack("<I", kind) + packed_value(kind, value)
    offset = 0
    for name, shape, type_id in tensors:
        header += packed_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", type_id, offset)
        _, block_elements, block_bytes = TENSOR_TYPES[type_id]
        offset += -(-(int(np.prod(shape)) // block_elements * block_bytes) // 32) * 32
    return header + bytes(-len(header) % 32) + bytes(offset)


METADATA: list[tuple[str, int, Any]] = [
    ("general.architecture", STRING, "llama"),
    ("general.name", STRING, "a tiny öne"),
    ("llama.block_count", U32, 2),
    ("llama.rope.freq_base", F32, 10000.0),
    ("tokenizer.ggml.add_bos_token", BOOL, True),
    ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "a", "bc", ""])),
    ("tokenizer.ggml.token_type", ARRAY, (I32, [3, 1, 1, 1])),
]
TENSORS = [("token_embd.weight", (64, 4), 8), ("output_norm.weight", (64,), 0)]
GOOD = packed_file(METADATA, TENSORS)


def written(folder: Path, content: bytes, name: str = "tiny.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def message_of(path: Path) -> str:
    """Return the one line by which `check_file` refuses a file."""
    with pytest.raises(ModelFileError) as caught:
        check_file(path)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def test_a_header_says_what_was_written(tmp_path: Path) -> None:
    header = check_file(written(tmp_path, GOOD))
    assert header.version == 3
    assert header.architecture == "llama"
    assert header.text("general.name") == "a tiny öne"
    assert header.integer("llama.block_count") == 2
    assert header.metadata["llama.rope.freq_base"] == 10000.0
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    assert header.vocabulary_size == 4
    assert header.parameter_count == 64 * 4 + 64
    assert header.tensor_bytes == 64 * 4 // 32 * 34 + 64 * 4
    assert [t.type_name for t in header.tensors] == ["Q8_0", "F32"]
    assert header.tensors[0].offset == header.data_offset
    assert header.tensors[1].offset + header.tensors[1].num_bytes == len(GOOD)


def test_arrays_are_read_when_asked_for(tmp_path: Path) -> None:
    header = read_header(written(tmp_path, GOOD))
    assert header.array("tokenizer.ggml.tokens") == ["<s>", "a", "bc", ""]
    np.testing.assert_array_equal(header.array("tokenizer.ggml.token_type"), [3, 1, 1, 1])
    with pytest.raises(KeyError):
        header.array("general.name")


def test_a_file_of_the_reference_writer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "reference.gguf"
    writer = reference_gguf.GGUFWriter(path, "qwen2")
    writer.add_block_count(3)
    writer.add_vocab_size(11)
    writer.add_custom_alignment(64)
    writer.add_tensor("a.weight", np.arange(96, dtype=np.float32).reshape(3, 32))
    writer.add_tensor("b.weight", np.ones(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = check_file(path)
    assert (header.architecture, header.vocabulary_size, header.alignment) == ("qwen2", 11, 64)
    assert [t.shape for t in header.tensors] == [(32, 3), (5,)]
    raw = path.read_bytes()
    first = header.tensors[0]
    values = np.frombuffer(raw[first.offset : first.offset + first.num_bytes], dtype="<f4")
    np.testing.assert_array_equal(values, np.arange(96))


def test_type_sizes_are_those_of_the_reference() -> None:
    for kind, sizes in reference_gguf.GGML_QUANT_SIZES.items():
        if kind.name != "Q8_1":  # never stored; ggml.c has 36 bytes, the Python package 40
            assert TENSOR_TYPES[int(kind)] == (kind.name, *sizes)


@pytest.mark.parametrize("length", [0, 4, 10, 100, 300, len(GOOD) // 2, len(GOOD) - 1])
def test_a_cut_file_is_refused_with_its_size(tmp_path: Path, length: int) -> None:
    message = message_of(written(tmp_path, GOOD[:length]))
    assert "cut" in message or "empty" in message
    assert f"{length:,}" in message


def test_a_file_cut_by_one_byte_names_both_sizes(tmp_path: Path) -> None:
    message = message_of(written(tmp_path, GOOD[:-1]))
    assert f"expected {len(GOOD):,} bytes but it has {len(GOOD) - 1:,}" in message


def test_a_file_with_a_large_vocabulary_cut_at_1000_bytes_is_refused(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(20_000)]
    large = packed_file([("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))], TENSORS)
    assert "1,000 bytes" in message_of(written(tmp_path, large[:1000]))
    assert check_file(written(tmp_path, large)).array("tokenizer.ggml.tokens") == tokens


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<!DOCTYPE html>\n<html><head><title>404</title>", "HTML"),
        (b"  <html lang='en'>", "HTML"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS"),
        (b'{"error": "Entry not found"}', "text"),
        (b"PK\x03\x04\x00\x00\x00\x08", "50 4b 03 04"),
        (b"GG", "only 2 bytes"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(64), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(64), "big-endian"),
        (b"GGUF" + struct.pack("<I", 99) + bytes(64), "version 99"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, content: bytes, reason: str) -> None:
    assert reason in message_of(written(tmp_path, content))


def test_directories_pipes_and_absent_files_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder.gguf"
    folder.mkdir()
    assert "directory" in message_of(folder)
    assert "does not exist" in message_of(tmp_path / "absent.gguf")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.gguf")
        assert "not a regular file" in message_of(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match="null byte"):
        check_file(tmp_path / "nul\0.gguf")


def test_a_name_with_a_line_break_still_gives_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        check_file(tmp_path / "two\nlines.gguf")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(PermissionError(13, "Permission denied"), "no permission"), (OSError(5, "I/O"), "I/O")],
)
def test_an_unreadable_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, reason: str
) -> None:
    path = written(tmp_path, GOOD)

    # root may read everything, so the refusal is simulated
    def refuse(*args: Any, **options: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "open", refuse)
        message = message_of(path)
    assert reason in message


def split_files(folder: Path, numbers: Sequence[int], count: int = 3) -> list[Path]:
    """Write these parts (from 1) of a split model and return the paths of all parts."""
    paths = [folder / name for name in split_names(f"tiny-00001-of-{count:05d}.gguf")]
    for number in numbers:
        metadata = METADATA if number == 1 else []
        split = [
            ("split.no", U32, number - 1),
            ("split.count", U32, count),
            ("split.tensors.count", I32, count),
        ]
        tensors = [(f"blk.{number}.weight", (64,), 0)]
        paths[number - 1].write_bytes(packed_file([*metadata, *split], tensors))
    return paths


def test_all_parts_of_a_split_model_make_one_header(tmp_path: Path) -> None:
    paths = split_files(tmp_path, [1, 2, 3])
    header = check_file(paths[0])
    assert header.paths == tuple(paths)
    assert [t.part for t in header.tensors] == [0, 1, 2]
    assert header.parameter_count == 3 * 64
    assert header.architecture == "llama"


def test_missing_parts_are_named(tmp_path: Path) -> None:
    paths = split_files(tmp_path, [1])
    message = message_of(paths[0])
    assert "part 1 of 3" in message
    assert "tiny-00002-of-00003.gguf and 1 more is missing" in message


def test_a_later_part_says_where_to_start(tmp_path: Path) -> None:
    paths = split_files(tmp_path, [1, 2, 3])
    with pytest.raises(ModelFileError, match="is part 2 of 3") as caught:
        check_file(paths[1])
    assert caught.value.hint == "start from tiny-00001-of-00003.gguf"


def test_wrong_and_cut_parts_are_named(tmp_path: Path) -> None:
    paths = split_files(tmp_path, [1, 2, 3])
    whole = paths[2].read_bytes()
    paths[2].write_bytes(whole[:-1])
    with pytest.raises(ModelFileError, match=r"tiny-00003-of-00003\.gguf is cut"):
        check_file(paths[0])
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(ModelFileError, match="should be part 3 of 3 but is part 2 of 3"):
        check_file(paths[0])
    paths[2].write_bytes(whole)
    renamed = paths[0].rename(tmp_path / "renamed.gguf")
    assert "its name does not say so" in message_of(renamed)


def damaged_header(*, tensors: int = 0, values: int = 0, rest: bytes = b"") -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, values) + rest + bytes(4096)


def tensor_entry(shape: Sequence[int], type_id: int = 0, offset: int = 0) -> bytes:
    start = packed_string("w") + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return start + struct.pack("<IQ", type_id, offset)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (damaged_header(tensors=2**60), "tensors"),
        (damaged_header(values=2**64 - 1), "metadata values"),
        (damaged_header(values=1, rest=struct.pack("<Q", 2**62)), "length of"),
        (damaged_header(values=1, rest=packed_string("k") + struct.pack("<I", 77)), "type 77"),
        (
            damaged_header(values=1, rest=packed_string("k") + struct.pack("<IIQ", 9, 4, 2**61)),
            "elements",
        ),
        (
            damaged_header(values=1, rest=packed_string("k") + struct.pack("<IIQ", 9, 8, 2**21)),
            "array|cut or damaged",
        ),
        (
            damaged_header(values=1, rest=packed_string("k") + struct.pack("<IIQ", 9, 9, 1)),
            "unknown type 9",
        ),
        (damaged_header(values=1, rest=struct.pack("<Q", 1) + b"\xff"), "not UTF-8"),
        (damaged_header(tensors=1, rest=tensor_entry([1] * 9)), "9 dimensions"),
        (damaged_header(tensors=1, rest=tensor_entry([2**40, 2**40])), "shape"),
        (damaged_header(tensors=1, rest=tensor_entry([8], type_id=4)), "number format 4"),
        (damaged_header(tensors=1, rest=tensor_entry([8], type_id=12)), "not a multiple of 256"),
        (damaged_header(tensors=1, rest=tensor_entry([8], offset=7)), "multiple of 32"),
        (damaged_header(tensors=1, rest=tensor_entry([8], offset=2**63)), "is cut: expected"),
        (damaged_header(tensors=2, rest=tensor_entry([8]) * 2), "tensor w twice"),
        (packed_file([("a", U32, 1), ("a", U32, 2)], TENSORS), "key a twice"),
        (packed_file([("general.alignment", U32, 3)], TENSORS), "alignment 3"),
        (packed_file([("general.alignment", U32, 0)], TENSORS), "alignment 0"),
        (packed_file([("general.alignment", U32, 1 << 30)], TENSORS), "alignment"),
        (packed_file(METADATA, []), "no tensors"),
    ],
)
def test_absurd_headers_are_refused_in_little_memory(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = written(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=reason):
        check_file(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 16 << 20


def test_a_huge_file_of_nothing_is_refused_without_reading_it(tmp_path: Path) -> None:
    claims = packed_string("k") + struct.pack("<IQ", STRING, 2**34)
    path = written(tmp_path, damaged_header(values=1, rest=claims))
    with open(path, "r+b") as file:
        file.truncate(2**35)  # sparse: the length would fit, the limit refuses it
    assert "length of" in message_of(path)


def test_every_mutation_of_a_header_ends_in_an_error_or_a_header(tmp_path: Path) -> None:
    rng = random.Random(20240601)
    header_bytes = read_header(written(tmp_path, GOOD)).data_offset
    interesting = [0, 1, 2, 4, 8, 9, 31, 127, 128, 255]
    outcomes = {"header": 0, "error": 0}
    messages: list[str] = []
    for number in range(600):
        content = bytearray(GOOD)
        for _ in range(rng.choice([1, 1, 2, 8])):
            place = rng.randrange(4, header_bytes)
            if rng.random() < 0.5:
                content[place] = rng.choice(interesting)
            else:
                content[place : place + 8] = rng.randbytes(8)
        if rng.random() < 0.2:
            del content[rng.randrange(len(content)) :]
        path = written(tmp_path, bytes(content), f"{number}.gguf")
        try:
            header = check_file(path)
            for key in header.metadata:
                if key.startswith("tokenizer.ggml.token"):
                    header.array(key)
            outcomes["header"] += 1
        except (ModelFileError, KeyError) as error:  # KeyError: the array became something else
            messages.append(str(error))
            outcomes["error"] += 1
        path.unlink()
    assert not any("\n" in message for message in messages)
    # both must occur, or the mutations test nothing
    assert min(outcomes.values()) > 30
