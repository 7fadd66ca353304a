"""The linear protocol: a frozen trunk, and heads fitted anew on what it says of training images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.models import Network

DECAY = 1e-4  # of the weights of a head that is fitted
STEPS = 100  # of L-BFGS, at most


class Trunk(nn.Module):
    """A network up to its last layer: images -> features (n, k)."""

    def __init__(self, model: Network) -> None:
        """Take the parts of a network, which stays as it is."""
        super().__init__()
        parts = list(model.head) if isinstance(model.head, nn.Sequential) else [model.head]
        if not isinstance(parts[-1], nn.Linear):
            raise InputError(f"only a linear head can be fitted anew; this network ends in {type(parts[-1]).__name__}")
        self.model, self.last = model, parts[-1]
        self.before = nn.Sequential(*parts[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """What the last layer is given."""
        return self.before(self.model.pool(self.model.features(images)[-1]))


class Head(nn.Module):
    """A last layer, in float32 whatever the trunk computes in."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Keep copies."""
        super().__init__()
        self.weight = nn.Parameter(weight.detach().float().clone())
        self.bias = nn.Parameter(bias.detach().float().clone())

    @classmethod
    def of(cls, layer: nn.Module) -> Head:
        """A head that answers as a layer does."""
        assert isinstance(layer, nn.Linear)
        bias = torch.zeros(layer.out_features, device=layer.weight.device) if layer.bias is None else layer.bias
        return cls(layer.weight, bias)

    def forward(self, features: Tensor) -> Tensor:
        """Logits."""
        return F.linear(features, self.weight, self.bias)


def fit_head(features: Tensor, labels: Tensor, start: Head) -> Head:
    """The head that explains these features best: cross-entropy and a small weight decay, by L-BFGS from `start`.

    All features in each step and float64 throughout: no order, no rate, no seed decides the result.
    """
    features = features.double()
    weight = start.weight.detach().double().requires_grad_()
    bias = start.bias.detach().double().requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=STEPS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(F.linear(features, weight, bias), labels) + DECAY / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return Head(weight, bias)
