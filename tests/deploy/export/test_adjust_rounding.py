"""Folding changes no sign: networks with numbers exactly at thresholds, and one that cannot be repaired."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import BinaryConv2d, InputError
from lcrbnn.deploy.engine.reference import compute_signs, compute_values
from lcrbnn.deploy.export.binary_layers.binary_layer_rules import scale_sums
from lcrbnn.deploy.export.export_model import export_model
from lcrbnn.deploy.export.graph import adjust_rounding as rounding
from lcrbnn.deploy.export.graph.fold_batch_norm import fold_affine_nodes, round_to_float32
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, NodeBuilder
from lcrbnn.deploy.export.graph.torch_activations import record_activations, to_channels_last
from lcrbnn.deploy.export.module_rules import export_module
from lcrbnn.nn.model_hooks import fit_output_shapes
from tests.deploy.export.random_networks import EXPORTABLE_METHODS, describe_input, randomize_parameters

NUM_CHANNELS = 256
MEAN_THRESHOLD_METHODS = ("rbnn", "siman")  # the threshold is the mean of each sample, so no number can be at it
FIXED_THRESHOLD_METHODS = [
    m.name for m in EXPORTABLE_METHODS if m.activation_bits == 1 and m.name not in MEAN_THRESHOLD_METHODS
]


def make_network_at_thresholds(method: str, pool: bool, **options: object) -> nn.Sequential:
    """Return two binary layers with a batch norm that maps a sum of each channel to the next layer's threshold."""
    torch.manual_seed(1)
    between = [nn.MaxPool2d(2)] if pool else []
    net = nn.Sequential(
        BinaryConv2d(8, NUM_CHANNELS, 3, padding=1, method=lcrbnn.get_method(method, **options)),
        *between,
        nn.BatchNorm2d(NUM_CHANNELS),
        nn.Hardtanh(),
        BinaryConv2d(NUM_CHANNELS, 4, 1, method=lcrbnn.get_method(method, **options)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    fit_output_shapes(net, (1, 8, 6, 6))
    randomize_parameters(net, torch.randn(4, 8, 6, 6))
    with torch.no_grad():
        sums = torch.randint(-9, 9, (NUM_CHANNELS,)) * 2.0
        scaled = scale_sums(net[0])(sums.reshape(1, -1, 1, 1).expand(1, -1, 6, 6).contiguous())[..., :1, :1]
        norm = net[-5]
        norm.bias.zero_()
        norm.bias.copy_(-norm(scaled).reshape(-1))
        if method == "reactnet":
            norm.bias.sub_(net[-3].input_binarizer.shift)
        if method == "abc-net":
            norm.bias.sub_(net[-3].input_binarizer.shift - 0.5)
        if method == "dorefa":
            norm.bias.add_(0.5)
    return net.eval()


def build_folded_nodes(net: nn.Module, shape: tuple[int, int, int]) -> list[NodeBuilder]:
    """Return the folded and rounded nodes of a network, before adjust_rounding."""
    builder = GraphBuilder(shape)
    with torch.no_grad():
        export_module(builder, "", net, builder.input_value)
    nodes = fold_affine_nodes(builder.nodes)
    round_to_float32(nodes)
    return nodes


def find_first_sign_path(nodes: list[NodeBuilder]) -> rounding.SignPath:
    return next(rounding._iter_sign_paths([nodes[0]], rounding.find_consumers(nodes)))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("method", FIXED_THRESHOLD_METHODS)
def test_signs_at_thresholds_are_repaired(method: str, pool: bool) -> None:
    net = make_network_at_thresholds(method, pool)
    nodes = build_folded_nodes(net, (6, 6, 8))
    path = find_first_sign_path(nodes)
    before = {k: nodes[path.adjustable_index].attributes[k].copy() for k in "ab"}
    is_wrong = rounding.find_wrong_channels(path)
    assert is_wrong.sum() > NUM_CHANNELS / 100  # rounding alone changes signs
    rounding.adjust_rounding(nodes)
    assert not rounding.find_wrong_channels(path).any()
    after = path.nodes[path.adjustable_index].attributes
    assert not np.array_equal(before["b"], after["b"])
    assert np.array_equal(before["b"][~is_wrong], after["b"][~is_wrong])
    for key in "ab":
        np.testing.assert_allclose(after[key], before[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("method", FIXED_THRESHOLD_METHODS)
def test_input_signs_of_the_second_layer_equal_pytorch(method: str, pool: bool) -> None:
    net = make_network_at_thresholds(method, pool)
    images = torch.randn(64, 8, 6, 6)
    model = export_model(net, describe_input(images, 4), "edge")
    with record_activations(net) as recorded:
        net(images)
    second = [node for node in model.nodes if node.op == "bconv"][1]
    torch_signs = to_channels_last(recorded.signs["4" if pool else "3"])
    assert np.array_equal(
        compute_signs(second, compute_values(model, to_channels_last(images))[second.inputs[0]]), torch_signs
    )


def test_reachable_sums_contain_all_observed_sums() -> None:
    for padding, value, count in ((0, 0.0, 10), (1, 0.0, 19), (1, 1.0, 10)):
        layer = BinaryConv2d(1, 1, 3, padding=padding, method="bnn", padding_value=value)
        net = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        sums = rounding.list_reachable_sums(build_folded_nodes(net, (5, 5, 1))[0])
        assert len(sums) == count
        assert abs(sums).max() == 9
        images = torch.randn(500, 1, 5, 5)
        with record_activations(net) as recorded:
            net(images)
        assert set(recorded.sums["0"].unique().tolist()) <= set(sums.tolist())


def test_signs_that_cannot_be_repaired_are_rejected() -> None:
    nodes = build_folded_nodes(make_network_at_thresholds("bnn", False), (6, 6, 8))

    def fold_around_zero(x: Tensor) -> Tensor:  # no linear function has these signs
        return x.abs() - 0.5

    nodes[0].torch_functions.append(fold_around_zero)
    with pytest.raises(
        InputError, match=r"layer '0 \+ 1' cannot be exported: no numbers near those of channel \d+ reproduce"
    ):
        rounding.adjust_rounding(nodes)


def test_spatial_scales_are_checked_at_every_position() -> None:
    for case in (2, 3, 4):
        net = make_network_at_thresholds("xnor++", False, case=case)
        path = find_first_sign_path(build_folded_nodes(net, (6, 6, 8)))
        assert path.nodes[0].attributes["spatial"].shape == (6, 6, NUM_CHANNELS if case == 2 else 1)
        sums = rounding.list_reachable_sums(path.nodes[0])
        assert rounding.compute_torch_signs(path, sums).shape == (len(sums) * 36, NUM_CHANNELS)


def test_the_chunk_size_does_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    path = find_first_sign_path(build_folded_nodes(make_network_at_thresholds("irnet", False), (6, 6, 8)))
    expected = rounding.find_wrong_channels(path)
    monkeypatch.setattr(rounding, "MAX_CHUNK_ELEMENTS", 5 * NUM_CHANNELS)
    assert np.array_equal(rounding.find_wrong_channels(path), expected)
