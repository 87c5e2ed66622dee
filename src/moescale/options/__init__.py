"""The question in one schema: each option once, with its bounds, default and help, for command line, page and library."""
