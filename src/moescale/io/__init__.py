"""Files, locks, signals, data frames, filters and settings: where the program meets the outside."""
