"""Image sets in the layouts their users know, from a data root, whole and in memory."""

from whitenorm_lab.data.sets import ROOT_VARIABLE, SETS, Dataset, load, root_folder
from whitenorm_lab.digits import Split

__all__ = ["ROOT_VARIABLE", "SETS", "Dataset", "Split", "load", "root_folder"]
