"""Linear evaluation freezes a network except for its last layer, which is fitted again to training images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.models.network import Network

WEIGHT_DECAY = 1e-4  # weight decay of a refitted head: the factor of half the squared norm of its weights
MAX_LBFGS_STEPS = 100


class FeatureExtractor(nn.Module):
    """A network without its last linear layer, which maps images to features (n, k)."""

    def __init__(self, model: nn.Module) -> None:
        """Wrap a network. Raise InputError if it does not end in a linear layer.

        A network that is not of this package gets hooks, because its parts before the last layer are not known.
        """
        super().__init__()
        if not isinstance(model, Network):
            self.model, self.last_layer = model, _find_last_linear(model)
            self.head_front = nn.Sequential()
            self._calls: list[tuple[Tensor, Tensor]] = []  # inputs and output of the last layer
            self.last_layer.register_forward_hook(lambda layer, x, y: self._calls.append((x[0], y)))
            return
        head_layers = list(model.head) if isinstance(model.head, nn.Sequential) else [model.head]
        if not isinstance(head_layers[-1], nn.Linear):
            raise InputError(
                f"only a linear head can be refitted; this network ends in {type(head_layers[-1]).__name__}"
            )
        self.model, self.last_layer = model, head_layers[-1]
        self.head_front = nn.Sequential(*head_layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        """Return the inputs of the last layer."""
        if not isinstance(self.model, Network):
            return self._run_hooked(images)
        return self.head_front(self.model.pool(self.model.extract_stage_outputs(images)[-1]))

    def _run_hooked(self, images: Tensor) -> Tensor:
        self._calls.clear()
        logits = self.model(images)
        if len(self._calls) != 1 or self._calls[0][1] is not logits:
            raise InputError("this network does not end in its last linear layer, whose inputs are needed")
        return self._calls.pop()[0]


def _find_last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer in the order of registration. Raise InputError if there is no real one."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers or isinstance(layers[-1], BinaryLayer):
        raise InputError("only a linear head can be refitted; this network has no linear layer with real weights")
    return layers[-1]


class LinearHead(nn.Module):
    """A last linear layer in float32, whatever precision the feature extractor has."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """Copy weight and bias as float32 parameters."""
        super().__init__()
        self.weight = nn.Parameter(weight.detach().float().clone())
        self.bias = nn.Parameter(bias.detach().float().clone())

    @classmethod
    def from_linear(cls, layer: nn.Module) -> LinearHead:
        """Return a head with the weight and the bias of a linear layer."""
        assert isinstance(layer, nn.Linear)
        bias = torch.zeros(layer.out_features, device=layer.weight.device) if layer.bias is None else layer.bias
        return cls(layer.weight, bias)

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits."""
        return F.linear(features, self.weight, self.bias)


def fit_linear_head(features: Tensor, labels: Tensor, initial_head: LinearHead) -> LinearHead:
    """Return the linear head that minimizes the cross-entropy plus a small weight decay.

    The optimizer is L-BFGS, and it starts from `initial_head`. Each step uses all features in float64. So the result
    does not depend on a data order, a learning rate or a seed.
    """
    features = features.double()
    weight = initial_head.weight.detach().double().requires_grad_()
    bias = initial_head.bias.detach().double().requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=MAX_LBFGS_STEPS, line_search_fn="strong_wolfe")

    def compute_loss() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(features, weight, bias), labels) + WEIGHT_DECAY / 2 * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(compute_loss)
    return LinearHead(weight, bias)
