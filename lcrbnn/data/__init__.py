"""Data sets, as arrays."""

from lcrbnn.data.digits import load_digits
from lcrbnn.data.split import Images, Split
from lcrbnn.data.table import DATASETS, DataSet, data_folder

__all__ = ["DATASETS", "DataSet", "Images", "Split", "data_folder", "load_digits"]
