from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lcrbnn
from lcrbnn.analyze.cost import count
from lcrbnn.errors import InputError
from lcrbnn.layers import BinaryConv2d, binary_layers
from lcrbnn.models import MODELS
from lcrbnn.models.blocks import BLOCKS, Maxout, RPReLU
from lcrbnn.models.mobile import MobileBlock

# name: (parameters, binary MACs, real MACs) with irnet 1/1, counted by hand from the published shapes:
# ResNet-20: stem 3*16*9; stages 6*(16*16*9), 16*32*9 + 5*(32*32*9), 32*64*9 + 5*(64*64*9); batch norms; 64*10 + 10.
GOLDEN = {
    "resnet8-double": (75_418, 737_280, 28_288),
    "resnet20": (269_850, 40_108_032, 443_008),
    "resnet20-double": (269_850, 40_108_032, 443_008),
    "resnet20-relu": (269_850, 40_108_032, 443_008),
    "resnet18": (11_174_986, 547_356_672, 8_066_048),
    "resnet18-double": (11_174_986, 547_356_672, 8_066_048),
    "resnet18-binary-shortcut": (11_174_986, 553_648_128, 1_774_592),
    "resnet18-pool-shortcut": (11_001_162, 547_356_672, 1_774_592),
    "resnet18-relu": (11_174_986, 547_356_672, 8_066_048),
    "resnet34": (21_283_146, 1_151_336_448, 8_066_048),
    "resnet34-double": (21_283_146, 1_151_336_448, 8_066_048),
    "resnet20-double-prelu": (270_522, 40_108_032, 443_008),
    "resnet20-double-maxout": (271_226, 40_108_032, 443_008),
    "resnet20-double-rprelu": (271_914, 40_108_032, 443_008),
    "resnet20-double-pool": (269_850, 40_108_032, 443_008),
    "resnet20-double-pool-rprelu": (271_914, 40_108_032, 443_008),
    "resnet20-double-bare": (269_850, 40_108_032, 443_008),
    "resnet18-bare": (11_174_986, 547_356_672, 8_066_048),
    "resnet18-double-prelu": (11_178_826, 547_356_672, 8_066_048),
    "resnet18-double-maxout": (11_182_666, 547_356_672, 8_066_048),
    "resnet18-double-rprelu": (11_186_506, 547_356_672, 8_066_048),
    "vgg-small": (4_660_106, 603_979_776, 3_620_864),
    "react18": (11_185_482, 547_356_672, 8_066_048),
    "resnet18-imagenet": (11_690_536, 1_676_279_808, 137_793_536),
    "resnet18-double-imagenet": (11_690_536, 1_676_279_808, 137_793_536),
    "resnet18-binary-shortcut-imagenet": (11_690_536, 1_695_547_392, 118_525_952),
    "resnet18-relu-imagenet": (11_690_536, 1_676_279_808, 137_793_536),
    "resnet34-imagenet": (21_798_696, 3_525_967_872, 137_793_536),
    "resnet34-double-imagenet": (21_798_696, 3_525_967_872, 137_793_536),
    "bireal18-imagenet": (11_689_512, 1_676_279_808, 137_793_536),
    "react18-imagenet": (11_701_032, 1_676_279_808, 137_793_536),
    "resnet34-relu-imagenet": (21_797_672, 3_525_967_872, 137_793_536),
    "bireal34-imagenet": (21_797_672, 3_525_967_872, 137_793_536),
    "react-a-imagenet": (29_333_672, 4_816_896_000, 11_862_016),
    "resnet18-double-tiny": (11_280_136, 547_356_672, 16_027_648),
    "resnet18-relu-tiny": (11_280_136, 547_356_672, 16_027_648),
    "react18-tiny": (11_290_632, 547_356_672, 16_027_648),
}

