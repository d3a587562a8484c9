"""Whitening losses: of views of images, for self-supervised learning, and of feature maps, against shifts of style."""

from whitenorm.losses.cwrgp import CWRGPLoss
from whitenorm.losses.intl import INTLLoss
from whitenorm.losses.isw import InstanceSelectiveWhiteningLoss
from whitenorm.losses.wmse import WMSELoss

__all__ = ["CWRGPLoss", "INTLLoss", "InstanceSelectiveWhiteningLoss", "WMSELoss"]
