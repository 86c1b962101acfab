"""The compiled core: weights, caches and the forward pass of one model."""

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

def processor() -> dict[str, Any]:
    """Return {"instructions": what "auto" means here, "available": [fastest first]}."""

class Model:
    """One model in memory. One thread at a time; a second one gets RuntimeError, as does a fork.

    paths          the file, or the parts of a split one
    tensors        (name, shape fastest axis first, ggml type id, offset in bytes from the start of
                   its part, bytes, index of the part) of each tensor
    parameters     the shape of the network; see `Parameters` in model.hpp
    threads        threads of a pass, the caller's among them
    instructions   "auto", or one of processor()["available"]
    cache_type     "f16" or "f32": how keys and values are kept
    head_ids       int32 [n], ascending: only these rows of the head are kept and computed
    requantize     keep matrices of more than 4 bits in 4 bits

    Raises ValueError for a file or a shape it cannot run, OSError, MemoryError.
    """

    def __init__(
        self,
        paths: SequenceOf[str],
        tensors: SequenceOf[tuple[str, SequenceOf[int], int, int, int, int]],
        parameters: Mapping[str, Any],
        *,
        threads: int,
        instructions: str = "auto",
        cache_type: str = "f16",
        head_ids: NDArray[np.int32] | None = None,
        requantize: bool = False,
    ) -> None: ...
    @property
    def vocab_size(self) -> int:
        """Return the rows of the head: the length of a row of logits."""
    @property
    def hidden_size(self) -> int:
        """Return the length of a hidden state."""
    @property
    def threads(self) -> int:
        """Return the threads of a pass."""
    @property
    def instructions(self) -> str:
        """Return the instruction set in use."""
    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the repacked weights in memory."""
    @property
    def step_bytes(self) -> int:
        """Return the bytes of weights one pass reads: all but the embedding."""
    @property
    def cache_bytes_per_token(self) -> int:
        """Return the bytes of keys and values of one token over all layers."""
    @property
    def load_seconds(self) -> float:
        """Return how long reading and repacking took."""
    @property
    def is_open(self) -> bool:
        """Return whether `close` was not called yet."""
    def new_sequence(self) -> Sequence:
        """Return an empty sequence."""
    def forward(
        self,
        sequences: SequenceOf[Sequence],
        token_ids: SequenceOf[SequenceOf[int]],
        first_rows: SequenceOf[int],
    ) -> NDArray[np.float32]:
        """Evaluate new tokens of several sequences in one pass.

        Returns logits float32 [rows, vocab_size], in the order of the segments, of the tokens from
        `first_rows[i]` on. The array is a view that the next call overwrites.
        """
    def hidden(self) -> NDArray[np.float32]:
        """Return the hidden states [rows, hidden_size] behind the last rows, before the head."""
    def extend_head(self, ids: NDArray[np.int32]) -> None:
        """Add rows of the head that `head_ids` left out; they follow the others in a row."""
    def read_weights(self) -> float:
        """Read all weights of a pass once, with all threads, and return the seconds it took."""
    def close(self) -> None:
        """Free the weights; closing twice does nothing."""

class Sequence:
    """The keys and values of one sequence, in pages that prefixes share."""

    def __len__(self) -> int: ...
    def truncate(self, length: int) -> None:
        """Cut to `length` tokens."""
    def prefix(self, length: int) -> Sequence:
        """Return a new sequence with the first `length` tokens; whole pages are shared."""
    def close(self) -> None:
        """Free its pages; closing twice does nothing."""
