"""Experiments of Decorrelated Batch Normalization, one file each."""
