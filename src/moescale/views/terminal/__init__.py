"""Answers as tables for a terminal: what the command line prints without --json."""
