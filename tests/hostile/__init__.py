"""Hostile input: valid files of every reader, damaged on purpose, and a guard that watches what a reader does with them.

`python -m hostile READER --seed S --only N` repeats one input (with src and tests on PYTHONPATH); see `runner`.
"""
