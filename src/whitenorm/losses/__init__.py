"""Whitening losses of self-supervised learning: views of one image agree, and whitening keeps them from collapsing."""

from whitenorm.losses.wmse import WMSELoss

__all__ = ["WMSELoss"]
