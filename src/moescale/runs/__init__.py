"""Tables of training runs."""
