"""The table of the marks."""
