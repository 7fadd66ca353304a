"""Lipschitz-continuity retention (LCR). The loss is a pure function, and `Retention` adds it to a network."""

from lcrbnn.lcr.lcr_variants import LCR_VARIANTS, LcrVariant
from lcrbnn.lcr.retention import Retention
from lcrbnn.lcr.retention_loss import RetentionResult, retention_loss
from lcrbnn.nn.kernels.power_iteration import LCR_REVISION

__all__ = ["LCR_REVISION", "LCR_VARIANTS", "LcrVariant", "Retention", "RetentionResult", "retention_loss"]