# What the counts cannot tell apart, typed from the published networks: the classes of stem, first block's activation,
# shortcut and head, and the block. A dash stands for nothing.
BARE, ACTIVE = "Conv2d BatchNorm2d", "Conv2d BatchNorm2d Hardtanh"
OPTION_A, REAL, BINARY = "Subsample PadChannels", "Conv2d BatchNorm2d", "BinaryConv2d BatchNorm2d"
NORM = "BatchNorm1d Linear"
PARTS = {
    "resnet8-double": ("DoubleBlock", "Hardtanh", OPTION_A, ACTIVE, NORM),
    "resnet20": ("PlainBlock", "Hardtanh", OPTION_A, ACTIVE, NORM),
    "resnet20-double": ("DoubleBlock", "Hardtanh", OPTION_A, ACTIVE, NORM),
    "resnet20-relu": ("PlainBlock", "ReLU", OPTION_A, BARE, "BatchNorm1d ReLU Linear"),
    "resnet18": ("PlainBlock", "Hardtanh", REAL, BARE, NORM),
    "resnet18-double": ("DoubleBlock", "Hardtanh", REAL, BARE, NORM),
    "resnet18-binary-shortcut": ("PlainBlock", "Hardtanh", BINARY, BARE, NORM),
    "resnet18-pool-shortcut": ("PlainBlock", "Hardtanh", "AvgPool2d PadChannels", BARE, NORM),
    "resnet18-relu": ("PlainBlock", "ReLU", REAL, "Conv2d BatchNorm2d ReLU", NORM),
    "resnet34": ("PlainBlock", "Hardtanh", REAL, BARE, NORM),
    "resnet34-double": ("DoubleBlock", "Hardtanh", REAL, BARE, NORM),
    "resnet20-double-prelu": ("DoubleBlock", "PReLU", OPTION_A, "Conv2d BatchNorm2d ReLU", NORM),
    "resnet20-double-maxout": ("DoubleBlock", "Maxout", OPTION_A, "Conv2d BatchNorm2d Maxout", NORM),
    "resnet20-double-rprelu": ("DoubleBlock", "RPReLU", OPTION_A, "Conv2d BatchNorm2d RPReLU", NORM),
    "resnet20-double-pool": ("DoubleBlock", "Hardtanh", "AvgPool2d PadChannels", ACTIVE, NORM),
    "resnet20-double-pool-rprelu": (
        *("DoubleBlock", "RPReLU", "AvgPool2d PadChannels", "Conv2d BatchNorm2d RPReLU", NORM),
    ),
    "resnet20-double-bare": ("DoubleBlock", "Identity", OPTION_A, "Conv2d BatchNorm2d Identity", NORM),
    "resnet18-bare": ("PlainBlock", "Identity", REAL, BARE, NORM),
    "resnet18-double-prelu": ("DoubleBlock", "PReLU", REAL, BARE, NORM),
    "resnet18-double-maxout": ("DoubleBlock", "Maxout", REAL, BARE, NORM),
    "resnet18-double-rprelu": ("DoubleBlock", "RPReLU", REAL, BARE, NORM),
    "vgg-small": ("Sequential", "Hardtanh", "-", ACTIVE, "Linear"),
    "react18": ("SingleBlock", "RPReLU", f"AvgPool2d {REAL}", BARE, "Linear"),
    "resnet18-imagenet": ("PlainBlock", "Hardtanh", REAL, f"{ACTIVE} MaxPool2d", NORM),
    "resnet18-double-imagenet": ("DoubleBlock", "Hardtanh", REAL, f"{ACTIVE} MaxPool2d", NORM),
    "resnet18-binary-shortcut-imagenet": ("PlainBlock", "Hardtanh", BINARY, f"{ACTIVE} MaxPool2d", NORM),
    "resnet18-relu-imagenet": ("PlainBlock", "ReLU", REAL, "Conv2d BatchNorm2d ReLU MaxPool2d", NORM),
    "resnet34-imagenet": ("PlainBlock", "Hardtanh", REAL, f"{ACTIVE} MaxPool2d", NORM),
    "resnet34-double-imagenet": ("DoubleBlock", "Hardtanh", REAL, f"{ACTIVE} MaxPool2d", NORM),
    "bireal18-imagenet": ("SingleBlock", "Identity", f"AvgPool2d {REAL}", f"{BARE} MaxPool2d", "Linear"),
    "resnet34-relu-imagenet": ("PlainBlock", "ReLU", REAL, "Conv2d BatchNorm2d ReLU MaxPool2d", "Linear"),
    "bireal34-imagenet": ("SingleBlock", "Identity", f"AvgPool2d {REAL}", f"{BARE} MaxPool2d", "Linear"),
    "react-a-imagenet": ("MobileBlock", "RPReLU", "AvgPool2d", BARE, "Linear"),
    "react18-imagenet": ("SingleBlock", "RPReLU", f"AvgPool2d {REAL}", f"{BARE} MaxPool2d", "Linear"),
    "resnet18-double-tiny": ("DoubleBlock", "Hardtanh", REAL, f"{ACTIVE} MaxPool2d", NORM),
    "resnet18-relu-tiny": ("PlainBlock", "ReLU", REAL, "Conv2d BatchNorm2d ReLU MaxPool2d", NORM),
    "react18-tiny": ("SingleBlock", "RPReLU", f"AvgPool2d {REAL}", f"{BARE} MaxPool2d", "Linear"),
}


