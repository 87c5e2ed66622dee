"""What serving a model costs."""
