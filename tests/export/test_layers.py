"""Single layers and small chains: windows, borders, orders, thresholds, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import BinaryConv2d, BinaryLinear, InputError
from lcrbnn.engine.reference import run
from lcrbnn.export import SIGNS, Input, export_model
from lcrbnn.export.draft import Draft
from lcrbnn.export.fold import fold
from lcrbnn.export.refusal import refusal
from lcrbnn.export.rules import follow
from lcrbnn.export.signs import HALF
from lcrbnn.export.watch import last
from lcrbnn.methods import METHODS, ActivationBinarizer, Binary
from lcrbnn.methods.dorefa import DorefaActivation
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.models.blocks import Maxout, PadChannels, RPReLU, Subsample
from tests.export.nets import CHOICES, FIRST, IDS, input_of, stirred
from tests.export.test_networks import check_layers

END = (nn.AdaptiveAvgPool2d(1), nn.Flatten())


def conv(method: object = "irnet", cin: int = 4, cout: int = 6, kernel: int = 3, **options: object) -> BinaryConv2d:
    return BinaryConv2d(cin, cout, kernel, method=method, **options)


CHAINS = {
    "groups, bias, stride": lambda m: [conv(m, groups=2, bias=True, stride=2, padding=1), *END],
    "dilation, two sizes": lambda m: [BinaryConv2d(4, 6, (3, 2), (2, 1), (2, 0), (2, 1), method=m), *END],
    "same": lambda m: [conv(m, kernel=4, padding="same"), nn.BatchNorm2d(6), *END],
    "border of +1": lambda m: [conv(m, padding=1, padding_value=1.0), nn.BatchNorm2d(6), nn.PReLU(), *END],
    "flattened map": lambda m: [
        conv(m, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(6), nn.Hardtanh(), nn.Flatten(),
        BinaryLinear(96, 16, bias=True, method=m), nn.BatchNorm1d(16), nn.Hardtanh(), BinaryLinear(16, 6, method=m),
    ],
    "flattened, then normalised": lambda m: [
        conv(m, padding=1), nn.Flatten(), nn.BatchNorm1d(384), nn.PReLU(384),
        BinaryLinear(384, 8, method=m), nn.Linear(8, 6),
    ],
    "one pixel": lambda m: [
        conv(m, kernel=8), nn.Flatten(), nn.BatchNorm1d(6), nn.Dropout(), nn.ReLU(), BinaryLinear(6, 6, method=m),
    ],
    "pools": lambda m: [
        nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, ceil_mode=True),
        nn.BatchNorm2d(4), nn.Sequential(RPReLU(4), conv(m, kernel=1)), *END,
    ],
    "two slopes": lambda m: [
        conv(m, padding=1), nn.BatchNorm2d(6), Maxout(6), conv(m, 6), nn.BatchNorm2d(6), Maxout(6), *END,
    ],
    "shortcuts": lambda m: [Subsample(3), PadChannels(4, 7), conv(m, 7, padding=1), nn.Identity(), *END],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch tells once that an even kernel costs it a copy
@pytest.mark.parametrize("chosen", CHOICES, ids=IDS)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_layers_is_what_pytorch_computes(chain: str, chosen: lcrbnn.methods.Method) -> None:
    if chain == "border of +1" and (chosen.chosen_bits == 32 or chosen.name in ("abc-net", "dsq")):
        return  # refused: see below
    if chosen.name not in FIRST and chain not in ("groups, bias, stride", "flattened map"):
        return
    net = nn.Sequential(*CHAINS[chain](chosen))
    images = torch.randn(5, 4, 8, 8)
    lcrbnn.fit(net, images)
    stirred(net, images)
    check_layers(net, export_model(net, input_of(images, 6), "chain"), images)


@pytest.mark.parametrize("size", range(3, 14))
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 2), (2, 3), (3, 1)])
def test_pools_of_every_size_are_pytorchs(size: int, ceil: bool, kernel: int, stride: int) -> None:
    for pool in (nn.AvgPool2d(kernel, stride, ceil_mode=ceil), nn.MaxPool2d(kernel, stride, 1, ceil_mode=ceil)):
        images = torch.randn(2, 3, size, size + 1)
        features = pool(images).flatten(1).shape[1]
        net = nn.Sequential(pool, nn.Flatten(), nn.Linear(features, 2)).eval()
        found = run(export_model(net, input_of(images, 2), "pool"), last(images))
        np.testing.assert_allclose(found, net(images).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", [k for k, rule in SIGNS.items() if rule.__name__ != "_mean"], ids=lambda k: k.__name__)
def test_thresholds_are_where_the_binarizer_turns(kind: type[ActivationBinarizer]) -> None:
    binarizer = kind(3).requires_grad_(False)
    if isinstance(binarizer, ReactActivation):
        torch.nn.init.normal_(binarizer.shift)
    threshold = SIGNS[kind](binarizer, 3)
    steps = [threshold]
    for _ in range(50):
        steps = [np.nextafter(steps[0], np.float32(-9)), *steps, np.nextafter(steps[-1], np.float32(9))]
    x = np.stack(steps)
    own = binarizer(torch.from_numpy(x)[:, :, None, None]).signs[..., 0, 0].numpy()
    assert np.array_equal(np.where(x < threshold, -1, 1), own)
    assert (own[:50] == -1).all()
    assert (own[50:] == 1).all()


def test_a_half_is_rounded_up_from_one_ulp_below() -> None:
    assert np.float32(0.5) > HALF
    assert DorefaActivation(1)(torch.tensor([[float(HALF)]])).signs.item() == 1


class Odd(ActivationBinarizer):
    def forward(self, x: Tensor) -> Binary:
        return Binary(torch.where(x.abs() < 1, -1.0, 1.0))


class OwnPool(nn.MaxPool2d):
    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.lp_pool2d(input, 2, self.kernel_size)


def odd() -> BinaryConv2d:
    layer = conv()
    layer.input_binarizer = Odd(4)
    return layer


class Told(ActivationBinarizer):
    """Somebody's own: +1 from a number on."""

    def __init__(self, channels: int, at: Tensor, said: Tensor) -> None:
        super().__init__(channels)
        self.at, self.said = at, said

    def forward(self, x: Tensor) -> Binary:
        return Binary(lcrbnn.ops.surrogate_sign(x - self.at.reshape(-1, 1, 1), lcrbnn.ops.straight))

    def thresholds(self) -> Tensor:
        return self.said


