"""Single layers and small chains: windows, padding, feature orders, thresholds, and rejected layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import BinaryConv2d, BinaryLinear, InputError
from lcrbnn.deploy.engine.reference import run_reference
from lcrbnn.deploy.export.binary_layers.activation_levels import ACTIVATION_LEVELS
from lcrbnn.deploy.export.binary_layers.sign_rules import DOREFA_THRESHOLD, SIGN_RULES
from lcrbnn.deploy.export.export_model import ModelInput, explain_unexportable_method, export_model
from lcrbnn.deploy.export.graph.fold_batch_norm import fold_affine_nodes
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder
from lcrbnn.deploy.export.graph.torch_activations import to_channels_last
from lcrbnn.deploy.export.module_rules import export_module
from lcrbnn.nn.methods.binarizer import ActivationBinarizer, BinaryTensor
from lcrbnn.nn.methods.dorefa import DorefaActivation
from lcrbnn.nn.methods.method_registry import METHODS
from lcrbnn.nn.methods.reactnet import ReactActivation
from lcrbnn.nn.models.blocks import Maxout, PadChannels, RPReLU, Subsample
from tests.deploy.export.random_networks import (
    DISTINCT_METHOD_NAMES,
    EXPORTABLE_METHODS,
    METHOD_IDS,
    describe_input,
    randomize_parameters,
)
from tests.deploy.export.test_networks import assert_layers_equal_pytorch

HEAD = (nn.AdaptiveAvgPool2d(1), nn.Flatten())


def binary_conv(
    method: object = "irnet", cin: int = 4, cout: int = 6, kernel: int = 3, **options: object
) -> BinaryConv2d:
    return BinaryConv2d(cin, cout, kernel, method=method, **options)


CHAINS = {
    "groups, bias, stride": lambda m: [binary_conv(m, groups=2, bias=True, stride=2, padding=1), *HEAD],
    "dilation, two sizes": lambda m: [BinaryConv2d(4, 6, (3, 2), (2, 1), (2, 0), (2, 1), method=m), *HEAD],
    "same": lambda m: [binary_conv(m, kernel=4, padding="same"), nn.BatchNorm2d(6), *HEAD],
    "border of +1": lambda m: [binary_conv(m, padding=1, padding_value=1.0), nn.BatchNorm2d(6), nn.PReLU(), *HEAD],
    "flattened map": lambda m: [
        binary_conv(m, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(6), nn.Hardtanh(), nn.Flatten(),
        BinaryLinear(96, 16, bias=True, method=m), nn.BatchNorm1d(16), nn.Hardtanh(), BinaryLinear(16, 6, method=m),
    ],
    "flattened, then normalised": lambda m: [
        binary_conv(m, padding=1), nn.Flatten(), nn.BatchNorm1d(384), nn.PReLU(384),
        BinaryLinear(384, 8, method=m), nn.Linear(8, 6),
    ],
    "one pixel": lambda m: [
        binary_conv(m, kernel=8), nn.Flatten(), nn.BatchNorm1d(6), nn.Dropout(), nn.ReLU(),
        BinaryLinear(6, 6, method=m),
    ],
    "pools": lambda m: [
        nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.BatchNorm2d(4), nn.Sequential(RPReLU(4), binary_conv(m, kernel=1)), *HEAD,
    ],
    "two slopes": lambda m: [
        binary_conv(m, padding=1), nn.BatchNorm2d(6), Maxout(6), binary_conv(m, 6), nn.BatchNorm2d(6), Maxout(6), *HEAD,
    ],
    "shortcuts": lambda m: [Subsample(3), PadChannels(4, 7), binary_conv(m, 7, padding=1), nn.Identity(), *HEAD],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # for even kernels, torch warns once that it copies
@pytest.mark.parametrize("method", EXPORTABLE_METHODS, ids=METHOD_IDS)
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_of_layers_equal_pytorch(chain: str, method: lcrbnn.nn.methods.Method) -> None:
    if chain == "border of +1" and (method.activation_bits == 32 or method.name in ("abc-net", "dsq")):
        return  # rejected, see REJECTED_LAYERS
    if method.name not in DISTINCT_METHOD_NAMES and chain not in ("groups, bias, stride", "flattened map"):
        return
    net = nn.Sequential(*CHAINS[chain](method))
    images = torch.randn(5, 4, 8, 8)
    lcrbnn.fit_output_shapes(net, images)
    randomize_parameters(net, images)
    assert_layers_equal_pytorch(net, export_model(net, describe_input(images, 6), "chain"), images)


@pytest.mark.parametrize("size", range(3, 14))
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (2, 3), (3, 1)])
def test_pools_of_every_size_equal_pytorch(size: int, ceil: bool, kernel: int, stride: int) -> None:
    for pool in (nn.AvgPool2d(kernel, stride, ceil_mode=ceil), nn.MaxPool2d(kernel, stride, 1, ceil_mode=ceil)):
        images = torch.randn(2, 3, size, size + 1)
        features = pool(images).flatten(1).shape[1]
        net = nn.Sequential(pool, nn.Flatten(), nn.Linear(features, 2)).eval()
        logits = run_reference(export_model(net, describe_input(images, 2), "pool"), to_channels_last(images))
        np.testing.assert_allclose(logits, net(images).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "kind", [k for k, rule in SIGN_RULES.items() if rule.__name__ != "_mean_threshold"], ids=lambda k: k.__name__
)
def test_thresholds_are_where_the_sign_changes(kind: type[ActivationBinarizer]) -> None:
    binarizer = kind(3).requires_grad_(False)
    if isinstance(binarizer, ReactActivation):
        torch.nn.init.normal_(binarizer.shift)
    threshold = SIGN_RULES[kind](binarizer, 3)
    steps = [threshold]
    for _ in range(50):
        steps = [np.nextafter(steps[0], np.float32(-9)), *steps, np.nextafter(steps[-1], np.float32(9))]
    x = np.stack(steps)
    torch_signs = binarizer(torch.from_numpy(x)[:, :, None, None]).signs[..., 0, 0].numpy()
    assert np.array_equal(np.where(x < threshold, -1, 1), torch_signs)
    assert (torch_signs[:50] == -1).all()
    assert (torch_signs[50:] == 1).all()


def test_the_dorefa_threshold_is_one_ulp_below_a_half() -> None:
    assert np.float32(0.5) > DOREFA_THRESHOLD
    assert DorefaActivation(1)(torch.tensor([[float(DOREFA_THRESHOLD)]])).signs.item() == 1


class BinarizerWithoutThresholds(ActivationBinarizer):
    def forward(self, x: Tensor) -> BinaryTensor:
        return BinaryTensor(torch.where(x.abs() < 1, -1.0, 1.0))


class CustomPool(nn.MaxPool2d):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.lp_pool2d(input, 2, self.kernel_size)


def conv_without_thresholds() -> BinaryConv2d:
    layer = binary_conv()
    layer.input_binarizer = BinarizerWithoutThresholds(4)
    return layer


class BinarizerWithThresholds(ActivationBinarizer):
    """A custom binarizer with the sign +1 from `at` on, which declares other thresholds if told so."""

    def __init__(self, channels: int, at: Tensor, declared: Tensor) -> None:
        super().__init__(channels)
        self.at, self.declared = at, declared

    def forward(self, x: Tensor) -> BinaryTensor:
        return BinaryTensor(
            lcrbnn.nn.functional.surrogate_sign(x - self.at.reshape(-1, 1, 1), lcrbnn.nn.functional.identity_slope)
        )

    def thresholds(self) -> Tensor:
        return self.declared


def conv_with_thresholds(at: Tensor, cin: int = 4, declared: Tensor | None = None) -> BinaryConv2d:
    layer = binary_conv(cin=cin)
    layer.input_binarizer = BinarizerWithThresholds(cin, at, at if declared is None else declared)
    return layer


def test_custom_binarizers_declare_their_thresholds() -> None:
    net = nn.Sequential(
        conv_with_thresholds(torch.tensor([0.3, -0.2, 0.0, 1.1])),
        nn.BatchNorm2d(6),
        conv_with_thresholds(torch.full((1,), 0.4), 6),
        *HEAD,
    )
    images = torch.randn(5, 4, 8, 8)
    randomize_parameters(net, images)
    assert_layers_equal_pytorch(net, export_model(net, describe_input(images, 6), "chain"), images)


def make_maxout(above: float) -> Maxout:
    act = Maxout(4)
    act.above.data[2] = above
    return act


def test_maxout_slopes_may_be_negative() -> None:
    """Slopes of trained networks can be negative. Then the PReLU comes before the product."""
    net = nn.Sequential(
        binary_conv(padding=1),
        nn.BatchNorm2d(6),
        Maxout(6),
        binary_conv(cin=6),
        nn.BatchNorm2d(6),
        Maxout(6),
        *HEAD,
    )
    images = torch.randn(5, 4, 8, 8)
    randomize_parameters(net, images)
    for place in (2, 5):
        act = net[place]
        assert isinstance(act, Maxout)
        act.above.data[:3] = torch.tensor([-0.5, -1.2, -0.1])
        act.below.data[:2] = torch.tensor([0.4, -0.3])
    assert_layers_equal_pytorch(net, export_model(net, describe_input(images, 6), "chain"), images)


REJECTED_LAYERS = [
    (lambda: [nn.Softplus()], "layer '0' cannot be exported: Softplus has no export rule"),
    (lambda: [CustomPool(2)], "layer '0.lp_pool2d' cannot be exported: the function 'lp_pool2d' has no export rule"),
    (lambda: [nn.Sequential(nn.ReLU(), nn.Mish())], "layer '0.1' cannot be exported: Mish has no export rule"),
    (lambda: [binary_conv(lcrbnn.get_method("dorefa", "1/5"))], "its activations have 5 bits, which would need 31"),
    (lambda: [binary_conv("dsq", padding=1, padding_value=1)], "a padding_value of 1 is not one of the learned"),
    (lambda: [binary_conv("dorefa", padding=1, padding_value=-1)], "a padding_value of -1 is the sign -3 for dorefa"),
    (lambda: [binary_conv(lcrbnn.get_method("irnet", "1/32"), padding=1, padding_value=1)], "its real input is padded"),
    (lambda: [binary_conv("rbnn", padding=1, padding_mode="reflect")], "rbnn compares its input with the mean"),
    (lambda: [conv_without_thresholds()], "the thresholds of BinarizerWithoutThresholds are unknown"),
    (lambda: [conv_with_thresholds(torch.zeros(1), declared=torch.zeros(3))], r"1 or 4 numbers; got the shape \(3"),
    (lambda: [binary_conv(cin=3)], "it needs 3 input channels, but gets 4"),
    (lambda: [binary_conv(kernel=9)], "its window does not fit into a map of 8 x 8"),
    (lambda: [nn.Linear(4, 2)], "it needs 4 input features, but gets 8: an nn.Flatten is missing before it"),
    (lambda: [nn.Flatten(), nn.Linear(8, 2)], "it needs 8 input features, but gets 256"),
    (lambda: [nn.Flatten(), binary_conv()], "it needs a map as input, but gets a vector"),
    (lambda: [nn.BatchNorm2d(4, track_running_stats=False)], "it has no running statistics"),
    (lambda: [make_maxout(0.0)], "its slope above 0 is 0 in a channel, but a PReLU has slope 1 there"),
    (lambda: [nn.AvgPool2d(2, padding=1, ceil_mode=True)], "it has ceil_mode together with padding"),
    (lambda: [nn.MaxPool2d(2, dilation=2)], "it is dilated or returns indices"),
    (lambda: [nn.AdaptiveMaxPool2d(3)], "its output size is .3, 3.; it must divide the size of the map"),
    (lambda: [nn.Flatten(0)], r"its output 'output' has the shape \(256 n\); the images must be on the first"),
    (lambda: [binary_conv().double()], r"but 0\.weight is float64 on cpu; use net\.float\(\)\.cpu\(\)"),
    (lambda: [nn.Identity(), *HEAD, nn.Linear(4, 3)], r"the last value must have the shape 1 x 1 x 2"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "sentence"), REJECTED_LAYERS, ids=[sentence[:40] for _, sentence in REJECTED_LAYERS]
)
def test_unsupported_layers_are_rejected_with_a_reason(layers: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        export_model(nn.Sequential(*layers()), ModelInput((8, 8, 4), ("a", "b")), "refused")
    assert "\n" not in str(error.value)


def test_numbers_out_of_range_are_rejected() -> None:
    net = nn.Sequential(*HEAD, nn.Linear(4, 2))
    net[2].weight.data[0, 0] = 1e5
    images = ModelInput((8, 8, 4), ("a", "b"))
    export_model(net, images, "wide")
    with pytest.raises(
        InputError, match="layer '2' cannot be exported: its weight has numbers that float16 cannot represent"
    ):
        export_model(net, images, "wide", half=True)
    net[2].weight.data[0, 0] = torch.nan
    with pytest.raises(InputError, match="its weight has numbers that float32 cannot represent"):
        export_model(net, images, "wide")
    with pytest.raises(InputError, match=r"net must be a torch\.nn\.Module; got str"):
        export_model("net", images, "text")


def test_batch_norms_are_not_folded_into_layers_with_other_readers() -> None:
    net = randomize_parameters(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)), torch.randn(3, 4, 8, 8))
    draft = GraphBuilder((8, 8, 4))
    x = export_module(draft, "0", net[0], draft.input_value)
    draft.add_node("add", "sum", [export_module(draft, "1", net[1], x), x])
    assert [step.op for step in fold_affine_nodes(draft.nodes)] == ["conv", "affine", "add"]
    del draft.nodes[2]
    assert [step.op for step in fold_affine_nodes(draft.nodes)] == ["conv"]


def test_every_method_is_exported_or_rejected_with_a_reason() -> None:
    reasons = {
        (name, bits): explain_unexportable_method(row.configure(f"1/{bits}"))
        for name, row in METHODS.items()
        for bits in row.supported_activation_bits
    }
    rejected = {pair for pair, reason in reasons.items() if reason}
    assert rejected == {("dorefa", bits) for bits in (5, 6, 7, 8)} | {("rbnn", 32)}
    assert all(f"{bits} bits" in reasons["dorefa", bits] for bits in (5, 6, 7, 8))


def test_methods_without_sign_rule_have_a_rule_for_levels() -> None:
    for name, row in METHODS.items():
        binarizer_class = type(row.activation_class(4))
        assert binarizer_class in SIGN_RULES or binarizer_class in ACTIVATION_LEVELS, name
