"""Training programs and the experiments of the whitening papers, on whitenorm's layers."""

__version__ = "0.2.0"
