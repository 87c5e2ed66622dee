"""GPUs, prices and precisions."""