def told(at: Tensor, cin: int = 4, said: Tensor | None = None) -> BinaryConv2d:
    layer = conv(cin=cin)
    layer.input_binarizer = Told(cin, at, at if said is None else said)
    return layer


def test_a_method_of_ones_own_says_where_its_signs_turn() -> None:
    net = nn.Sequential(
        told(torch.tensor([0.3, -0.2, 0.0, 1.1])), nn.BatchNorm2d(6), told(torch.full((1,), 0.4), 6), *END
    )
    images = torch.randn(5, 4, 8, 8)
    stirred(net, images)
    check_layers(net, export_model(net, input_of(images, 6), "chain"), images)


def bent(above: float) -> Maxout:
    act = Maxout(4)
    act.above.data[2] = above
    return act


def test_two_slopes_may_fall_above_zero() -> None:
    """As a trained network's do now and then: the order of product and PReLU is then the other one."""
    net = nn.Sequential(conv(padding=1), nn.BatchNorm2d(6), Maxout(6), conv(cin=6), nn.BatchNorm2d(6), Maxout(6), *END)
    images = torch.randn(5, 4, 8, 8)
    stirred(net, images)
    for place in (2, 5):
        act = net[place]
        assert isinstance(act, Maxout)
        act.above.data[:3] = torch.tensor([-0.5, -1.2, -0.1])
        act.below.data[:2] = torch.tensor([0.4, -0.3])
    check_layers(net, export_model(net, input_of(images, 6), "chain"), images)


