"""Hostile input: valid files of every reader, damaged on purpose, and a guard that watches what a reader does with them."""
