"""How tables come to be: only the command line starts these."""
