"""The six kernels that whitening is made of, and what passes between them."""
