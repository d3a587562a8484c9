"""A roofline model that predicts times on GPUs from counted operations."""
