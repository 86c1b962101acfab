"""Choosing one token from one row of logits: what the rules are, and the noise they use.

choice.py   penalties, filters, laws, greedy and seeded choice; the sampler of one request
history.py  the tokens before a row, and how often each
noise.py    random numbers as a function of (seed, position, stream, token id)
"""

from pilotfish.sampling.choice import (
    Sampler,
    adjust_row,
    candidates,
    draw,
    greedy_choice,
    legal_row,
    row_law,
    seeded_choice,
    token_logprobs,
)
from pilotfish.sampling.history import TokenHistory
from pilotfish.sampling.noise import Stream, gumbel_noise, mix, noise_key, uniform

__all__ = [
    "Sampler",
    "Stream",
    "TokenHistory",
    "adjust_row",
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
