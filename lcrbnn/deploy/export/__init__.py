"""Export of a trained network to a .bnn file."""

from lcrbnn.deploy.export.binary_layers.sign_rules import SIGN_RULES
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.module_rules import MODULE_RULES
from lcrbnn.deploy.export.rules.function_rules import FUNCTIONS

__all__ = ["FUNCTIONS", "MODULE_RULES", "SIGN_RULES", "ModelInput", "export_model"]