def kinds(module: nn.Module) -> str:
    parts = module if isinstance(module, nn.Sequential) else [module]
    return " ".join(type(m).__name__ for m in parts)


@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_the_parts_of_its_name(name: str) -> None:
    net = lcrbnn.network(name, "irnet")
    block = net.get_submodule("layer2.0")
    shortcut = kinds(block.shortcut) if hasattr(block, "shortcut") else "-"
    assert (type(block).__name__, kinds(block.act1), shortcut, kinds(net.stem), kinds(net.head)) == PARTS[name]


def test_weights_start_as_in_the_published_networks() -> None:
    thin = lcrbnn.network("resnet20", "irnet").get_submodule("layer3.1.conv1").weight  # kaiming: sqrt(2 / fan_in)
    assert thin.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.03)
    wide = lcrbnn.network("resnet18", "irnet").get_submodule("layer2.1.conv1").weight  # PyTorch's own: uniform
    assert wide.abs().max().item() == pytest.approx((1 / (128 * 9)) ** 0.5, rel=0.01)
    vgg = lcrbnn.network("vgg-small", "irnet")
    assert vgg.get_submodule("layer2.1.conv1").weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.03)
    assert vgg.head.weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert vgg.head.bias.abs().max() == 0


def test_a_methods_own_start_survives_that_of_the_network() -> None:
    weight = lcrbnn.network("resnet20", "bireal").get_submodule("layer1.0.conv1").weight
    assert 0 <= weight.min() < weight.max() < 0.001
    layer = lcrbnn.network("resnet20", "rbnn").get_submodule("layer3.1.conv1")
    # alpha keeps the mean magnitude of PyTorch's own start, uniform on +-1/sqrt(fan_in), as in the released code
    assert layer.weight_binarizer.alpha.mean().item() == pytest.approx(0.5 / (64 * 9) ** 0.5, rel=0.05)


def test_a_network_whose_only_activation_is_the_sign_gets_relu_where_activations_are_real() -> None:
    for settings in ({}, {"method": "irnet", "bits": "1/32"}):
        block = lcrbnn.network("bireal18-imagenet", **settings).get_submodule("layer1.0")
        assert isinstance(block.act1, nn.ReLU)


every_model = pytest.mark.parametrize("name", MODELS)
small_models = pytest.mark.parametrize("name", [n for n in MODELS if "imagenet" not in n])


def test_every_network_has_golden_numbers() -> None:
    assert set(GOLDEN) == set(MODELS)


