from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lcrbnn
from lcrbnn.analyze.flips import flip_rates, layer_signs
from lcrbnn.analyze.ratios import likeness, retention_ratios
from lcrbnn.analyze.sensitivity import sensitivity
from lcrbnn.cli import main
from lcrbnn.data.digits import TOP, read_digits
from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.study.groups import find_groups
from lcrbnn.train import Spec
from lcrbnn.train.build import load_network
from tests.runs.helpers import write_without_digest
from tests.train.helpers import small_run


def test_a_linear_network_is_equally_sensitive_everywhere() -> None:
    pixels = torch.rand(6, 1, 4, 4)
    found = sensitivity(lambda x: 3 * x.flatten(1), pixels)
    for described in (*found["radii"].values(), found["pairs"]):
        assert list(described.values()) == pytest.approx([3] * 5, rel=1e-3)
    assert list(found["over_pairs"].values()) == pytest.approx([1] * 4, rel=1e-3)


def test_a_sign_has_no_lipschitz_constant() -> None:
    # On the edge every step turns signs over: ten times nearer is ten times as steep, without end.
    found = sensitivity(lambda x: lcrbnn.ops.sign(x - 0.5).flatten(1), torch.full((4, 1, 4, 4), 0.5))
    means = [described["mean"] for described in found["radii"].values()]
    assert means[0] / means[1] == pytest.approx(10, rel=0.05)
    assert means[1] / means[2] == pytest.approx(10, rel=0.05)


def test_middle_and_largest_ratio_of_image_pairs_by_hand() -> None:
    # images 0, 1, 3 and 6 in one pixel, squared: the pairs have ratios 1, 3, 4, 6, 7 and 9
    pixels = torch.tensor([0.0, 1.0, 3.0, 6.0]).reshape(4, 1, 1, 1)
    found = sensitivity(lambda x: x.flatten(1).square(), pixels)["pairs"]
    assert list(found.values()) == pytest.approx([5, 5, 8, 8.9, 9], rel=1e-6)


