"""Compare the exported model of any network with PyTorch: every output, with the reference and with the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.deploy.engine.graph import BnnModel
from lcrbnn.deploy.engine.operators import list_outputs
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last

TOLERANCE = 1e-4  # relative to the largest output


class FunctionModule(nn.Module):
    """A module whose forward is a function of the module and its input."""

    def __init__(self, function: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def list_torch_outputs(result: Any) -> list[Tensor]:
    """Return the tensors of nested tuples, lists and dicts in order."""
    if isinstance(result, Tensor):
        return [result]
    parts = list(result.values()) if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in list_torch_outputs(part)]


def arrange_output(tensor: Tensor) -> np.ndarray:
    """Return an output of PyTorch as (n, h, w, c)."""
    if tensor.dim() == 4:
        return to_channels_last(tensor)
    sizes = tensor.shape[1:]
    return tensor.numpy().reshape(len(tensor), *(1,) * (3 - len(sizes)), *sizes)


def export_network(net: nn.Module, images: Tensor) -> BnnModel:
    """Return the exported model without class names."""
    return export_model(net.eval(), ModelInput((*images.shape[2:], images.shape[1]), ()), "x")


def assert_export_equals_torch(net: nn.Module, images: Tensor, *, runs_engine: bool = True) -> BnnModel:
    """Export a network, compare all its outputs with PyTorch's, and return the model."""
    model = export_network(net, images)
    with torch.no_grad():
        outputs = [arrange_output(tensor) for tensor in list_torch_outputs(net(images.clone()))]
    inputs = to_channels_last(images)
    values = reference.compute_values(model, inputs)
    results: list[Sequence[np.ndarray]] = [[values[output.value] for output in list_outputs(model)]]
    if runs_engine:
        for fuse in (True, False):
            with Engine(to_bytes(model), fuse=fuse) as engine:
                results.append(list(engine.run_outputs(inputs).values()))
    for result in results:
        assert len(result) == len(outputs)
        for value, output in zip(result, outputs, strict=True):
            assert value.shape == output.shape
            assert np.isfinite(output).all()
            assert np.abs(value - output).max() <= TOLERANCE * max(np.abs(output).max(), 1e-3)
    return model
