"""Experiments of Group Whitening, one file each."""
