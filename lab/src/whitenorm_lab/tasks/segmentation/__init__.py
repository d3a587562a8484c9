"""Semantic segmentation: a class for every pixel, with any norm and recipe in the net."""

from whitenorm_lab.tasks.segmentation.config import COMMANDS as COMMANDS
