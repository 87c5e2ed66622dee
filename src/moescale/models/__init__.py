"""What a model is: its shape, parameters, FLOPs, KV cache, family and files."""
