"""Parts that propose tokens."""
