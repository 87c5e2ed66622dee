"""The local page: a small server of JSON that calls the public functions, and the built files of the page."""
