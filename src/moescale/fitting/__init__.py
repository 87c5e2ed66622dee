"""Fits of laws to runs, their intervals and their checks."""
