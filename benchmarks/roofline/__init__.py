"""Predicted times on GPUs that are not at hand: a roofline model of counted work."""
