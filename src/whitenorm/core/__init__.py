"""Moments, pooling and apply on the view ``x[N, G, K, L]``: tensors in, tensors out, no state."""
