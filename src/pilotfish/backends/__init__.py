"""Parts that run models."""
