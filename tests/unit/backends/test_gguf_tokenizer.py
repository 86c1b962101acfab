"""The tokenizer from a file's header: the ids that llama.cpp gives, and a word on bad files."""

from __future__ import annotations

import argparse
import difflib
import json.decoder
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pilotfish import models
from pilotfish.backends.gguf_tokenizer import GgufTokenizer, check_tokenizer_kind
from pilotfish.backends.gguf_tokenizer.pretokenizers import PRE_TOKENIZERS
from pilotfish.backends.llama.tokenizer import LlamaTokenizer
from pilotfish.errors import BackendError, ModelError, ModelFileError, PromptError
from pilotfish.gguf import read_header
from support.tiny_gguf import byte_characters, write_tiny
from support.vocabulary_files import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    byte_pair_vocabulary,
    every_character,
    llama_tokenizer,
    mixed_text,
    write_vocabulary,
)

FACTS = (
    "vocab_size", "kind", "bos_id", "eos_id", "bos_text", "eos_text", "add_bos", "chat_template",
    "end_ids", "special_texts", "fill_ids",
)  # fmt: skip
WHOLE = ("<|<|", "<|im_end|>", "<tool>", "<|im_start|>", "<unk>")
# one name of each way to cut
FAMILIES = {cuts: name for name, cuts in reversed(PRE_TOKENIZERS.items())}


# what one way to cut keeps together and another cuts
BORDERS = (
    "it's IT'S d", "aBcD ÉaÉ", "!/\n/!/\n", "``=`a=``", "a12 123456", "+1+1", "\u0301a\u0301b",
    ",\n,\n", "(a)(b)", " xyz\n", "'\u017fa",
)  # fmt: skip


def borders(seed: int, count: int) -> str:
    return "".join(random.Random(seed).choices(BORDERS, k=count))


@pytest.fixture(scope="module")
def byte_pairs() -> dict[str, Any]:
    text = mixed_text(1, 1500, whole=("word",)) + borders(1, 250)
    texts, merges = byte_pair_vocabulary(text, 250)
    # a word that is a token which no merge makes
    texts.append("zzz")
    types = [NORMAL] * len(texts) + [CONTROL, CONTROL, USER_DEFINED, CONTROL, UNKNOWN]
    return {"model": "gpt2", "texts": [*texts, *WHOLE], "types": types, "merges": merges}


def hard_texts() -> list[str]:
    characters = every_character(step=211)
    words = "".join(f"a{character}b {character} {character * 2}1" for character in characters)
    return [mixed_text(2, 3000, whole=WHOLE), borders(2, 150) + "\nzzz\n", words[:5000], "", " "]


def score_vocabulary(seed: int) -> dict[str, Any]:
    """Return a vocabulary of random pieces of a text, many of equal score."""
    choose = random.Random(seed)
    text = mixed_text(seed, 4000, whole=("word",)).replace(" ", "▁").replace("\0", "")
    starts = [choose.randrange(len(text)) for _ in range(700)]
    pieces = {text[start : start + choose.choice((1, 2, 2, 3, 4))] for start in starts}
    pieces = sorted({*pieces, "▁", "▁▁", "▁▁▁▁", "a", "aa", "aaa"})
    scores = [choose.choice((-5.0, -5.0, 0.0, -choose.random() * 100)) for _ in pieces]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    return {
        "model": "llama",
        "texts": [*texts, *WHOLE[:-1]],
        "types": [*types, CONTROL, CONTROL, USER_DEFINED, CONTROL],
        "scores": [*[0.0] * 259, *scores, *[0.0] * 4],
    }


def from_header(path: Path) -> GgufTokenizer:
    return GgufTokenizer(read_header(path))


def assert_alike(ours: GgufTokenizer, theirs: LlamaTokenizer) -> None:
    assert {name: getattr(ours, name) for name in FACTS} == {
        name: getattr(theirs, name) for name in FACTS
    }
    assert ours.all_token_texts() == theirs.all_token_texts()
    for token_id in range(ours.vocab_size):
        assert ours.token_bytes(token_id) == theirs.token_bytes(token_id), token_id
        assert ours.token_text(token_id) == theirs.token_text(token_id), token_id
        assert ours.is_control(token_id) == theirs.is_control(token_id), token_id


def assert_same_ids(ours: GgufTokenizer, theirs: LlamaTokenizer, texts: Sequence[str]) -> None:
    for text in texts:
        for parse_special in (False, True):
            ids = ours.encode(text, parse_special=parse_special)
            assert ids == theirs.encode(text, parse_special=parse_special)


