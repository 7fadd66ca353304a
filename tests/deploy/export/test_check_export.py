"""check_export lists every layer, collects all problems, agrees with export_model and changes nothing."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.deploy.export.alternatives import MAX_ALTERNATIVES, find_alternatives
from lcrbnn.deploy.export.check_export import NETWORK_NAME
from lcrbnn.deploy.export.export_model import ModelInput, explain_unexportable_method, export_model
from lcrbnn.deploy.export.graph.graph_builder import ExportError
from lcrbnn.deploy.export.module_rules import MODULE_RULES
from lcrbnn.deploy.export.problem_collector import EXPORTABLE_METHODS
from lcrbnn.errors import InputError


class UnsupportedParts(nn.Module):
    """Has modules and functions without export rules, between layers that can be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.shrink = nn.Hardshrink()
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.sequence = nn.GRU(8, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.erf(self.norm(self.first(x)))
        x = self.second(self.shrink(x))
        tokens, _ = self.sequence(x.flatten(2).transpose(1, 2))
        return self.head(tokens.amax(1))


def make_exportable_network() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(3, 8, 3),
            norm=nn.BatchNorm2d(8),
            act=nn.Hardtanh(),
            binary=lcrbnn.BinaryConv2d(8, 8, 3, method="irnet"),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            head=nn.Linear(8, 2),
        )
    )


def test_each_layer_has_a_line_with_its_operator() -> None:
    check = lcrbnn.check_export(make_exportable_network(), (1, 3, 8, 8))
    assert check.is_exportable
    assert {row.layer: row.becomes for row in check.layers} == {
        "conv": "conv",
        "norm": "part of conv",
        "act": "hardtanh",
        "binary": "bconv",
        "pool": "mean",
        "flatten": "nothing to compute",
        "head": "conv",
    }


def test_all_problems_are_collected_and_the_check_continues_with_the_right_shapes() -> None:
    check = lcrbnn.check_export(UnsupportedParts(), (1, 3, 8, 8))
    refused = {row.layer for row in check.problems}
    assert {"erf", "shrink", "sequence"} <= refused
    assert {row.layer for row in check.layers if not row.problem} >= {"first", "norm", "second", "head"}
    assert all(len(row.alternatives) <= MAX_ALTERNATIVES for row in check.problems)
    assert all(bool(row.problem) != bool(row.becomes) for row in check.layers)


@pytest.mark.parametrize(("layer", "shape"), [(nn.Conv1d(1, 2, 3), (1, 1, 16)), (nn.Linear(16, 2), (1, 16))])
def test_inputs_that_are_no_images_are_the_first_problem(layer: nn.Module, shape: tuple[int, ...]) -> None:
    problem = lcrbnn.check_export(nn.Sequential(layer), shape).problems[0]
    assert problem.layer == NETWORK_NAME
    assert problem.alternatives


