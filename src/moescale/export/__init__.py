"""A recommended model as the files that a trainer or a server reads."""
