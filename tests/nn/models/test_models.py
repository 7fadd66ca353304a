from __future__ import annotations

import pytest
import torch
from torch import nn

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.cost import count_cost
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.nn.models.model_registry import MODELS

# name: (parameters, binary MACs, real MACs) with irnet 1/1, counted by hand from the published shapes.
# ResNet-20: stem 3*16*9; stages 6*(16*16*9), 16*32*9 + 5*(32*32*9), 32*64*9 + 5*(64*64*9); batch norms; 64*10 + 10.
EXPECTED_COUNTS = {
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

# Classes of the published networks: block, activation of the first block, shortcut, stem and head. "-" means none.
# These are properties that the counts do not determine.
STEM, STEM_WITH_HARDTANH = "Conv2d BatchNorm2d", "Conv2d BatchNorm2d Hardtanh"
OPTION_A, REAL_CONV, BINARY_CONV = "Subsample PadChannels", "Conv2d BatchNorm2d", "BinaryConv2d BatchNorm2d"
NORM_HEAD = "BatchNorm1d Linear"
PARTS = {
    "resnet8-double": ("DoubleBlock", "Hardtanh", OPTION_A, STEM_WITH_HARDTANH, NORM_HEAD),
    "resnet20": ("PlainBlock", "Hardtanh", OPTION_A, STEM_WITH_HARDTANH, NORM_HEAD),
    "resnet20-double": ("DoubleBlock", "Hardtanh", OPTION_A, STEM_WITH_HARDTANH, NORM_HEAD),
    "resnet20-relu": ("PlainBlock", "ReLU", OPTION_A, STEM, "BatchNorm1d ReLU Linear"),
    "resnet18": ("PlainBlock", "Hardtanh", REAL_CONV, STEM, NORM_HEAD),
    "resnet18-double": ("DoubleBlock", "Hardtanh", REAL_CONV, STEM, NORM_HEAD),
    "resnet18-binary-shortcut": ("PlainBlock", "Hardtanh", BINARY_CONV, STEM, NORM_HEAD),
    "resnet18-pool-shortcut": ("PlainBlock", "Hardtanh", "AvgPool2d PadChannels", STEM, NORM_HEAD),
    "resnet18-relu": ("PlainBlock", "ReLU", REAL_CONV, "Conv2d BatchNorm2d ReLU", NORM_HEAD),
    "resnet34": ("PlainBlock", "Hardtanh", REAL_CONV, STEM, NORM_HEAD),
    "resnet34-double": ("DoubleBlock", "Hardtanh", REAL_CONV, STEM, NORM_HEAD),
    "resnet20-double-prelu": ("DoubleBlock", "PReLU", OPTION_A, "Conv2d BatchNorm2d ReLU", NORM_HEAD),
    "resnet20-double-maxout": ("DoubleBlock", "Maxout", OPTION_A, "Conv2d BatchNorm2d Maxout", NORM_HEAD),
    "resnet20-double-rprelu": ("DoubleBlock", "RPReLU", OPTION_A, "Conv2d BatchNorm2d RPReLU", NORM_HEAD),
    "resnet20-double-pool": ("DoubleBlock", "Hardtanh", "AvgPool2d PadChannels", STEM_WITH_HARDTANH, NORM_HEAD),
    "resnet20-double-pool-rprelu": (
        *("DoubleBlock", "RPReLU", "AvgPool2d PadChannels", "Conv2d BatchNorm2d RPReLU", NORM_HEAD),
    ),
    "resnet20-double-bare": ("DoubleBlock", "Identity", OPTION_A, "Conv2d BatchNorm2d Identity", NORM_HEAD),
    "resnet18-bare": ("PlainBlock", "Identity", REAL_CONV, STEM, NORM_HEAD),
    "resnet18-double-prelu": ("DoubleBlock", "PReLU", REAL_CONV, STEM, NORM_HEAD),
    "resnet18-double-maxout": ("DoubleBlock", "Maxout", REAL_CONV, STEM, NORM_HEAD),
    "resnet18-double-rprelu": ("DoubleBlock", "RPReLU", REAL_CONV, STEM, NORM_HEAD),
    "vgg-small": ("Sequential", "Hardtanh", "-", STEM_WITH_HARDTANH, "Linear"),
    "react18": ("SingleBlock", "RPReLU", f"AvgPool2d {REAL_CONV}", STEM, "Linear"),
    "resnet18-imagenet": ("PlainBlock", "Hardtanh", REAL_CONV, f"{STEM_WITH_HARDTANH} MaxPool2d", NORM_HEAD),
    "resnet18-double-imagenet": ("DoubleBlock", "Hardtanh", REAL_CONV, f"{STEM_WITH_HARDTANH} MaxPool2d", NORM_HEAD),
    "resnet18-binary-shortcut-imagenet": (
        "PlainBlock",
        "Hardtanh",
        BINARY_CONV,
        f"{STEM_WITH_HARDTANH} MaxPool2d",
        NORM_HEAD,
    ),
    "resnet18-relu-imagenet": ("PlainBlock", "ReLU", REAL_CONV, "Conv2d BatchNorm2d ReLU MaxPool2d", NORM_HEAD),
    "resnet34-imagenet": ("PlainBlock", "Hardtanh", REAL_CONV, f"{STEM_WITH_HARDTANH} MaxPool2d", NORM_HEAD),
    "resnet34-double-imagenet": ("DoubleBlock", "Hardtanh", REAL_CONV, f"{STEM_WITH_HARDTANH} MaxPool2d", NORM_HEAD),
    "bireal18-imagenet": ("SingleBlock", "Identity", f"AvgPool2d {REAL_CONV}", f"{STEM} MaxPool2d", "Linear"),
    "resnet34-relu-imagenet": ("PlainBlock", "ReLU", REAL_CONV, "Conv2d BatchNorm2d ReLU MaxPool2d", "Linear"),
    "bireal34-imagenet": ("SingleBlock", "Identity", f"AvgPool2d {REAL_CONV}", f"{STEM} MaxPool2d", "Linear"),
    "react-a-imagenet": ("MobileBlock", "RPReLU", "AvgPool2d", STEM, "Linear"),
    "react18-imagenet": ("SingleBlock", "RPReLU", f"AvgPool2d {REAL_CONV}", f"{STEM} MaxPool2d", "Linear"),
    "resnet18-double-tiny": ("DoubleBlock", "Hardtanh", REAL_CONV, f"{STEM_WITH_HARDTANH} MaxPool2d", NORM_HEAD),
    "resnet18-relu-tiny": ("PlainBlock", "ReLU", REAL_CONV, "Conv2d BatchNorm2d ReLU MaxPool2d", NORM_HEAD),
    "react18-tiny": ("SingleBlock", "RPReLU", f"AvgPool2d {REAL_CONV}", f"{STEM} MaxPool2d", "Linear"),
}


def list_class_names(module: nn.Module) -> str:
    parts = module if isinstance(module, nn.Sequential) else [module]
    return " ".join(type(m).__name__ for m in parts)


@pytest.mark.parametrize("name", MODELS)
def test_a_network_has_the_published_parts(name: str) -> None:
    net = lcrbnn.create_model(name, "irnet")
    block = net.get_submodule("layer2.0")
    shortcut = list_class_names(block.shortcut) if hasattr(block, "shortcut") else "-"
    assert (
        type(block).__name__,
        list_class_names(block.act1),
        shortcut,
        list_class_names(net.stem),
        list_class_names(net.head),
    ) == PARTS[name]


def test_initial_weights_are_distributed_as_published() -> None:
    resnet20_weight = (
        lcrbnn.create_model("resnet20", "irnet").get_submodule("layer3.1.conv1").weight
    )  # kaiming: sqrt(2 / fan_in)
    assert resnet20_weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.03)
    resnet18_weight = (
        lcrbnn.create_model("resnet18", "irnet").get_submodule("layer2.1.conv1").weight
    )  # PyTorch's own: uniform
    assert resnet18_weight.abs().max().item() == pytest.approx((1 / (128 * 9)) ** 0.5, rel=0.01)
    vgg = lcrbnn.create_model("vgg-small", "irnet")
    assert vgg.get_submodule("layer2.1.conv1").weight.std().item() == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.03)
    assert vgg.head.weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert vgg.head.bias.abs().max() == 0


