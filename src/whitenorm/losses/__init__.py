"""Whitening losses for self-supervised learning, where whitening prevents the views of an image from collapsing."""

from whitenorm.losses.wmse import WMSELoss

__all__ = ["WMSELoss"]
