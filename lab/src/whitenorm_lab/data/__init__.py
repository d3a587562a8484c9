"""Image data sets in their usual file layouts, loaded from a data root into memory."""

from whitenorm_lab.data.sets import ROOT_VARIABLE, SETS, Dataset, load, root_folder
from whitenorm_lab.digits import Split

__all__ = ["ROOT_VARIABLE", "SETS", "Dataset", "Split", "load", "root_folder"]
