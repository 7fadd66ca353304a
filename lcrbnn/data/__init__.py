"""Data sets, their files, and data loading."""

from lcrbnn.data.datasets import DATASETS, DataSet, default_data_folder
from lcrbnn.data.digits import load_digits
from lcrbnn.data.split import ImageArrays, Split

__all__ = ["DATASETS", "DataSet", "ImageArrays", "Split", "default_data_folder", "load_digits"]
