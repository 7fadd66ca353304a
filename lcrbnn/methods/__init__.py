"""Binarisation methods: the contract, and a table with a row each."""

from lcrbnn.methods.contract import ActivationBinarizer, Binarizer, Binary, Method, WeightBinarizer
from lcrbnn.methods.table import METHODS, method

__all__ = ["METHODS", "ActivationBinarizer", "Binarizer", "Binary", "Method", "WeightBinarizer", "method"]
