"""Zoo files keep signs exactly and other numbers with 11 bits; writing a file again gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import load_digits
from lcrbnn.deploy.export.export_model import explain_unexportable_method, export_model
from lcrbnn.errors import InputError
from lcrbnn.nn.methods.method_registry import METHODS
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.zoo.zoo_file import read_zoo_file, to_float16, write_zoo_file
from tests.deploy.export.random_networks import randomize_parameters
from tests.train.helpers import ROOT

FLOAT16_ROUNDING = 2.0**-11  # largest relative rounding error of float16


def write_trained_network(spec: TrainSpec, path: Path) -> dict[str, torch.Tensor]:
    """Write a network with non-trivial parameters; return its signs, scales and all other numbers."""
    net = build_network(spec)
    randomize_parameters(net, torch.from_numpy(load_digits()[0].images[:32]))
    net.eval()
    stored = {}
    for name, layer in iter_binary_layers(net):
        w = layer.weight_binarizer(layer.weight)
        stored[f"{name}.weight"] = w.signs.detach()
        if w.scale is not None:
            stored[f"{name}.weight_binarizer.scale"] = w.scale.detach()
    unchanged = {name: t.clone() for name, t in net.state_dict().items() if "weight_binarizer" not in name}
    write_zoo_file(path, spec, net, "0" * 64)
    return unchanged | stored


# Weights with several signs or unequal levels.
MULTI_LEVEL_SPECS = {
    "sq-twn": TrainSpec(method="sq-twn"),
    "adabin": TrainSpec(method="adabin"),
    "abc-net": TrainSpec(method="abc-net", method_options=("weight_bases=3", "activation_bases=2")),
}


def read_weight_values(net: torch.nn.Module) -> list[torch.Tensor]:
    """Return the weight of each binary layer as real numbers: the sum over bases of scale * signs, plus the offset."""
    weights = []
    for _, layer in iter_binary_layers(net):
        values = torch.zeros_like(layer.weight)
        for base in layer.binarize_weight().split_bases():
            for factor, signs in ((base.scale, base.signs), (base.offset, torch.ones_like(base.signs))):
                if factor is not None:
                    values = values + factor.detach().reshape(-1, *[1] * (signs.dim() - 1)) * signs.detach()
        weights.append(values)
    return weights


@pytest.mark.parametrize("name", MULTI_LEVEL_SPECS)
def test_weights_with_several_levels_are_stored_with_one_bit_per_base(name: str, tmp_path: Path) -> None:
    spec = MULTI_LEVEL_SPECS[name]
    net = build_network(spec)
    randomize_parameters(net, torch.from_numpy(load_digits()[0].images[:32]))
    net.eval()
    expected = read_weight_values(net)
    write_zoo_file(tmp_path / "a.safetensors", spec, net, "0" * 64)
    stored = read_weight_values(read_zoo_file(tmp_path / "a.safetensors").model)
    for values, expected_values in zip(stored, expected, strict=True):
        tolerance = 3 * FLOAT16_ROUNDING * float(expected_values.abs().max())
        torch.testing.assert_close(values, expected_values, rtol=0, atol=tolerance)
    num_weights = sum(values.numel() for values in expected)
    num_planes = {"sq-twn": 2, "adabin": 1, "abc-net": 3}[name]
    arrays, _ = read_checkpoint(tmp_path / "a.safetensors")
    assert len(arrays["bits"]) == num_planes * num_weights // 8


def test_real_weights_are_rejected(tmp_path: Path) -> None:
    spec = TrainSpec(method="reactnet", bits="32/1")
    with pytest.raises(InputError, match=r"of layer 'layer1\.0\.conv1' cannot be stored .* its weights are real"):
        write_trained_network(spec, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", [name for name in (*METHODS, "real") if name not in MULTI_LEVEL_SPECS])
def test_a_file_contains_the_signs_and_scales_of_any_method(method: str, tmp_path: Path) -> None:
    spec = TrainSpec(method=method)
    expected = write_trained_network(spec, tmp_path / "a.safetensors")
    network = read_zoo_file(tmp_path / "a.safetensors")
    assert (network.spec, network.checkpoint_sha256, network.model.training) == (spec, "0" * 64, False)
    state = network.model.state_dict()
    sign_names = {f"{name}.weight" for name, _ in iter_binary_layers(network.model)}
    assert set(state) == set(expected)
    for name, value in state.items():
        if name in sign_names:
            assert torch.equal(torch.where(value < 0, -1.0, 1.0), expected[name])
            assert value.abs().unique().numel() == 1
        elif value.is_floating_point():
            torch.testing.assert_close(value, expected[name], rtol=FLOAT16_ROUNDING, atol=1e-7)
    write_zoo_file(tmp_path / "b.safetensors", network.spec, network.model, network.checkpoint_sha256)
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()
    if method == "real" or not explain_unexportable_method(METHODS[method]):
        export_model(network.model, DATASETS["digits"], "again")


@pytest.mark.parametrize("regularizer", ["none", "spectral-norm-latent", "spectral-norm-binary"])
def test_the_network_of_a_file_predicts_as_the_written_one(regularizer: str, tmp_path: Path) -> None:
    """The signs of bnn have no scale, so only rounding errors of real numbers can change predictions.

    The spectral norm that divides the weights is stored in the file and must not be applied a second time.
    """
    torch.manual_seed(0)
    spec = TrainSpec(method="bnn", regularizer=regularizer)
    net = build_network(spec)
    images = torch.from_numpy(load_digits()[1].images[:100])
    randomize_parameters(net, images)
    with torch.no_grad():
        predictions_before = net(images).argmax(1)
        write_zoo_file(tmp_path / "a.safetensors", spec, net, "")
        predictions_after = read_zoo_file(tmp_path / "a.safetensors").model(images).argmax(1)
    assert (predictions_before == predictions_after).float().mean() > 0.9


@pytest.mark.parametrize(
    ("numbers", "exponent"),
    [([0.25, -3.0, 0.0], 0), ([0.0, 0.0], 0), ([1e6, -2.0], 5), ([3e-8, 1e-7], -38), ([], 0)],
)
def test_float16_numbers_have_an_exponent_outside_the_range_of_float16(numbers: list[float], exponent: int) -> None:
    array = np.array(numbers, np.float32)
    halves, stored_exponent = to_float16(array)
    assert halves.dtype == np.float16
    assert stored_exponent == exponent
    np.testing.assert_allclose(np.ldexp(halves.astype(np.float32), stored_exponent), array, rtol=FLOAT16_ROUNDING)


def zoo_file_size(data: str, model: str, folder: Path) -> int:
    spec = TrainSpec(dataset=data, model=model)
    write_zoo_file(folder / "a.safetensors", spec, build_network(spec), "")
    return (folder / "a.safetensors").stat().st_size


@pytest.mark.parametrize(("model", "max_bytes"), [("resnet20-double-maxout", 60_000), ("resnet18-double", 2_200_000)])
def test_a_file_has_at_most_the_expected_size(model: str, max_bytes: int, tmp_path: Path) -> None:
    assert zoo_file_size("cifar10", model, tmp_path) < max_bytes


def test_the_document_has_the_sizes_of_resnet_18(tmp_path: Path) -> None:
    names = {"cifar10": "", "tiny-imagenet": "-tiny", "imagenet": "-imagenet"}
    sizes = [zoo_file_size(data, f"resnet18-double{suffix}", tmp_path) / 1e6 for data, suffix in names.items()]
    sentence = (
        "file of ResNet-18 has {:.1f} MB ({:.1f} MB with the 200 classes of Tiny-ImageNet, "
        "{:.1f} MB with the 1,000 classes of ImageNet)"
    )
    assert sentence.format(*sizes) in " ".join((ROOT / "docs" / "zoo.md").read_text(encoding="utf-8").split())


def test_invalid_zoo_files_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_trained_network(TrainSpec(), path)
    arrays, metadata = read_checkpoint(path)
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="is damaged"):
        read_zoo_file(path)
    cases = [
        (arrays | {"more": arrays["bits"]}, metadata, "is a checkpoint, not a zoo file"),
        (arrays | {"bits": arrays["bits"][:-1]}, metadata, "has a wrong description of its tensors: its tensors need"),
        (arrays, metadata | {"tensors": {"bits": {}}}, "has a wrong description of its tensors"),
        (
            arrays,
            metadata | {"spec": TrainSpec(model="resnet20").to_dict()},
            "has a wrong description|belongs to another network",
        ),
    ]
    for changed_arrays, changed_metadata, message in cases:
        write_checkpoint(path, Checkpoint(changed_arrays, changed_metadata))
        with pytest.raises(InputError, match=message):
            read_zoo_file(path)
