"""Image data sets in their usual file layouts, loaded from a data root into memory."""

from whitenorm_lab.data.sets import IMAGENET_MEAN, IMAGENET_STD, ROOT_VARIABLE, SETS, Dataset, load, root_folder
from whitenorm_lab.digits import Split

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "ROOT_VARIABLE", "SETS", "Dataset", "Split", "load", "root_folder"]
