"""``whitenorm gpu``: verify and time the Triton kernels on a GPU."""
