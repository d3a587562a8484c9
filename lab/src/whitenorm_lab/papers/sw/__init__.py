"""Experiments of Switchable Whitening, one file each."""
