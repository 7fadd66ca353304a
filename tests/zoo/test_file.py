"""The small file: signs exactly, other numbers to 11 bits, the same bytes when it is written again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.data import DATASETS, load_digits
from lcrbnn.errors import InputError
from lcrbnn.export import export_model
from lcrbnn.export.refusal import refusal
from lcrbnn.layers import binary_layers
from lcrbnn.methods import METHODS
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.train import Spec
from lcrbnn.train.build import build_network
from lcrbnn.zoo.file import halved, read_small, write_small
from tests.export.nets import stirred
from tests.train.helpers import ROOT

HALF = 2.0**-11  # relative rounding of float16


def made(spec: Spec, path: Path) -> dict[str, torch.Tensor]:
    """Write a network with nothing at its trivial start; return its signs, scales and all other numbers."""
    net = build_network(spec)
    stirred(net, torch.from_numpy(load_digits()[0].images[:32]))
    net.eval()
    kept = {}
    for name, layer in binary_layers(net):
        w = layer.weight_binarizer(layer.weight)
        kept[f"{name}.weight"] = w.signs.detach()
        if w.scale is not None:
            kept[f"{name}.weight_binarizer.scale"] = w.scale.detach()
    plain = {name: t.clone() for name, t in net.state_dict().items() if "weight_binarizer" not in name}
    write_small(path, spec, net, "0" * 64)
    return plain | kept


NOT_TWO = {"sq-twn": "three levels", "adabin": "not opposite"}


@pytest.mark.parametrize(("method", "why"), NOT_TWO.items())
def test_weights_of_more_than_one_bit_are_refused(method: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"of layer 'layer1\.0\.conv1' cannot be kept as one bit: .*" + why):
        made(Spec(method=method), tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", [name for name in (*METHODS, "real") if name not in NOT_TWO])
def test_a_file_holds_the_signs_and_scales_of_any_method(method: str, tmp_path: Path) -> None:
    spec = Spec(method=method)
    wanted = made(spec, tmp_path / "a.safetensors")
    small = read_small(tmp_path / "a.safetensors")
    assert (small.spec, small.checkpoint, small.model.training) == (spec, "0" * 64, False)
    found = small.model.state_dict()
    signs = {f"{name}.weight" for name, _ in binary_layers(small.model)}
    assert set(found) == set(wanted)
    for name, value in found.items():
        if name in signs:
            assert torch.equal(torch.where(value < 0, -1.0, 1.0), wanted[name])
            assert value.abs().unique().numel() == 1
        elif value.is_floating_point():
            torch.testing.assert_close(value, wanted[name], rtol=HALF, atol=1e-7)
    write_small(tmp_path / "b.safetensors", small.spec, small.model, small.checkpoint)
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "a.safetensors").read_bytes()
    if method == "real" or not refusal(METHODS[method]):
        export_model(small.model, DATASETS["digits"], "again")


@pytest.mark.parametrize("regularizer", ["none", "spectral", "spectral-signs"])
def test_the_network_of_a_file_answers_as_the_one_that_was_written(regularizer: str, tmp_path: Path) -> None:
    """bnn's signs have no scale, so that only roundings of real numbers can tell the two apart.

    A norm that its weights were divided by is part of what is kept, and divides nothing a second time.
    """
    torch.manual_seed(0)
    spec = Spec(method="bnn", regularizer=regularizer)
    net = build_network(spec)
    images = torch.from_numpy(load_digits()[1].images[:100])
    stirred(net, images)
    with torch.no_grad():
        before = net(images).argmax(1)
        write_small(tmp_path / "a.safetensors", spec, net, "")
        after = read_small(tmp_path / "a.safetensors").model(images).argmax(1)
    assert (before == after).float().mean() > 0.9


@pytest.mark.parametrize(
    ("numbers", "exponent"),
    [([0.25, -3.0, 0.0], 0), ([0.0, 0.0], 0), ([1e6, -2.0], 5), ([3e-8, 1e-7], -38), ([], 0)],
)
def test_halves_have_an_exponent_where_float16_has_not_the_range(numbers: list[float], exponent: int) -> None:
    array = np.array(numbers, np.float32)
    half, found = halved(array)
    assert half.dtype == np.float16
    assert found == exponent
    np.testing.assert_allclose(np.ldexp(half.astype(np.float32), found), array, rtol=HALF)


def small_size(data: str, model: str, folder: Path) -> int:
    spec = Spec(data=data, model=model)
    write_small(folder / "a.safetensors", spec, build_network(spec), "")
    return (folder / "a.safetensors").stat().st_size


@pytest.mark.parametrize(("model", "most"), [("resnet20-double-maxout", 60_000), ("resnet18-double", 2_200_000)])
def test_a_file_is_as_small_as_promised(model: str, most: int, tmp_path: Path) -> None:
    assert small_size("cifar10", model, tmp_path) < most


def test_the_sizes_of_resnet_18_are_those_of_the_page(tmp_path: Path) -> None:
    names = {"cifar10": "", "tiny-imagenet": "-tiny", "imagenet": "-imagenet"}
    sizes = [small_size(data, f"resnet18-double{end}", tmp_path) / 1e6 for data, end in names.items()]
    said = "{:.1f} MB for ResNet-18 (with the 200 classes of Tiny-ImageNet {:.1f}, with ImageNet's 1,000 {:.1f})"
    assert said.format(*sizes) in (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")


def test_a_file_that_is_none_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    made(Spec(), path)
    arrays, facts = read_checkpoint(path)
    damaged = bytearray(path.read_bytes())
    damaged[-100] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="is damaged"):
        read_small(path)
    cases = [
        (arrays | {"more": arrays["bits"]}, facts, "holds a checkpoint, and no network of one bit a weight"),
        (arrays | {"bits": arrays["bits"][:-1]}, facts, "does not describe its own tensors: they take"),
        (arrays, facts | {"tensors": {"bits": {}}}, "does not describe its own tensors"),
        (arrays, facts | {"spec": Spec(model="resnet20").stored()}, "does not describe|is of another network"),
    ]
    for changed, said, sentence in cases:
        write_checkpoint(path, Checkpoint(changed, said))
        with pytest.raises(InputError, match=sentence):
            read_small(path)
