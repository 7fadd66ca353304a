"""Lipschitz-continuity retention: the mathematics as pure functions, and `Retention` to plug it into a network."""

from lcrbnn.kernels.power import LCR_REVISION
from lcrbnn.retention.form import Form
from lcrbnn.retention.loss import Retained, retention_loss
from lcrbnn.retention.presets import PRESETS
from lcrbnn.retention.regularizer import Retention

__all__ = ["LCR_REVISION", "PRESETS", "Form", "Retained", "Retention", "retention_loss"]
