"""Callbacks for lightning's Trainer, which are those of :mod:`whitenorm.integrations.lightning`."""

from whitenorm.integrations.lightning import NormMonitor, Recalibrate

__all__ = ["NormMonitor", "Recalibrate"]
