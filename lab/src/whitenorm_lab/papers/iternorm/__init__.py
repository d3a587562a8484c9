"""Experiments of Iterative Normalization, one file each."""
