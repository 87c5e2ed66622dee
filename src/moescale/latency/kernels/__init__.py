"""Measured kernels: one kind a file."""
