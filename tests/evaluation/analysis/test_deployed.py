from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import lcrbnn
from lcrbnn.cli.main import main
from lcrbnn.data.digits import MAX_PIXEL_VALUE, read_digits
from lcrbnn.errors import InputError
from lcrbnn.evaluation.analysis.retention_ratios import measure_retention_ratios, measure_similarity
from lcrbnn.evaluation.analysis.sensitivity import capture_layer_signs, measure_flip_rates, measure_sensitivity
from lcrbnn.evaluation.seed_groups import find_groups
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.spec import TrainSpec
from tests.runs.helpers import write_without_digest
from tests.train.helpers import train_small_run


def test_a_linear_network_is_equally_sensitive_everywhere() -> None:
    pixels = torch.rand(6, 1, 4, 4)
    sensitivity = measure_sensitivity(lambda x: 3 * x.flatten(1), pixels)
    for statistics in (*sensitivity["radii"].values(), sensitivity["pairs"]):
        assert list(statistics.values()) == pytest.approx([3] * 5, rel=1e-3)
    assert list(sensitivity["over_pairs"].values()) == pytest.approx([1] * 4, rel=1e-3)


def test_a_sign_has_no_lipschitz_constant() -> None:
    # At the threshold every step flips signs, so the ratio grows tenfold for a distance ten times smaller.
    sensitivity = measure_sensitivity(
        lambda x: lcrbnn.nn.functional.sign(x - 0.5).flatten(1), torch.full((4, 1, 4, 4), 0.5)
    )
    means = [statistics["mean"] for statistics in sensitivity["radii"].values()]
    assert means[0] / means[1] == pytest.approx(10, rel=0.05)
    assert means[1] / means[2] == pytest.approx(10, rel=0.05)


def test_statistics_of_image_pairs_match_hand_computed_values() -> None:
    # Images of one pixel 0, 1, 3 and 6; the outputs are squares. The pairs have ratios 1, 3, 4, 6, 7 and 9.
    pixels = torch.tensor([0.0, 1.0, 3.0, 6.0]).reshape(4, 1, 1, 1)
    ratio_statistics = measure_sensitivity(lambda x: x.flatten(1).square(), pixels)["pairs"]
    assert list(ratio_statistics.values()) == pytest.approx([5, 5, 8, 8.9, 9], rel=1e-6)


def test_directions_do_not_depend_on_the_batch() -> None:
    pixels = torch.rand(6, 1, 4, 4)

    def record_inputs(images: torch.Tensor) -> torch.Tensor:
        inputs: list[torch.Tensor] = []
        measure_sensitivity(lambda x: inputs.append(x[:2]) or x.flatten(1), images)
        return torch.stack(inputs)

    small_batch, large_batch = record_inputs(pixels[:2]), record_inputs(pixels)
    assert torch.equal(small_batch, large_batch)
    assert len(small_batch.flatten(1).unique(dim=0)) == 1 + 4 * 2  # clean images, and four radii times two directions
    distances = (small_batch[1:] - small_batch[0]).flatten(2).norm(dim=2)
    assert not torch.allclose(small_batch[4, 0] - small_batch[0, 0], small_batch[4, 1] - small_batch[0, 1], atol=0.01)
    assert distances[0].tolist() == pytest.approx([0.01, 0.01], rel=1e-3)
    assert distances[3].tolist() == pytest.approx([4, 4], rel=1e-3)


def make_net() -> lcrbnn.nn.models.Network:
    torch.manual_seed(1)
    return lcrbnn.create_model("resnet8-double", "irnet", in_channels=1, image_size=8)


def test_flip_rates_match_direct_counts() -> None:
    model = make_net()
    clean, noisy = torch.randn(2, 5, 1, 8, 8).unbind()
    clean_signs, noisy_signs = capture_layer_signs(model, clean), capture_layer_signs(model, noisy)
    assert list(clean_signs) == [f"layer{i}.0.conv{j}" for i in (1, 2, 3) for j in (1, 2)]
    flip_rates = measure_flip_rates(model, clean, [clean, noisy])
    for name, rates in flip_rates.items():
        a, b = clean_signs[name], noisy_signs[name]
        assert rates.under_noise == pytest.approx([0, (a * b < 0).double().mean().item()])
        pairs = [(a[i] != a[j]).double().mean().item() for i in range(5) for j in range(i)]
        assert rates.between_images == pytest.approx(sum(pairs) / len(pairs))
    assert model.training


