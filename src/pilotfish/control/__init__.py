"""Parts that decide how much to draft."""