@every_model
def test_parameters_and_operations_are_the_golden_numbers(name: str) -> None:
    row = MODELS[name]
    cost = count(lcrbnn.network(name, "irnet"), (3, row.image, row.image))
    assert (cost.parameters, cost.binary_macs, cost.real_macs) == GOLDEN[name]
    assert cost.mixed_macs == 0


def test_the_network_of_siman_has_the_parameters_of_its_release() -> None:
    """tests/golden/README.md names the release: 271,194 trained parameters, of which 672 are scales of SiMaN."""
    net = lcrbnn.network("resnet20-double-prelu", "siman")
    assert sum(p.numel() for p in net.parameters()) == 271_194
    shapes = [tuple(p.shape) for name, p in net.named_parameters() if name.startswith("stem.")]
    assert shapes == [(16, 3, 3, 3), (16,), (16,)]  # convolution, batch norm, and no slopes: the activation is a ReLU


def test_golden_numbers_follow_from_the_published_ones() -> None:
    # The usual ResNet-18 and -34 have 11,689,512 and 21,797,672 parameters; ours add 2 * 512 for the head's batch norm.
    assert GOLDEN["resnet18-imagenet"][0] == 11_689_512 + 1024
    assert GOLDEN["resnet34-imagenet"][0] == 21_797_672 + 1024
    # 1,814,073,344 multiply-accumulates for ResNet-18 at 224 pixels, whichever of them are binary.
    for name in ("resnet18-imagenet", "resnet18-binary-shortcut-imagenet", "bireal18-imagenet", "react18-imagenet"):
        assert sum(GOLDEN[name][1:]) == 1_814_073_344
    # With 64 pixels and a pool of stride 1 the stages see what CIFAR's see; the head has 800 classes fewer.
    for tiny, big in (("resnet18-double-tiny", "resnet18-double-imagenet"), ("react18-tiny", "react18-imagenet")):
        assert GOLDEN[big][0] - GOLDEN[tiny][0] == 800 * 513
        assert GOLDEN[tiny][1] == GOLDEN["resnet18"][1]
    shortcuts = GOLDEN["resnet18"][2] - 3 * 64 * 9 * 32**2 - 512 * 10
    assert GOLDEN["react18-tiny"][2] == 3 * 64 * 49 * 32**2 + shortcuts + 512 * 200
    # RPReLU has three numbers a channel: 4 blocks of each width.
    assert GOLDEN["react18-imagenet"][0] - GOLDEN["bireal18-imagenet"][0] == 3 * 4 * (64 + 128 + 256 + 512)
    thin = 6 * 16 * 16 * 9 + 16 * 32 * 9 + 5 * 32 * 32 * 9 + 32 * 64 * 9 + 5 * 64 * 64 * 9
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64 + 64)
    assert GOLDEN["resnet20"][0] == 3 * 16 * 9 + thin + norms + 64 * 10 + 10
    assert GOLDEN["vgg-small"][1] == 9 * (
        128 * 128 * 32**2 + 128 * 256 * 16**2 + 256 * 256 * 16**2 + 256 * 512 * 8**2 + 512 * 512 * 8**2
    )


@small_models
@pytest.mark.parametrize("method", [None, "irnet"])
def test_a_network_maps_images_to_logits_and_learns(name: str, method: str | None) -> None:
    row = MODELS[name]
    net = lcrbnn.network(name, method, classes=7)
    images = torch.randn(2, 3, row.image, row.image)
    logits = net(images)
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    maps = net.features(images)
    assert len(maps) == len(net.stages)


@small_models
def test_the_full_precision_twin_has_the_same_features_and_names(name: str) -> None:
    row = MODELS[name]
    binary, real = lcrbnn.network(name, "bnn"), lcrbnn.network(name)
    images = torch.randn(2, 3, row.image, row.image)
    assert [m.shape for m in binary.features(images)] == [m.shape for m in real.features(images)]
    assert (binary.blocks, binary.chain) == (real.blocks, real.chain)
    assert set(dict(real.named_parameters())) == set(dict(binary.named_parameters()))
    assert not list(binary_layers(real))