def test_the_initialization_of_a_method_overrides_that_of_the_network() -> None:
    weight = lcrbnn.create_model("resnet20", "bireal").get_submodule("layer1.0.conv1").weight
    assert 0 <= weight.min() < weight.max() < 0.001
    layer = lcrbnn.create_model("resnet20", "rbnn").get_submodule("layer3.1.conv1")
    # As in the released code, alpha is the mean magnitude of PyTorch's default weights, uniform on +-1/sqrt(fan_in).
    assert layer.weight_binarizer.alpha.mean().item() == pytest.approx(0.5 / (64 * 9) ** 0.5, rel=0.05)


def test_bireal_networks_use_relu_with_real_activations() -> None:
    for settings in ({}, {"method": "irnet", "bits": "1/32"}):
        block = lcrbnn.create_model("bireal18-imagenet", **settings).get_submodule("layer1.0")
        assert isinstance(block.act1, nn.ReLU)


every_model = pytest.mark.parametrize("name", MODELS)
small_models = pytest.mark.parametrize("name", [n for n in MODELS if "imagenet" not in n])


def test_every_network_has_expected_counts() -> None:
    assert set(EXPECTED_COUNTS) == set(MODELS)


@every_model
def test_parameters_and_operations_equal_the_expected_counts(name: str) -> None:
    row = MODELS[name]
    cost = count_cost(lcrbnn.create_model(name, "irnet"), (3, row.image_size, row.image_size))
    assert (cost.parameters, cost.binary_macs, cost.real_macs) == EXPECTED_COUNTS[name]
    assert cost.mixed_macs == 0


