"""`check_export`: a table of what each layer of a network becomes in a .bnn file, or why it cannot be exported."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lcrbnn.deploy.export.export_model import ModelInput, convert_network
from lcrbnn.deploy.export.graph.fold_batch_norm import fold_affine_nodes
from lcrbnn.deploy.export.graph.graph_builder import ExportError, GraphBuilder, NodeBuilder
from lcrbnn.deploy.export.module_rules import export_module
from lcrbnn.deploy.export.problem_collector import CheckedCall, ProblemCollector, describe_problem, make_value
from lcrbnn.errors import InputError

NETWORK_NAME = "(network)"  # in the column of layers, for problems of the whole network


@dataclass(frozen=True)
class LayerCheck:
    """One line of the table. Either `becomes` or `problem` is empty."""

    layer: str  # name of the module, or name of the function's call inside its module
    kind: str  # class of the module, or name of the function
    becomes: str  # operators of the .bnn file
    problem: str = ""  # why it cannot be exported
    alternatives: tuple[str, ...] = ()  # what can be exported instead, the closest first

    @property
    def outcome(self) -> str:
        """What the layer becomes, or the problem with its alternatives."""
        if not self.problem:
            return self.becomes
        closest = f" (instead: {', '.join(self.alternatives)})" if self.alternatives else ""
        return f"NOT EXPORTABLE: {self.problem}{closest}"


@dataclass(frozen=True)
class ExportCheck:
    """The result of check_export: one LayerCheck per layer, in the order of the calls. Printing it prints a table."""

    layers: tuple[LayerCheck, ...]

    @property
    def problems(self) -> tuple[LayerCheck, ...]:
        """The layers that cannot be exported."""
        return tuple(layer for layer in self.layers if layer.problem)

    @property
    def is_exportable(self) -> bool:
        """Whether every layer can be exported."""
        return not self.problems

    def __str__(self) -> str:
        rows = [("layer", "type", "becomes"), *((r.layer, r.kind, r.outcome) for r in self.layers)]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:{widths[0]}}  {kind:{widths[1]}}  {outcome}" for name, kind, outcome in rows]
        num_good = len(self.layers) - len(self.problems)
        return "\n".join([*lines, f"{num_good} of {len(self.layers)} lines can be exported"])


def check_export(model: nn.Module, example: Tensor | Sequence[int]) -> ExportCheck:
    """Return what each layer of a network becomes in a .bnn file, or why it cannot be exported.

    `example` is a batch of images or its shape, such as (1, 3, 32, 32). The model can be on any device. It is copied
    and does not change. All problems are collected: after a layer that cannot be exported, the check continues with the
    shape that the layer returns for the example. The numbers of the network are not checked. In rare cases, trained
    numbers cause an error in export_model that this check cannot foresee.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Hardtanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    >>> check_export(net, (1, 3, 8, 8)).is_exportable
    True
    """
    image = _make_image(example)
    net = _copy_network(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        builder = GraphBuilder(_input_shape(image))
        builder.checker = collector = _run_network(builder, net, image)
        is_map = image.dim() == 4
        export_module(builder, "", net, builder.input_value if is_map else make_value(image, "image"))
        calls = sorted(collector.calls, key=lambda call: call.position)
        network_problem = _find_network_problem(net, builder.input_value.shape) if is_map else _describe_input(image)
    if network_problem is None:  # what was refused does not change the output
        calls = [call for call in calls if not call.problem]
    elif not is_map or not any(call.problem for call in calls):
        calls.insert(0, network_problem)
    return ExportCheck(tuple(_list_layers(builder, calls)))


def _make_image(example: Tensor | Sequence[int]) -> Tensor:
    if isinstance(example, Tensor) and example.dim() > 0 and len(example) > 0:
        return example[:1].detach().cpu().float()
    is_shape = isinstance(example, list | tuple) and all(isinstance(n, int) and n > 0 for n in example)
    if not is_shape or not example:
        shown = tuple(example.shape) if isinstance(example, Tensor) else example
        raise InputError(f"the example must be a batch of images or its shape, such as (1, 3, 32, 32); got {shown!r}")
    return torch.zeros(1, *example[1:])


def _input_shape(images: Tensor) -> tuple[int, int, int]:
    channels, h, w = (*images.shape[1:], 1, 1, 1)[:3]
    return h, w, channels


def _copy_network(model: nn.Module) -> nn.Module:
    """Return a float32 copy on the CPU in evaluation mode, which the check may run without changing the model."""
    if not isinstance(model, nn.Module):
        raise InputError(f"check_export takes a torch.nn.Module; got {type(model).__name__}")
    try:
        return deepcopy(model).cpu().float().eval()
    except Exception as error:  # a module can raise any error while it is copied
        raise InputError(f"check_export works on a copy of the network, which cannot be made: {error}") from None


def _run_network(builder: GraphBuilder, net: nn.Module, image: Tensor) -> ProblemCollector:
    try:
        return ProblemCollector(builder, net, image)
    except Exception as error:  # a forward can raise any error
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise InputError(f"the network does not accept an example of shape {tuple(image.shape)} ({reason})") from error


# What the forward of a network can start with, by the number of axes that it expects.
INPUT_ALTERNATIVES = {2: ("x.flatten(1) of an input (n, c, h, w)",), 3: ("x.squeeze(2) of an input (n, c, 1, length)",)}


def _describe_input(image: Tensor) -> CheckedCall:
    shape = ("n", *image.shape[1:])
    problem = f"its input has the shape ({', '.join(map(str, shape))}), but the format's input is (n, c, h, w)"
    return CheckedCall("", "", 0, problem=problem, alternatives=INPUT_ALTERNATIVES.get(image.dim(), ()))


def _find_network_problem(net: nn.Module, shape: tuple[int, int, int]) -> CheckedCall | None:
    """Return why the network as a whole cannot be exported, or None if it can."""
    try:
        convert_network(net, ModelInput(shape, ()), "check", adjusts_rounding=False)
    except Exception as error:  # the export of a network with problems can raise any error
        return CheckedCall(
            error.layer if isinstance(error, ExportError) else "", "", 0, problem=describe_problem(error)
        )
    return None


def _list_layers(builder: GraphBuilder, calls: Sequence[CheckedCall]) -> list[LayerCheck]:
    names: dict[NodeBuilder, str] = {node: node.name for node in builder.nodes}
    remaining_nodes = set(fold_affine_nodes(builder.nodes))

    def describe_node(node: NodeBuilder) -> str:
        return node.op if node in remaining_nodes else f"part of {names[node.inputs[0]]}"

    return [
        LayerCheck(
            call.layer or NETWORK_NAME,
            call.kind,
            "" if call.problem else " + ".join(map(describe_node, call.nodes)) or "nothing to compute",
            call.problem,
            call.alternatives,
        )
        for call in calls
    ]
