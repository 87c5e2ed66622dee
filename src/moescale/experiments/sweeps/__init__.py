"""Many runs, from a file to a table."""
