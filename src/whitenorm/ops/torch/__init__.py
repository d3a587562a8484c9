"""The six steps in torch operations, for every device; on a CPU, in blocks that stay in its cache."""
