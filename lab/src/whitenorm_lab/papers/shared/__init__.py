"""Common parts of several experiments."""