def test_the_siman_network_has_as_many_parameters_as_its_release() -> None:
    """tests/golden/README.md names the release: 271,194 trained parameters, of which 672 are scales of SiMaN."""
    net = lcrbnn.create_model("resnet20-double-prelu", "siman")
    assert sum(p.numel() for p in net.parameters()) == 271_194
    shapes = [tuple(p.shape) for name, p in net.named_parameters() if name.startswith("stem.")]
    assert shapes == [(16, 3, 3, 3), (16,), (16,)]  # convolution and batch norm; ReLU has no parameters


def test_expected_counts_follow_from_published_numbers() -> None:
    # The standard ResNet-18 and -34 have 11,689,512 and 21,797,672 parameters. Ours add 2 * 512 for the batch norm of
    # the head.
    assert EXPECTED_COUNTS["resnet18-imagenet"][0] == 11_689_512 + 1024
    assert EXPECTED_COUNTS["resnet34-imagenet"][0] == 21_797_672 + 1024
    # ResNet-18 has 1,814,073,344 multiply-accumulates at 224x224, binary and real ones together.
    for name in ("resnet18-imagenet", "resnet18-binary-shortcut-imagenet", "bireal18-imagenet", "react18-imagenet"):
        assert sum(EXPECTED_COUNTS[name][1:]) == 1_814_073_344
    # For 64x64 images and a pool of stride 1, the stages have the shapes of CIFAR. The head has 800 classes fewer.
    for tiny, big in (("resnet18-double-tiny", "resnet18-double-imagenet"), ("react18-tiny", "react18-imagenet")):
        assert EXPECTED_COUNTS[big][0] - EXPECTED_COUNTS[tiny][0] == 800 * 513
        assert EXPECTED_COUNTS[tiny][1] == EXPECTED_COUNTS["resnet18"][1]
    shortcuts = EXPECTED_COUNTS["resnet18"][2] - 3 * 64 * 9 * 32**2 - 512 * 10
    assert EXPECTED_COUNTS["react18-tiny"][2] == 3 * 64 * 49 * 32**2 + shortcuts + 512 * 200
    # RPReLU has three parameters per channel, and there are 4 blocks of each width.
    assert EXPECTED_COUNTS["react18-imagenet"][0] - EXPECTED_COUNTS["bireal18-imagenet"][0] == 3 * 4 * (
        64 + 128 + 256 + 512
    )
    thin = 6 * 16 * 16 * 9 + 16 * 32 * 9 + 5 * 32 * 32 * 9 + 32 * 64 * 9 + 5 * 64 * 64 * 9
    norms = 2 * (16 + 6 * 16 + 6 * 32 + 6 * 64 + 64)
    assert EXPECTED_COUNTS["resnet20"][0] == 3 * 16 * 9 + thin + norms + 64 * 10 + 10
    assert EXPECTED_COUNTS["vgg-small"][1] == 9 * (
        128 * 128 * 32**2 + 128 * 256 * 16**2 + 256 * 256 * 16**2 + 256 * 512 * 8**2 + 512 * 512 * 8**2
    )


@small_models
@pytest.mark.parametrize("method", [None, "irnet"])
def test_a_network_returns_logits_and_all_parameters_have_gradients(name: str, method: str | None) -> None:
    row = MODELS[name]
    net = lcrbnn.create_model(name, method, num_classes=7)
    images = torch.randn(2, 3, row.image_size, row.image_size)
    logits = net(images)
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in net.parameters())
    stage_outputs = net.extract_stage_outputs(images)
    assert len(stage_outputs) == len(net.stage_names)


