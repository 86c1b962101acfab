"""Sessions, rounds, and the engine that runs them."""
