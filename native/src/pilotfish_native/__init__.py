"""CPU kernels for pilotfish: one model in memory, scored several rows at a time."""

from pilotfish_native._core import Model, Sequence, processor

__all__ = ["Model", "Sequence", "processor"]
__version__ = "0.1.0"