@every_model
def test_every_block_convolution_is_binary_and_nothing_else_is(name: str) -> None:
    net = lcrbnn.network(name, "bnn")
    for path, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            inside = path.startswith("layer") and ("shortcut" not in path or "binary-shortcut" in name)
            assert isinstance(module, BinaryConv2d) == inside, path


def test_the_places_of_a_network_are_in_forward_order() -> None:
    net = lcrbnn.network("resnet20-double", "irnet")
    assert net.stages == ("layer1", "layer2", "layer3")
    assert net.blocks[:2] == ("layer1.0", "layer1.1")
    assert len(net.blocks) == 9
    assert net.chain[:3] == ("layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1")
    assert net.chain[-2:] == ("layer3.2.conv2", "pool")
    assert len(net.chain) == 19
    assert lcrbnn.network("vgg-small", "irnet").chain == (
        "layer1.0.conv1", "layer2.0.conv1", "layer2.1.conv1", "layer3.0.conv1", "layer3.1.conv1", "pool",
    )  # fmt: skip


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_is_the_published_formula(kind: str) -> None:
    block = BLOCKS[kind](4, 8, 2, None, "hardtanh", "subsample").eval()
    x = torch.randn(2, 4, 6, 6)
    ht = torch.nn.functional.hardtanh
    skip = torch.zeros(2, 8, 3, 3)
    skip[:, 2:6] = x[:, :, ::2, ::2]  # planes // 4 zero channels on each side
    first = block.bn1(block.conv1(x))
    if kind == "plain":
        expected = ht(block.bn2(block.conv2(ht(first))) + skip)
    elif kind == "double":
        middle = ht(first + skip)
        expected = ht(block.bn2(block.conv2(middle)) + middle)
    else:
        expected = ht(first + skip)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(("cout", "stride"), [(4, 1), (8, 1), (8, 2)])
def test_a_mobile_block_is_the_published_formula(cout: int, stride: int) -> None:
    """Where channels double: two 1x1 convolutions behind one sign, a batch norm and the skip each, side by side."""
    block = MobileBlock(4, cout, stride, lcrbnn.method("reactnet")).eval()
    with torch.no_grad():
        for module in block.modules():
            if isinstance(module, BinaryConv2d):
                module.weight.normal_()
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_()
                module.weight.uniform_(0.5, 2)
    x = torch.randn(2, 4, 6, 6)
    y = block.act1(block.bn1(block.conv1(x)) + (x if stride == 1 else F.avg_pool2d(x, 2)))
    parts = []
    for rows in [slice(i, i + 4) for i in range(0, cout, 4)]:
        half = BinaryConv2d(4, 4, 1, method="reactnet")
        half.weight.data = block.conv2.weight[rows].data
        norm = block.bn2
        z = half(y)
        z = F.batch_norm(z, norm.running_mean[rows], norm.running_var[rows], norm.weight[rows], norm.bias[rows])
        parts.append(z + y)
    torch.testing.assert_close(block(x), block.act2(torch.cat(parts, 1)))


def test_react_a_has_the_published_size_and_cost() -> None:
    """Published: 29.3 M parameters, BOPs 4.82e9, FLOPs 0.12e8, OPs 0.87e8."""
    cost = count(lcrbnn.network("react-a-imagenet", "reactnet"), (3, 224, 224))
    assert f"{cost.parameters / 1e6:.1f}" == "29.3"
    assert f"{cost.bit_operations / 1e9:.2f}" == "4.82"
    assert f"{cost.real_macs / 1e8:.2f}" == "0.12"
    assert f"{cost.ops / 1e8:.2f}" == "0.87"


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((f"resnet20-double{activation}", "reactnet") for activation in ("", "-prelu", "-rprelu", "-maxout")),
        ("react18", "reactnet"),
        ("resnet20-double", "ie-net"),
    ],
)
def test_maps_stay_short_under_autocast(name: str, method: str) -> None:
    """A float32 parameter, added to a map of 16 bits or multiplied with it, would make all behind it 32 bits wide."""
    net, seen = lcrbnn.network(name, method, image=8), {}
    for place, module in net.named_modules():
        if place.count(".") == 1 and place.startswith("layer"):
            module.register_forward_hook(lambda _, inputs, y, at=place: seen.update({at: (inputs[0].dtype, y.dtype)}))
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(2, 3, 8, 8)).float().sum().backward()
    assert len(seen) >= 8
    assert {kind for both in seen.values() for kind in both} == {torch.bfloat16}
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in net.parameters())


