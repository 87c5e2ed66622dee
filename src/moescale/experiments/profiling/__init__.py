"""Measuring the latency of models on the machine at hand: a grid, an engine that runs it, a table that keeps it."""
