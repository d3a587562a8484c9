"""Semantic segmentation with any norm: a class for every pixel."""

from whitenorm_lab.tasks.segmentation.config import COMMANDS as COMMANDS
