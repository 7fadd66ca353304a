"""From a trained network to the file model.bnn."""

from lcrbnn.export.model import Input, export_model
from lcrbnn.export.rules import RULES
from lcrbnn.export.signs import SIGNS

__all__ = ["RULES", "SIGNS", "Input", "export_model"]
