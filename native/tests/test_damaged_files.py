"""Files that lie: refused with an error of ours, or run; never a crash.

Each test works in a process of its own, where a crash is seen as one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[2] / "tests"

WHOLE_FILES = """
import sys
from pathlib import Path
import numpy as np
from pilotfish.backends.native import NativeModel
from pilotfish.errors import ModelError
from pilotfish.types import Segment
from support.damaged_files import Anatomy, damaged
from support.tiny_gguf import write_tiny

np.seterr(all="ignore")
path = Path(sys.argv[1])
anatomy = Anatomy.of(write_tiny(path, quantised=True, layers=1).read_bytes())
ran, messages = 0, []
for number in range(500):
    path.write_bytes(damaged(anatomy, number))
    try:
        with NativeModel(path, threads=1, context_size=64) as model:
            ids = [1, 2, model.vocab_size - 1]
            (rows,) = model.forward([Segment(model.new_cache(), ids)])
            assert rows.shape == (3, model.vocab_size), number
        ran += 1
    except ModelError as error:
        messages.append(str(error))
    except BaseException:
        print("case", number, file=sys.stderr)
        raise
assert not [text for text in messages if len(text.splitlines()) != 1]
print(ran, len(messages), len({text[-30:] for text in messages}))
"""

CORE_ALONE = """
import random, sys
from pathlib import Path
import numpy as np
import pilotfish_native
from support.tiny_networks import write_network

network = write_network(Path(sys.argv[1]), "Q8_0", architecture="qwen3", rope_style="neox")
WHOLE = (0, 1, 2, 3, 7, 31, 33, 64, 128, 1 << 16, 1 << 20, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)
REAL = (0.0, -1.0, 1e-30, 0.5, 1.5, 1e5, 1e30, float("inf"), float("nan"))
ran = refused = 0
for number in range(500):
    source = random.Random(number)
    parameters = dict(network.parameters)
    entries = [list(entry) for entry in network.entries()]
    options = {"threads": 1}
    if number % 2:
        name = source.choice(list(parameters))
        old = parameters[name]
        if isinstance(old, str):
            parameters[name] = source.choice(("", "neox", "yarn", "linear", "qwen2", "x" * 99))
        else:
            parameters[name] = source.choice(WHOLE if isinstance(old, int) else REAL)
    else:
        entry, place = source.choice(entries), source.randrange(1, 6)
        if place == 1:
            axis = source.randrange(len(entry[1]))
            entry[1][axis] = source.choice((*WHOLE, entry[1][axis] + 1))
            if source.random() < 0.3:
                entry[1].append(1)
        else:
            entry[place] = source.choice((*WHOLE, entry[place] + 1)) % (1 << 64)
            if place == 2:
                entry[place] %= 1 << 31
        if source.random() < 0.1:
            entries.remove(entry)
    try:
        core = pilotfish_native.Model([str(network.path)], entries, parameters, **options)
        ids = [0, 1, min(2, parameters["vocab_size"] - 1)]
        assert core.forward([core.new_sequence()], [ids], [0]).shape == (3, core.vocab_size)
        ran += 1
    except (ValueError, MemoryError):
        refused += 1
    except BaseException:
        print("case", number, file=sys.stderr)
        raise
print(ran, refused)
"""


def run(script: str, folder: Path) -> list[int]:
    """Return the numbers that a script prints."""
    result = subprocess.run(
        [sys.executable, "-c", script, str(folder / "model.gguf")],
        check=False,
        timeout=300,
        cwd=TESTS,
        env=os.environ | {"PILOTFISH_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return [int(number) for number in result.stdout.split()]


def test_damaged_files_are_refused_or_run(tmp_path: Path) -> None:
    ran, refused, kinds = run(WHOLE_FILES, tmp_path)
    assert ran + refused == 500
    # the cases reach all depths: many are still models, and those refused are so for many reasons
    assert ran > 30
    assert kinds > 60


def test_wrong_tables_and_shapes_are_refused_by_the_core_itself(tmp_path: Path) -> None:
    ran, refused = run(CORE_ALONE, tmp_path)
    assert ran + refused == 500
    assert ran > 20
    assert refused > 200