@pytest.mark.parametrize("pre", ["", *FAMILIES.values()])
def test_ids_equal_those_of_llama_cpp_for_every_way_to_cut(
    pre: str, byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", pre=pre, **byte_pairs)
    with llama_tokenizer(path) as theirs:
        assert_same_ids(from_header(path), theirs, hard_texts())


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_name_means_the_same_cuts_there(
    pre: str, byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", pre=pre, **byte_pairs)
    ours = from_header(path)
    with llama_tokenizer(path) as theirs:
        assert {name: getattr(ours, name) for name in FACTS} == {
            name: getattr(theirs, name) for name in FACTS
        }
        assert_same_ids(ours, theirs, [mixed_text(3, 400, whole=WHOLE)])


def test_the_test_tells_the_ways_to_cut_apart(byte_pairs: dict[str, Any], tmp_path: Path) -> None:
    text = "".join(hard_texts())
    ids = set()
    for pre in FAMILIES.values():
        ours = from_header(write_vocabulary(tmp_path / f"{pre}.gguf", pre=pre, **byte_pairs))
        ids.add(tuple(ours.encode(text, parse_special=True)))
    assert len(ids) == len(FAMILIES)


@pytest.mark.parametrize("values", [{}, {"add_space_prefix": False}, {"add_bos_token": False}])
@pytest.mark.parametrize("seed", [1, 2])
def test_ids_by_score_equal_those_of_llama_cpp(
    seed: int, values: dict[str, bool], tmp_path: Path
) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", **score_vocabulary(seed), **values)
    texts = ["", " ", "a" * 300, "<s> a<s>b", "\n", every_character(step=997)]
    texts += [mixed_text(seed, 5000, whole=(*WHOLE, "<s>", "</s>", "<0x0A>"))]
    with llama_tokenizer(path) as theirs:
        ours = from_header(path)
        assert_alike(ours, theirs)
        assert_same_ids(ours, theirs, texts)


def test_bytes_without_a_token_are_left_out_and_keep_their_neighbours_apart(
    byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    gone = {byte_characters()[byte] for byte in (*b"\x04\x06\x13", 0xC0, 0xF2)}
    kept = [i for i, text in enumerate(byte_pairs["texts"]) if not gone & set(text)]
    vocabulary = byte_pairs | {
        "texts": [byte_pairs["texts"][i] for i in kept],
        "types": [byte_pairs["types"][i] for i in kept],
        "merges": [merge for merge in byte_pairs["merges"] if not gone & set(merge)],
    }
    path = write_vocabulary(tmp_path / "v.gguf", pre="smollm", **vocabulary)
    with llama_tokenizer(path) as theirs:
        texts = ["e\x04 \x04t a\x06n\x13\x13", mixed_text(4, 3000, whole=("a\x04",))]
        assert_same_ids(from_header(path), theirs, texts)


def test_a_longer_control_text_is_looked_for_before_a_shorter_one(
    byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", pre="qwen2", **byte_pairs)
    texts = ["<|<|im_start|>", "<|im_start|><|<|<|im_end|>", "<tool><tool> <tool>", "<|<|<|"]
    with llama_tokenizer(path) as theirs:
        assert_same_ids(from_header(path), theirs, texts)


KNOWN_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "</s>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "[EOS]", "<eos>",
    "<|tool_response>", "<|fim_prefix|>", "<\uff5cfim▁hole\uff5c>", "<fim_middle>", "[PAD]",
    "<|repo_name|>", "<|file_sep|>", "<|channel|>", "<|start|>", "<|reserved_unused_1|>",
    "<|plamo:eos|>",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_the_same_tokens_end_a_reply_and_steer_the_model(seed: int, tmp_path: Path) -> None:
    choose = random.Random(seed)
    known = choose.sample(KNOWN_TEXTS, k=14)
    types = [choose.choice((NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, 0, 9)) for _ in known]
    texts = [*byte_characters(), *known, "", "ab", "<|unused_9|>"]
    values = {
        f"{name}_token_id": choose.randrange(250, len(texts) + 5)
        for name in ("bos", "eos", "eot", "eom", "fim_pre", "prefix", "fim_pad", "fim_sep")
        if choose.random() < 0.4
    }
    path = write_vocabulary(
        tmp_path / "v.gguf",
        model="gpt2",
        pre="gpt-2",
        texts=texts,
        types=[*[NORMAL] * 256, *types, NORMAL, NORMAL, CONTROL],
        merges=["a b"],
        **values,
    )
    with llama_tokenizer(path) as theirs:
        assert_alike(from_header(path), theirs)


def test_padding_at_the_end_is_no_part_of_the_vocabulary(tmp_path: Path) -> None:
    bare = from_header(write_tiny(tmp_path / "bare.gguf"))
    padded = from_header(write_tiny(tmp_path / "padded.gguf", padding=9))
    assert padded.vocab_size == bare.vocab_size
    assert padded.all_token_texts() == bare.all_token_texts()
    with pytest.raises(BackendError, match="outside the vocabulary"):
        padded.token_bytes(padded.vocab_size)


def test_kinds_that_only_llama_cpp_knows_are_named(
    byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    for number, (model, pre, kind) in enumerate(
        [("gpt2", "afmoe", "gpt2/afmoe"), ("bert", "", "bert"), ("gemma4", "x", "gemma4/x")]
    ):
        vocabulary = byte_pairs | {"model": model, "pre": pre}
        path = write_vocabulary(tmp_path / f"{number}.gguf", **vocabulary)
        for make in (check_tokenizer_kind, GgufTokenizer):
            with pytest.raises(ModelError, match=kind) as caught:
                make(read_header(path))
            assert not isinstance(caught.value, ModelFileError)
            assert caught.value.hint


BYTES = byte_characters()
DAMAGE: dict[str, dict[str, Any]] = {
    "no tokens": {"texts": []},
    "a token twice": {"texts": [*BYTES, "a"]},
    "no merges": {"merges": None},
    "half a merge": {"merges": ["ab"]},
    "an empty merge": {"merges": [""]},
    "a merge of an unknown token": {"merges": ["a bc"]},
    "a merge into an unknown token": {"merges": ["a b"]},
    "a merge that is not UTF-8": {"merges": [b"\xff \xfe"]},
    "too few types": {"types": [1, 1]},
    "a byte token without a byte": {"types": [BYTE] * 256},
    "merges that are numbers": {"merges": [1, 2, 3]},
    "types that are text": {"values": {"token_type": ["a"] * 256}},
    "scores that are text": {"model": "llama", "values": {"scores": ["a"] * 256}},
    "too few scores": {"model": "llama", "scores": [0.0]},
    "a score that is no number": {"model": "llama", "scores": [float("nan")] * 256},
    "types that are one number": {"values": {"token_type": 3}},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_vocabulary_is_an_error_that_names_the_file(
    damage: dict[str, Any], tmp_path: Path
) -> None:
    parts = {"model": "gpt2", "pre": "qwen2", "texts": BYTES, "merges": [], **damage}
    values = parts.pop("values", {})
    path = write_vocabulary(tmp_path / "bad.gguf", **parts, **values)
    with pytest.raises(ModelFileError, match=r"bad\.gguf") as caught:
        from_header(path)
    assert "\n" not in str(caught.value)


def test_tokens_that_are_not_utf8_keep_their_bytes(tmp_path: Path) -> None:
    path = write_vocabulary(
        tmp_path / "v.gguf",
        model="gpt2",
        pre="qwen2",
        texts=[*BYTES, b"\xff\xfe", b"x\xff", "ab", b"<\xff>"],
        types=[*[NORMAL] * 256, USER_DEFINED, NORMAL, NORMAL, CONTROL],
        merges=["a b"],
    )
    ours = from_header(path)
    with llama_tokenizer(path) as theirs:
        assert ours.all_token_texts() == theirs.all_token_texts()
        assert ours.special_texts == theirs.special_texts
        assert ours.token_bytes(256) == theirs.token_bytes(256) == b"\xff\xfe"
        assert_same_ids(ours, theirs, ["abÿþ ab"])


def damaged_copies(path: Path, *, count: int) -> Iterator[bytes]:
    choose, whole = random.Random(9), path.read_bytes()
    for _ in range(count):
        copy = bytearray(whole)
        for _ in range(choose.randint(1, 4)):
            copy[choose.randrange(8, len(copy))] = choose.choice((0, 1, 255, choose.randrange(256)))
        yield bytes(copy)


@pytest.mark.parametrize("kind", ["pairs", "scores"])
def test_flipped_bytes_never_end_in_anything_but_our_errors(
    kind: str, byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    parts = score_vocabulary(3) if kind == "scores" else byte_pairs | {"pre": "llama-bpe"}
    path = write_vocabulary(tmp_path / "v.gguf", **parts)
    text = mixed_text(5, 300, whole=WHOLE)
    outcomes = set()
    for copy in damaged_copies(path, count=60):
        path.write_bytes(copy)
        try:
            ours = from_header(path)
            ours.encode(text, parse_special=True)
            assert ours.vocab_size == len(ours.all_token_texts())
            for token_id in range(ours.vocab_size):
                ours.token_bytes(token_id)
            outcomes.add("fine")
        except (ModelError, BackendError) as error:
            outcomes.add(type(error).__name__)
    assert {"fine", "ModelFileError"} <= outcomes


def test_texts_that_cannot_be_represented_are_refused(tmp_path: Path) -> None:
    ours = from_header(write_tiny(tmp_path / "tiny.gguf"))
    with pytest.raises(BackendError, match="surrogate"):
        ours.encode("a\ud800", parse_special=False)
    with pytest.raises(PromptError, match="too long"):
        ours.encode("a" * 2_000_001, parse_special=False)
    bare = write_vocabulary(tmp_path / "bare.gguf", model="llama", texts=["a", "▁", "▁a"])
    assert from_header(bare).encode("aa", parse_special=False) == [2, 0]
    with pytest.raises(BackendError, match="0xc3"):
        from_header(bare).encode("é", parse_special=False)


def test_a_run_of_blanks_takes_no_time_that_grows_with_its_square(tmp_path: Path) -> None:
    ours = from_header(write_tiny(tmp_path / "tiny.gguf"))
    for text in (" " * 60_000 + "x", "\n " * 20_000, "é" * 20_000):
        assert b"".join(map(ours.token_bytes, ours.encode(text, parse_special=True))) == (
            text.encode()
        )


def test_threads_share_a_tokenizer(byte_pairs: dict[str, Any], tmp_path: Path) -> None:
    path = write_vocabulary(tmp_path / "v.gguf", pre="qwen2", **byte_pairs)
    ours, text = from_header(path), mixed_text(6, 4000, whole=WHOLE)
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(ours.encode(text, parse_special=True)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [ours.encode(text, parse_special=True)] * 4


def test_other_threads_run_while_a_long_text_is_cut(
    byte_pairs: dict[str, Any], tmp_path: Path
) -> None:
    ours = from_header(write_vocabulary(tmp_path / "v.gguf", pre="qwen2", **byte_pairs))
    text = mixed_text(6, 400_000, whole=("one",))
    turns: list[int] = []
    begun, over = threading.Event(), threading.Event()

    def take_turns() -> None:
        begun.set()
        while not over.wait(1e-4):
            turns.append(1)

    other = threading.Thread(target=take_turns)
    other.start()
    begun.wait()
    before = len(turns)
    ours.encode(text, parse_special=False)
    after = len(turns)
    over.set()
    other.join()
    # one call that kept the others waiting would leave them a turn before and one behind it
    assert after - before > 9


def test_a_fork_after_encoding_is_silent(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    program = (
        "import os, sys\n"
        "from pilotfish.backends.gguf_tokenizer import GgufTokenizer\n"
        "from pilotfish.gguf import read_header\n"
        "assert 'tokenizers' not in sys.modules\n"
        "tokenizer = GgufTokenizer(read_header(sys.argv[1]))\n"
        "ids = tokenizer.encode('the thing', parse_special=True)\n"
        "if os.fork() == 0:\n"
        "    os._exit(tokenizer.encode('the thing', parse_special=True) != ids)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def corpus() -> list[str]:
    """Return 200 KB of prose, code and text made to be hard."""
    root = Path(__file__).parents[3]
    pages = "".join(path.read_text() for path in sorted((root / "docs").rglob("*.md")))
    code = "".join(path.read_text() for path in sorted((root / "src").rglob("*.py")))
    library = "".join(Path(m.__file__ or "").read_text() for m in (argparse, difflib, json.decoder))
    whole = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "</tool_call>")
    mixed = mixed_text(7, 60_000, whole=whole)
    runs = [" " * 5000 + "x", "a" * 5000, "\n" * 3000, "9" * 3000, "\r\n\t " * 900, "ab" * 2000]
    return [pages[:50_000], code[:50_000], library[:50_000], mixed, every_character(step=9), *runs]


@pytest.mark.models
@pytest.mark.parametrize("name", ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"])
def test_real_files_give_the_ids_of_llama_cpp(name: str) -> None:
    path, texts = models.resolve(name), corpus()
    assert sum(len(text.encode()) for text in texts) > 200_000
    ours = from_header(path)
    with llama_tokenizer(path) as theirs:
        assert_alike(ours, theirs)
        assert_same_ids(ours, theirs, texts)
