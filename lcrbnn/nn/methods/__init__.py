"""Binarization methods. The folder has base classes, one file per method, and the table METHODS with all methods."""

from lcrbnn.nn.methods.binarizer import ActivationBinarizer, Binarizer, BinaryTensor, Method, WeightBinarizer
from lcrbnn.nn.methods.method_registry import METHODS, get_method

__all__ = ["METHODS", "ActivationBinarizer", "Binarizer", "BinaryTensor", "Method", "WeightBinarizer", "get_method"]
