"""moescale."""
