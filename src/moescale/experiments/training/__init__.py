"""Training of the sweep: data, model, runs; only the command line starts it."""