def test_rprelu_shifts_slopes_and_shifts_again() -> None:
    act = RPReLU(1)
    act.front.data.fill_(-1.0)
    act.back.data.fill_(10.0)
    x = torch.tensor([0.0, 3.0]).reshape(1, 1, 1, 2)
    assert act(x).flatten().tolist() == [10 - 0.25, 12.0]


@pytest.mark.parametrize("activation", ["prelu", "maxout", "rprelu"])
@pytest.mark.parametrize("usual", ["resnet20-double", "resnet18-double"])
def test_another_activation_costs_what_the_tables_network_costs(usual: str, activation: str) -> None:
    """As many binary products; real ones and parameters at most 1.05 times as many. Golden numbers, counted above."""
    ours, theirs = GOLDEN[f"{usual}-{activation}"], GOLDEN[usual]
    assert ours[1] == theirs[1]
    assert ours[2] <= 1.05 * theirs[2]
    assert theirs[0] < ours[0] <= 1.05 * theirs[0]


def test_maxout_is_the_larger_of_two_lines() -> None:
    act = Maxout(2)
    assert torch.equal(
        act(torch.tensor([-4.0, 4.0]).reshape(1, 1, 1, 2)[:, [0, 0]])[0, 1, 0], torch.tensor([-1.0, 4.0])
    )
    act.above.data.copy_(torch.tensor([2.0, 0.5]))
    act.below.data.copy_(torch.tensor([-3.0, 0.1]))
    x = torch.randn(3, 2, 5, 5)
    lines = (x * slope[:, None, None] for slope in (act.above, act.below))
    assert torch.equal(act(x), torch.maximum(*lines))  # above >= below


def test_vgg_small_pools_between_convolution_and_batch_norm() -> None:
    block = lcrbnn.network("vgg-small", "irnet").get_submodule("layer1.0")
    assert [type(m).__name__ for m in block] == ["BinaryConv2d", "MaxPool2d", "BatchNorm2d", "Hardtanh"]


def test_odd_image_sizes_pass_every_shortcut() -> None:
    for name in ("resnet20", "resnet18", "resnet18-pool-shortcut", "react18"):
        assert lcrbnn.network(name, "irnet", image=35)(torch.randn(1, 3, 35, 35).repeat(2, 1, 1, 1)).shape == (2, 10)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: lcrbnn.network("resnet21"), "no network is called 'resnet21'; there are resnet8-double"),
        (
            lambda: lcrbnn.network("resnet20", "irnet", classes=0),
            "classes must be a whole number from 1 to 1000000; got 0",
        ),
        (lambda: lcrbnn.network("resnet20", "irnet", in_channels=0), "in_channels must be"),
        (lambda: lcrbnn.network("resnet20", "irnet", image=2), "image must be a whole number of at least 8"),
        (lambda: lcrbnn.network("resnet20", "irnet", bits="2/2"), "irnet has no bit width '2/2'"),
        (
            lambda: lcrbnn.network("resnet20", bits="1/32", t_min=1),
            "without a method there are no bits or options; got bits, t_min",
        ),
        (lambda: lcrbnn.network("resnet20", "irnet", typo=1), "no option of irnet is called 'typo'"),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(call: object, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        call()