def test_directions_belong_to_an_image_not_to_a_batch() -> None:
    pixels = torch.rand(6, 1, 4, 4)

    def shown(images: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        sensitivity(lambda x: seen.append(x[:2]) or x.flatten(1), images)
        return torch.stack(seen)

    few, many = shown(pixels[:2]), shown(pixels)
    assert torch.equal(few, many)
    assert len(few.flatten(1).unique(dim=0)) == 1 + 4 * 2  # clean, four radii, two draws
    moved = (few[1:] - few[0]).flatten(2).norm(dim=2)
    assert not torch.allclose(few[4, 0] - few[0, 0], few[4, 1] - few[0, 1], atol=0.01)
    assert moved[0].tolist() == pytest.approx([0.01, 0.01], rel=1e-3)
    assert moved[3].tolist() == pytest.approx([4, 4], rel=1e-3)


def net() -> lcrbnn.models.Network:
    torch.manual_seed(1)
    return lcrbnn.network("resnet8-double", "irnet", in_channels=1, image=8)


def test_signs_that_turn_over_are_counted_by_hand() -> None:
    model = net()
    clean, noisy = torch.randn(2, 5, 1, 8, 8).unbind()
    before, after = layer_signs(model, clean), layer_signs(model, noisy)
    assert list(before) == [f"layer{i}.0.conv{j}" for i in (1, 2, 3) for j in (1, 2)]
    found = flip_rates(model, clean, [clean, noisy])
    for name, flips in found.items():
        a, b = before[name], after[name]
        assert flips.noise == pytest.approx([0, (a * b < 0).double().mean().item()])
        pairs = [(a[i] != a[j]).double().mean().item() for i in range(5) for j in range(i)]
        assert flips.pairs == pytest.approx(sum(pairs) / len(pairs))
    assert model.training


def test_signs_are_those_that_the_layers_multiply() -> None:
    model = net().eval()
    seen = {}
    layer = model.get_submodule("layer2.0.conv1")
    layer.register_forward_pre_hook(lambda m, args: seen.update(x=args[0]))
    signs = layer_signs(model, torch.randn(3, 1, 8, 8))
    assert torch.equal(signs["layer2.0.conv1"], lcrbnn.ops.sign(seen["x"]))


def test_ratios_are_those_of_the_paper_at_convergence() -> None:
    model = net()
    images = torch.randn(12, 1, 8, 8)
    found = retention_ratios(model, images)
    assert found is not None
    assert list(found) == list(model.chain[:-1])
    # By hand, from the maps: G = front^T back (equal shapes), sigma_1(G^T G) = sigma_1(G)^2.
    from lcrbnn.analyze.correlation import layer_maps

    maps = layer_maps(model, images)
    front, back = (maps[f"layer1.0.conv{i}"] for i in (1, 2))

    def norm(a: torch.Tensor, b: torch.Tensor) -> float:
        return torch.linalg.matrix_norm(a.double() @ b.double().T, 2).item() ** 2

    assert found["layer1.0.conv1"]["eq8"] == pytest.approx(
        norm(front.binary, back.binary) / norm(front.real, back.real), rel=1e-3
    )
    assert model.training


def test_a_real_network_has_no_signs_and_no_ratios() -> None:
    model = lcrbnn.network("resnet8-double", in_channels=1, image=8)
    images = torch.randn(4, 1, 8, 8)
    assert retention_ratios(model, images) is None
    assert flip_rates(model, images, [images]) == {}
    assert all("binary" not in maps for maps in likeness(model, images).values())


def test_binarising_amplifies_small_noise(tmp_path: Path) -> None:
    pixels = torch.from_numpy(read_digits().train.images[:64]).float() / TOP
    over_pairs = {}
    for method in ("irnet", "real"):
        path = small_run(tmp_path / method, Spec(method=method, epochs=3))
        assert RunFolder(path).read_log()[-1]["valid"] > 80  # both have learned
        model = load_network(RunFolder(path))[1].eval()
        over_pairs[method] = sensitivity(model, pixels, (0.01, 0.1, 4), draws=1)["over_pairs"]
    assert all(0.3 < ratio < 1.5 for ratio in over_pairs["real"].values())  # noise counts as much as other changes
    assert 0.3 < over_pairs["irnet"]["4"] < 1.5
    assert over_pairs["irnet"]["0.1"] > 3
    assert over_pairs["irnet"]["0.01"] > 3 * over_pairs["irnet"]["0.1"]


def test_quantiles_are_torchs_and_have_no_limit() -> None:
    from lcrbnn.analyze.sensitivity import QUANTILES, _described

    values = torch.randn(1001, generator=torch.Generator().manual_seed(0)).double()
    found = _described(values)
    for q in QUANTILES:
        assert found[f"q{100 * q:g}"] == pytest.approx(torch.quantile(values, q).item(), abs=1e-12)
    assert _described(torch.ones(17_000_000, dtype=torch.float32))["q50"] == 1  # torch.quantile refuses so many


def test_more_images_than_there_are_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--run", str(tmp_path / "run"), "--epochs", "1", "--device", "cpu"]) == 0
    assert main(["analyze", str(tmp_path / "run"), "--images", "5000", "-o", str(tmp_path / "out")]) == 2
    assert "digits has 1,297 training images, and 5,000 are to be looked at" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.json"))


def test_a_damaged_record_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--run", str(tmp_path / "run"), "--epochs", "1", "--device", "cpu"]) == 0
    words = ["analyze", str(tmp_path / "run"), "--images", "8", "-o", str(tmp_path / "out")]
    assert main(words) == 0
    (path,) = (tmp_path / "out").rglob("*.json")
    record = json.loads(path.read_text())
    del record["figures"]["summary"]
    write_without_digest(path, record)
    assert main(words) == 2
    assert "is damaged: its figures lack something; remove it to measure again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b"])
def test_a_group_is_named_as_a_folder_inside_another(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the name of a group is one of a folder, without a slash"):
        find_groups([f"{name}={tmp_path}"])
