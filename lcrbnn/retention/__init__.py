"""Lipschitz-continuity retention: matrices, spectral norms and the loss as pure functions, and `Retention` to plug them in."""

from lcrbnn.retention.form import Form
from lcrbnn.retention.loss import Retained, retention_loss
from lcrbnn.retention.presets import PRESETS
from lcrbnn.retention.regularizer import Retention

__all__ = ["PRESETS", "Form", "Retained", "Retention", "retention_loss"]
