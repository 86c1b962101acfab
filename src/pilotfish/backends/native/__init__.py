"""The native backend: GGUF files on the kernels of `pilotfish_native`.

model.py        NativeModel: scores several sequences in one pass
cache.py        NativeCache: the keys and values of one sequence
head.py         the head of a draft: a part of the vocabulary that grows with the context
self_check.py   rows of wide passes have the bits of single rows: checked at start
description.py  from a file's header to the shape of its network, or why it does not run here
library.py      the only place that loads `pilotfish_native`
"""

from pilotfish.backends.native.cache import NativeCache
from pilotfish.backends.native.description import unsupported_reason
from pilotfish.backends.native.library import missing_reason
from pilotfish.backends.native.loading import CACHE_TYPES, default_context
from pilotfish.backends.native.model import NativeModel

__all__ = [
    "CACHE_TYPES",
    "NativeCache",
    "NativeModel",
    "default_context",
    "missing_reason",
    "unsupported_reason",
]
