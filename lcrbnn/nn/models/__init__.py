"""Networks and their building blocks, and the table MODELS."""

from lcrbnn.nn.models.model_registry import MODELS, Model, create_model
from lcrbnn.nn.models.network import Network

__all__ = ["MODELS", "Model", "Network", "create_model"]
