"""Which model to train."""
