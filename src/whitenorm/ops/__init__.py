"""The six steps of a whitening layer, forward and backward, and the backends that run them."""