def test_captured_signs_are_those_of_the_layer_inputs() -> None:
    model = make_net().eval()
    layer_inputs = {}
    layer = model.get_submodule("layer2.0.conv1")
    layer.register_forward_pre_hook(lambda m, args: layer_inputs.update(x=args[0]))
    signs = capture_layer_signs(model, torch.randn(3, 1, 8, 8))
    assert torch.equal(signs["layer2.0.conv1"], lcrbnn.nn.functional.sign(layer_inputs["x"]))


def test_retention_ratios_match_exact_spectral_norms() -> None:
    model = make_net()
    images = torch.randn(12, 1, 8, 8)
    ratios = measure_retention_ratios(model, images)
    assert ratios is not None
    assert list(ratios) == list(model.main_path[:-1])
    # Expected value from the activations: G = front^T back (equal shapes), sigma_1(G^T G) = sigma_1(G)^2.
    from lcrbnn.evaluation.analysis.map_similarity import capture_layer_maps

    maps = capture_layer_maps(model, images)
    front, back = (maps[f"layer1.0.conv{i}"] for i in (1, 2))

    def norm(a: torch.Tensor, b: torch.Tensor) -> float:
        return torch.linalg.matrix_norm(a.double() @ b.double().T, 2).item() ** 2

    assert ratios["layer1.0.conv1"]["eq8"] == pytest.approx(
        norm(front.binary, back.binary) / norm(front.real, back.real), rel=1e-3
    )
    assert model.training


def test_a_real_network_has_no_signs_and_no_ratios() -> None:
    model = lcrbnn.create_model("resnet8-double", in_channels=1, image_size=8)
    images = torch.randn(4, 1, 8, 8)
    assert measure_retention_ratios(model, images) is None
    assert measure_flip_rates(model, images, [images]) == {}
    assert all("binary" not in maps for maps in measure_similarity(model, images).values())


def test_binarization_amplifies_small_noise(tmp_path: Path) -> None:
    pixels = torch.from_numpy(read_digits().train.images[:64]).float() / MAX_PIXEL_VALUE
    over_pairs = {}
    for method in ("irnet", "real"):
        path = train_small_run(tmp_path / method, TrainSpec(method=method, epochs=3))
        assert RunFolder(path).read_log()[-1]["valid_top1"] > 80  # both networks are trained
        model = load_network(RunFolder(path))[1].eval()
        over_pairs[method] = measure_sensitivity(model, pixels, (0.01, 0.1, 4), directions_per_image=1)["over_pairs"]
    assert all(
        0.3 < ratio < 1.5 for ratio in over_pairs["real"].values()
    )  # noise changes the output as much as other images do
    assert 0.3 < over_pairs["irnet"]["4"] < 1.5
    assert over_pairs["irnet"]["0.1"] > 3
    assert over_pairs["irnet"]["0.01"] > 3 * over_pairs["irnet"]["0.1"]


def test_quantiles_equal_torch_and_have_no_size_limit() -> None:
    from lcrbnn.evaluation.analysis.sensitivity import QUANTILES, _summarize_values

    values = torch.randn(1001, generator=torch.Generator().manual_seed(0)).double()
    summary = _summarize_values(values)
    for q in QUANTILES:
        assert summary[f"q{100 * q:g}"] == pytest.approx(torch.quantile(values, q).item(), abs=1e-12)
    assert (
        _summarize_values(torch.ones(17_000_000, dtype=torch.float32))["q50"] == 1
    )  # torch.quantile rejects so many numbers


def test_too_many_images_are_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--run-folder", str(tmp_path / "run"), "--epochs", "1", "--device", "cpu"]) == 0
    assert main(["analyze", str(tmp_path / "run"), "--num-images", "5000", "-o", str(tmp_path / "out")]) == 2
    assert "digits has 1,297 training images; got --num-images 5,000" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.json"))


def test_a_damaged_record_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--run-folder", str(tmp_path / "run"), "--epochs", "1", "--device", "cpu"]) == 0
    command = ["analyze", str(tmp_path / "run"), "--num-images", "8", "-o", str(tmp_path / "out")]
    assert main(command) == 0
    (path,) = (tmp_path / "out").rglob("*.json")
    record = json.loads(path.read_text())
    del record["figures"]["summary"]
    write_without_digest(path, record)
    assert main(command) == 2
    assert "is damaged: some of its figures are missing; remove it to measure again" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b"])
def test_a_group_name_must_be_a_folder_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a group name must be a valid folder name without a slash"):
        find_groups([f"{name}={tmp_path}"])
