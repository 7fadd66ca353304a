"""Networks: stems, stages and heads, and a table with a row each."""

from lcrbnn.models.skeleton import Network
from lcrbnn.models.table import MODELS, Model, network

__all__ = ["MODELS", "Model", "Network", "network"]
