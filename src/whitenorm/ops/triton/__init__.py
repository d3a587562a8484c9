"""The six steps as Triton kernels, and samples that are whitened in one."""
