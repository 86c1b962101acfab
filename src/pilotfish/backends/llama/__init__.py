"""The llama.cpp backend: GGUF files through the C API that `llama_cpp` exposes.

model.py      LlamaModel: scores several sequences in one pass
cache.py      LlamaCache: the keys and values of one sequence
context.py    one llama.cpp context: run a batch, cut a sequence, free it
batch.py      the flat, ragged batch and the views on its logits
loading.py    opens a file and a context, with every refusal before the first token
facts.py      what the loaded object says about itself
tokenizer.py  LlamaTokenizer: text to ids and back
strict.py     the self-check on widths
library.py    the only place that loads `llama_cpp`
placement.py  one core for each thread of OpenMP
slow_pass.py  notices passes far slower than the bytes they read
"""

from pilotfish.backends.facts import ModelFacts
from pilotfish.backends.llama.cache import LlamaCache
from pilotfish.backends.llama.model import LlamaModel
from pilotfish.backends.llama.tokenizer import LlamaTokenizer

__all__ = ["LlamaCache", "LlamaModel", "LlamaTokenizer", "ModelFacts"]