REFUSED = [
    (lambda: [nn.GELU()], "layer '0' cannot be exported: nothing says how a GELU is written; there are Network, Seq"),
    (lambda: [OwnPool(2)], "layer '0.lp_pool2d' cannot be exported: nothing says how the function 'lp_pool2d' is w"),
    (lambda: [nn.Sequential(nn.ReLU(), nn.Tanh())], "layer '0.1' cannot be exported: nothing says how a Tanh"),
    (lambda: [conv(lcrbnn.method("dorefa", "1/2"))], "'0' cannot be exported: dorefa gives its activations 2 bits"),
    (lambda: [conv(lcrbnn.method("abc-net", weight_bases=3))], "'0' cannot be exported: abc-net has 3 binary bases"),
    (lambda: [conv(lcrbnn.method("abc-net", activation_bases=2))], "abc-net gives its activations 2 bits"),
    (lambda: [conv("adabin")], "'0' cannot be exported: adabin has two levels that are not around 0"),
    (lambda: [conv("sq-twn")], "'0' cannot be exported: sq-twn: its weights have three levels"),
    (lambda: [conv(lcrbnn.method("horq", "1/1"))], "horq scales activations by a number of each image's own"),
    (lambda: [conv(lcrbnn.method("irnet/adabin"))], "irnet/adabin has levels of activations around a learned centre"),
    (lambda: [conv("dsq", padding=1, padding_value=1)], "a padding_value of 1 is no sign among the learned levels of"),
    (lambda: [conv("dorefa", padding=1, padding_value=-1)], "a padding_value of -1 is -3 among the signs of dorefa"),
    (lambda: [conv(lcrbnn.method("irnet", "1/32"), padding=1, padding_value=1)], "its real input is padded with 1"),
    (lambda: [conv(padding=1, padding_mode="reflect")], "its padding is of the mode 'reflect'"),
    (lambda: [odd()], "nothing says how a Odd takes signs: it has no `thresholds` of its own, and is none"),
    (lambda: [told(torch.zeros(1), said=torch.zeros(3))], r"the thresholds of a Told are of shape \(3,\), not one or"),
    (lambda: [conv(cin=3)], "it takes 3 channels, and gets 4"),
    (lambda: [conv(kernel=9)], "its window does not fit a map of 8 x 8"),
    (lambda: [nn.Linear(8, 2)], "it takes a vector, and gets a map: an nn.Flatten is missing before it"),
    (lambda: [nn.Flatten(), nn.Linear(8, 2)], "it takes 8 features, and gets 256"),
    (lambda: [nn.Flatten(), conv()], "it takes a map, and gets a vector"),
    (lambda: [nn.BatchNorm2d(4, track_running_stats=False)], "it keeps no running statistics"),
    (lambda: [nn.Hardtanh(0, 6)], "it cuts at 0 and 6"),
    (lambda: [bent(0.0)], "its slope above 0 is 0 in a channel, and a PReLU's is 1 there"),
    (lambda: [nn.AvgPool2d(2, padding=1)], "it is padded or has a divisor of its own"),
    (lambda: [nn.MaxPool2d(2, dilation=2)], "it is dilated or gives indices"),
    (lambda: [nn.AdaptiveAvgPool2d(2)], "it averages to 2, and the format's mean to one pixel"),
    (lambda: [nn.Flatten(2)], "it joins the axes 2 to -1, not all of an image"),
    (lambda: [conv().double()], r"float32 on the CPU, and 0\.weight is float64 on cpu: net\.float\(\)\.cpu\(\) brings"),
    (lambda: [nn.Identity(), *END, nn.Linear(4, 3)], "the last value must be 1 x 1 x classes, here 2; its shape is"),
]  # fmt: skip


@pytest.mark.parametrize(("layers", "sentence"), REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_what_the_format_has_not_is_refused_in_a_sentence(layers: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        export_model(nn.Sequential(*layers()), Input((8, 8, 4), ("a", "b")), "refused")
    assert "\n" not in str(error.value)


def test_numbers_that_do_not_fit_are_refused() -> None:
    net = nn.Sequential(*END, nn.Linear(4, 2))
    net[2].weight.data[0, 0] = 1e5
    images = Input((8, 8, 4), ("a", "b"))
    export_model(net, images, "wide")
    with pytest.raises(
        InputError, match="layer '2' cannot be exported: its weight holds numbers that float16 does not"
    ):
        export_model(net, images, "wide", half=True)
    net[2].weight.data[0, 0] = torch.nan
    with pytest.raises(InputError, match="its weight holds numbers that float32 does not"):
        export_model(net, images, "wide")
    with pytest.raises(InputError, match=r"export_model takes a torch\.nn\.Module; got str"):
        export_model("net", images, "text")


def test_a_batch_norm_stays_apart_where_something_else_reads_its_layer() -> None:
    net = stirred(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)), torch.randn(3, 4, 8, 8))
    draft = Draft((8, 8, 4))
    x = follow(draft, "0", net[0], draft.image)
    draft.emit("add", "sum", [follow(draft, "1", net[1], x), x])
    assert [step.op for step in fold(draft.steps)] == ["conv", "affine", "add"]
    del draft.steps[2]
    assert [step.op for step in fold(draft.steps)] == ["conv"]


def test_every_method_is_exported_or_refused_by_its_name_and_with_a_reason() -> None:
    reasons = {
        (name, bits): refusal(row.configure(f"1/{bits}"))
        for name, row in METHODS.items()
        for bits in row.activation_bits
    }
    refused = {pair for pair, reason in reasons.items() if reason}
    few_bits = {(n, b) for n, b in reasons if 1 < b < 32} | {("ie-net", 1), ("horq", 1)}
    assert refused == few_bits | {("adabin", 1), ("adabin", 32), ("sq-twn", 32), ("rbnn", 32)}
    assert all(reason.startswith(name) for (name, _), reason in reasons.items() if reason)


def test_a_binarizer_whose_signs_no_row_knows_belongs_to_a_refused_method() -> None:
    for name, row in METHODS.items():
        unknown = type(row.activation(4)) not in SIGNS
        assert not unknown or all(refusal(row.configure(f"1/{b}")) for b in row.activation_bits if b < 32), name