def test_calls_without_effect_on_the_output_are_no_problems() -> None:
    class UnusedCall(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.erf(x)
            return F.relu(x)

    assert lcrbnn.check_export(nn.Sequential(nn.Conv2d(3, 4, 3), UnusedCall()), (1, 3, 8, 8)).is_exportable


def test_several_outputs_of_a_refused_module_are_unpacked() -> None:
    class TwoBranches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = nn.MaxPool2d(2, return_indices=True)
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x, _ = self.pool(x)
            return F.adaptive_avg_pool2d(self.conv(x), 1).flatten(1)

    check = lcrbnn.check_export(TwoBranches(), (1, 3, 8, 8))
    assert [row.layer for row in check.problems] == ["pool"]
    assert {row.layer for row in check.layers} == {"pool", "conv", "adaptive_avg_pool2d"}


def test_modules_without_a_shape_from_their_functions_use_the_recorded_output() -> None:
    class DataDependent(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    net = nn.Sequential(nn.Conv2d(3, 4, 3), DataDependent(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    check = lcrbnn.check_export(net, (1, 3, 8, 8))
    assert "1" in {row.layer for row in check.problems} <= {"1", "1.sum_1"}
    assert [row.layer for row in check.layers if not row.problem] == ["0", "2", "3", "4"]


def test_methods_that_cannot_be_exported_are_refused_in_each_of_their_layers() -> None:
    conv, method = nn.Conv2d(4, 4, 3), lcrbnn.get_method("sq-twn")
    reason = explain_unexportable_method(method)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), conv, nn.ReLU(), nn.Conv2d(4, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    problems = lcrbnn.check_export(lcrbnn.binarize(net, method, skip=["0"]), (1, 3, 8, 8)).problems
    if not reason:
        assert problems == ()
        return
    assert [row.layer for row in problems] == ["1", "3"]
    assert all(row.problem == reason and row.alternatives == EXPORTABLE_METHODS for row in problems)


@pytest.mark.parametrize("name", EXPORTABLE_METHODS)
def test_the_suggested_methods_can_be_exported(name: str) -> None:
    assert explain_unexportable_method(lcrbnn.get_method(name)) == ""


@pytest.mark.parametrize("method", ["irnet", "xnor++", "rbnn", "real"])
def test_the_check_agrees_with_the_export_of_a_packaged_network(method: str) -> None:
    net = lcrbnn.create_model("resnet8-double", method, in_channels=1, image_size=8)
    lcrbnn.fit_output_shapes(net, (1, 1, 8, 8))
    check = lcrbnn.check_export(net, (2, 1, 8, 8))
    assert check.is_exportable, check
    operators = [node.op for node in export_model(net, ModelInput((8, 8, 1), ("",) * 10), "x").nodes]
    parts = [part for row in check.layers for part in row.becomes.split(" + ") if part in set(operators)]
    assert sorted(parts) == sorted(operators)


def test_nothing_changes_in_the_model() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("num_calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.num_calls += 1
            return F.dropout(x, 0.5, True)

    net = nn.Sequential(make_exportable_network(), Counter())
    retention = lcrbnn.Retention(net, blocks=["0.binary"], lcr_weight=1.0)
    net[0].act.eval()
    torch.manual_seed(0)
    net(torch.randn(2, 3, 8, 8))

    def describe_state() -> Any:
        tensors = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        modules = [(m.training, list(m._forward_hooks), list(m._forward_pre_hooks)) for m in net.modules()]
        return tensors, modules, torch.get_rng_state()

    tensors, modules, rng_state = describe_state()
    lcrbnn.check_export(net, torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(1)))
    later_tensors, later_modules, later_rng_state = describe_state()
    assert all(torch.equal(tensor, later_tensors[name]) for name, tensor in tensors.items())
    assert modules == later_modules
    assert torch.equal(rng_state, later_rng_state)
    assert torch.isfinite(retention.loss())  # its feature maps are still those of the last forward pass


def test_half_precision_networks_are_checked() -> None:
    net = make_exportable_network().half()
    assert lcrbnn.check_export(net, (1, 3, 8, 8)).is_exportable
    assert net.conv.weight.dtype == torch.float16


def test_the_printed_table_is_aligned() -> None:
    lines = str(lcrbnn.check_export(UnsupportedParts(), (1, 3, 8, 8))).splitlines()
    column = lines[0].index("becomes")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines[:-1])


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((1, 3, 0, 8), "the example must be a batch of images or its shape"),
        ("abc", "the example must be a batch of images or its shape"),
        (torch.zeros(()), "the example must be a batch of images or its shape"),
        ((1, 5, 8, 8), "the network does not accept an example of shape"),
    ],
)
def test_invalid_examples_are_rejected(example: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lcrbnn.check_export(make_exportable_network(), example)


def test_other_objects_than_modules_are_rejected() -> None:
    with pytest.raises(InputError, match=r"check_export takes a torch\.nn\.Module; got str"):
        lcrbnn.check_export("net", (1, 3, 8, 8))  # type: ignore[arg-type]  # tested here


def test_the_error_of_an_unsupported_module_names_at_most_three_alternatives() -> None:
    with pytest.raises(ExportError, match=r"^the network cannot be exported: Mish has no export rule") as error:
        export_model(nn.Mish(), ModelInput((8, 8, 3), ()), "x")
    assert 1 <= len(error.value.alternatives) <= MAX_ALTERNATIVES
    assert set(error.value.alternatives) <= {kind.__name__ for kind in MODULE_RULES}


def test_alternatives_are_similar_operations_first_and_at_most_three() -> None:
    known_names = ["ReLU", "PReLU", "Hardtanh", "Conv2d", "relu_", "relu"]
    assert find_alternatives("Mish", known_names) == ["PReLU", "relu", "Hardtanh"]
    assert find_alternatives("conv_2d", known_names) == ["Conv2d"]
    assert find_alternatives("unheard_of", known_names) == []
