"""Choosing one token from one row of logits: what the rules are, and the noise they use.

choice.py   penalties, filters, laws, greedy and seeded choice; the sampler of one request
noise.py    random numbers as a function of (seed, position, stream, token id)
"""

from pilotfish.sampling.choice import (
    Sampler,
    adjust_row,
    as_history,
    candidates,
    draw,
    greedy_choice,
    legal_row,
    row_law,
    seeded_choice,
    token_logprobs,
)
from pilotfish.sampling.noise import Stream, gumbel_noise, mix, noise_key, uniform

__all__ = [
    "Sampler",
    "Stream",
    "adjust_row",
    "as_history",
    "candidates",
    "draw",
    "greedy_choice",
    "gumbel_noise",
    "legal_row",
    "mix",
    "noise_key",
    "row_law",
    "seeded_choice",
    "token_logprobs",
    "uniform",
]