@small_models
def test_the_full_precision_network_has_the_same_shapes_and_names(name: str) -> None:
    row = MODELS[name]
    binary, real = lcrbnn.create_model(name, "bnn"), lcrbnn.create_model(name)
    images = torch.randn(2, 3, row.image_size, row.image_size)
    assert [m.shape for m in binary.extract_stage_outputs(images)] == [
        m.shape for m in real.extract_stage_outputs(images)
    ]
    assert (binary.block_names, binary.main_path) == (real.block_names, real.main_path)
    assert set(dict(real.named_parameters())) == set(dict(binary.named_parameters()))
    assert not list(iter_binary_layers(real))


@every_model
def test_only_block_convolutions_are_binary(name: str) -> None:
    net = lcrbnn.create_model(name, "bnn")
    for path, module in net.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            is_block_convolution = path.startswith("layer") and ("shortcut" not in path or "binary-shortcut" in name)
            assert isinstance(module, BinaryConv2d) == is_block_convolution, path


def test_module_names_of_a_network_are_in_forward_order() -> None:
    net = lcrbnn.create_model("resnet20-double", "irnet")
    assert net.stage_names == ("layer1", "layer2", "layer3")
    assert net.block_names[:2] == ("layer1.0", "layer1.1")
    assert len(net.block_names) == 9
    assert net.main_path[:3] == ("layer1.0.conv1", "layer1.0.conv2", "layer1.1.conv1")
    assert net.main_path[-2:] == ("layer3.2.conv2", "pool")
    assert len(net.main_path) == 19
    assert lcrbnn.create_model("vgg-small", "irnet").main_path == (
        "layer1.0.conv1", "layer2.0.conv1", "layer2.1.conv1", "layer3.0.conv1", "layer3.1.conv1", "pool",
    )  # fmt: skip


def test_react_a_has_the_published_size_and_cost() -> None:
    """Published: 29.3 M parameters, BOPs 4.82e9, FLOPs 0.12e8, OPs 0.87e8."""
    cost = count_cost(lcrbnn.create_model("react-a-imagenet", "reactnet"), (3, 224, 224))
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
def test_activations_stay_bfloat16_under_autocast(name: str, method: str) -> None:
    """A float32 parameter that is added or multiplied must not promote the following activations to float32."""
    net, dtypes = lcrbnn.create_model(name, method, image_size=8), {}
    for name_of_module, module in net.named_modules():
        if name_of_module.count(".") == 1 and name_of_module.startswith("layer"):
            module.register_forward_hook(
                lambda _, inputs, y, at=name_of_module: dtypes.update({at: (inputs[0].dtype, y.dtype)})
            )
    with torch.autocast("cpu", torch.bfloat16):
        net(torch.randn(2, 3, 8, 8)).float().sum().backward()
    assert len(dtypes) >= 8
    assert {kind for pair in dtypes.values() for kind in pair} == {torch.bfloat16}
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in net.parameters())


@pytest.mark.parametrize("activation", ["prelu", "maxout", "rprelu"])
@pytest.mark.parametrize("base_name", ["resnet20-double", "resnet18-double"])
def test_another_activation_costs_at_most_5_percent_more(base_name: str, activation: str) -> None:
    """The number of binary operations is equal. Real operations and parameters are at most 1.05 times as many."""
    counts, base_counts = EXPECTED_COUNTS[f"{base_name}-{activation}"], EXPECTED_COUNTS[base_name]
    assert counts[1] == base_counts[1]
    assert counts[2] <= 1.05 * base_counts[2]
    assert base_counts[0] < counts[0] <= 1.05 * base_counts[0]


def test_vgg_small_pools_between_convolution_and_batch_norm() -> None:
    block = lcrbnn.create_model("vgg-small", "irnet").get_submodule("layer1.0")
    assert [type(m).__name__ for m in block] == ["BinaryConv2d", "MaxPool2d", "BatchNorm2d", "Hardtanh"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lcrbnn.create_model("resnet21"), "no network is called 'resnet21'"),
        (
            lambda: lcrbnn.create_model("resnet20", "irnet", num_classes=0),
            "num_classes must be a whole number from 1 to 1000000; got 0",
        ),
        (lambda: lcrbnn.create_model("resnet20", "irnet", in_channels=0), "in_channels must be"),
        (
            lambda: lcrbnn.create_model("resnet20", "irnet", image_size=2),
            "image_size must be a whole number of at least 8",
        ),
        (lambda: lcrbnn.create_model("resnet20", "irnet", bits="2/2"), "irnet has no bit width '2/2'"),
        (
            lambda: lcrbnn.create_model("resnet20", bits="1/32", t_min=1),
            "bits and options require a method; got bits, t_min",
        ),
        (lambda: lcrbnn.create_model("resnet20", "irnet", typo=1), "no option of irnet is called 'typo'"),
    ],
)
def test_invalid_arguments_raise_an_input_error(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
