"""Documents packed into a corpus."""
