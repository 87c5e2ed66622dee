"""Answers shown: tables, terminal, HTML, figures, notebook."""
