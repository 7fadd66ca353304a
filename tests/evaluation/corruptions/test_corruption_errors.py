from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.data.split import ImageArrays, Split
from lcrbnn.errors import InputError, StopSignal
from lcrbnn.evaluation.corruptions.corruption_registry import SEVERITIES, apply_corruption
from lcrbnn.evaluation.evaluate import evaluate, load_run_model
from lcrbnn.evaluation.robustness import corruption_errors as measuring
from lcrbnn.evaluation.robustness.corruption_errors import RobustnessSettings, measure_corruption_errors
from lcrbnn.evaluation.robustness.corruption_record import AS_TRAINED, REFIT_HEADS, CorruptionEvaluator
from lcrbnn.evaluation.robustness.linear_head import fit_linear_head
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import read_record
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from tests.data.image_folders import CLASSES, make_image_files, write_zip
from tests.evaluation.corruptions.helpers import NUM_TEST, load_enlarged_digits, register_enlarged_digits
from tests.runs.helpers import write_without_digest
from tests.train.helpers import train_small_run

TESTED_CORRUPTIONS = ("contrast", "gaussian_noise", "frost")


def make_silent_progress_bar(total: int) -> ProgressBar:
    return ProgressBar(total, io.StringIO())


def measure_run(run: Path, record_path: Path, data_folder: Path, **changes: object) -> CorruptionEvaluator:
    settings = RobustnessSettings(**{"corruptions": TESTED_CORRUPTIONS, **changes})  # type: ignore[arg-type]  # a test's shorthand
    return measure_corruption_errors(
        [(load_run_model(run, require_finished=True), record_path)],
        RunOptions("cpu", data_folder),
        settings,
        make_silent_progress_bar,
    )[0]


def read_figures(path: Path) -> dict:
    return read_record(path)["figures"]


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


def test_errors_match_the_network_and_the_run_is_not_changed(
    trained_runs: Path, data_folder: Path, tmp_path: Path
) -> None:
    run = trained_runs / "seed-0"
    files_before = read_files(run)
    evaluator = measure_run(run, tmp_path / "r.json", data_folder)
    assert read_files(run) == files_before  # the test results in the record do not change either
    copy = shutil.copytree(run, tmp_path / "copy")
    accuracy = evaluate(copy, RunOptions("cpu", data_folder), use_test_split=True).accuracy
    assert evaluator.clean_errors[AS_TRAINED] == pytest.approx(100 - accuracy.top1, abs=1e-4)
    images, labels = (
        torch.from_numpy(load_enlarged_digits().test.images),
        torch.from_numpy(load_enlarged_digits().test.labels),
    )
    corrupted = apply_corruption(images, "contrast", 5, torch.arange(NUM_TEST))
    num_errors = evaluator.count_errors(corrupted, labels)[AS_TRAINED]
    assert evaluator.errors[AS_TRAINED]["contrast"][-1] == pytest.approx(100 * num_errors / NUM_TEST, abs=1e-4)
    assert len(set(evaluator.errors[AS_TRAINED]["gaussian_noise"])) > 1


def test_a_record_describes_the_measurement(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    measure_run(trained_runs / "seed-1", tmp_path / "r.json", data_folder, num_images=20)
    record = read_record(tmp_path / "r.json")
    assert record["kind"] == "robustness"
    assert record["settings"]["spec"]["seed"] == 1
    assert record["settings"]["images"] == 20
    assert record["settings"]["corrupted_images"] == "regenerated"
    assert (record["settings"]["seed"], record["settings"]["device"]) == (0, "cpu")
    assert record["figures"]["complete"] is True
    assert "test_results" not in record
    assert list(record["figures"]["errors"][AS_TRAINED]) == list(TESTED_CORRUPTIONS)
    assert record["figures"]["means"][AS_TRAINED]["main"] is None  # only three of the fifteen corruptions were measured
    assert str(tmp_path) not in (tmp_path / "r.json").read_text()


def test_an_interrupted_measurement_resumes_with_the_same_result(
    trained_runs: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninterrupted = measure_run(trained_runs / "seed-0", tmp_path / "whole.json", data_folder, refit_heads=True)
    save_record = CorruptionEvaluator.save_record

    def save_and_stop(self: CorruptionEvaluator, complete: bool) -> None:
        save_record(self, complete)
        raise StopSignal("stopped", 15)

    monkeypatch.setattr(CorruptionEvaluator, "save_record", save_and_stop)
    for num_measured in (1, 2):
        with pytest.raises(StopSignal):
            measure_run(trained_runs / "seed-0", tmp_path / "part.json", data_folder, refit_heads=True)
        partial = read_figures(tmp_path / "part.json")
        assert partial["complete"] is False
        assert list(partial["errors"][REFIT_HEADS[0]]) == list(TESTED_CORRUPTIONS[:num_measured])
    monkeypatch.setattr(CorruptionEvaluator, "save_record", save_record)
    resumed = measure_run(trained_runs / "seed-0", tmp_path / "part.json", data_folder, refit_heads=True)
    assert resumed.errors == uninterrupted.errors
    assert read_figures(tmp_path / "part.json") == read_figures(tmp_path / "whole.json")

    def fail(self: CorruptionEvaluator, images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a complete record must not be measured again")

    monkeypatch.setattr(CorruptionEvaluator, "extract_features", fail)
    assert (
        measure_run(trained_runs / "seed-0", tmp_path / "part.json", data_folder, refit_heads=True).errors
        == uninterrupted.errors
    )


def test_runs_measured_together_have_the_same_errors_as_alone(
    trained_runs: Path, data_folder: Path, tmp_path: Path
) -> None:
    settings = RobustnessSettings(num_images=40, corruptions=TESTED_CORRUPTIONS[:2])
    models = [(load_run_model(trained_runs / name, require_finished=True), None) for name in ("seed-0", "seed-1")]
    first, second = measure_corruption_errors(
        models, RunOptions("cpu", data_folder), settings, make_silent_progress_bar
    )
    for evaluator, name in ((first, "seed-0"), (second, "seed-1")):
        single = measure_run(
            trained_runs / name,
            tmp_path / f"{name}.json",
            data_folder,
            num_images=40,
            corruptions=TESTED_CORRUPTIONS[:2],
        )
        assert (evaluator.clean_errors, evaluator.errors) == (single.clean_errors, single.errors)
    assert first.errors != second.errors


def test_too_many_images_are_rejected(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=f"--num-images must be a whole number from 1 to {NUM_TEST}; got {NUM_TEST + 1}"
    ):
        measure_run(trained_runs / "seed-0", tmp_path / "r.json", data_folder, num_images=NUM_TEST + 1)


def test_a_last_batch_of_one_image_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "BATCH_SIZE", 2)
    batches = list(measuring._iter_batches(torch.arange(5), torch.arange(5) + 10))
    assert [batch.images.tolist() for batch in batches] == [[0, 1], [2, 3], [4]]
    assert [batch.labels.tolist() for batch in batches] == [[10, 11], [12, 13], [14]]


def test_a_signal_stops_the_measurement_after_the_current_network(
    trained_runs: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(measuring.StopRequest):
        def __enter__(self) -> measuring.StopRequest:
            self.signal_number = 15
            return self

    monkeypatch.setattr(measuring, "StopRequest", Asked)
    with pytest.raises(StopSignal, match="run the same command again"):
        measure_run(trained_runs / "seed-0", tmp_path / "r.json", data_folder)


def test_a_record_of_other_settings_is_not_overwritten(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    measure_run(trained_runs / "seed-0", tmp_path / "r.json", data_folder, num_images=10)
    content = (tmp_path / "r.json").read_bytes()
    for change in (
        {"num_images": 11},
        {"num_images": 10, "refit_heads": True},
        {"num_images": 10, "corruptions": ("fog",)},
    ):
        with pytest.raises(InputError, match=r"r\.json is a record with other settings"):
            measure_run(trained_runs / "seed-0", tmp_path / "r.json", data_folder, **change)
    with pytest.raises(InputError, match="other settings"):
        measure_run(trained_runs / "seed-1", tmp_path / "r.json", data_folder, num_images=10)
    assert (tmp_path / "r.json").read_bytes() == content


def test_heads_are_fitted_on_training_images_alone(
    trained_runs: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Different test images do not change the heads, different training images do."""
    images_of_set = load_enlarged_digits()
    noise = np.random.default_rng(0).integers(0, 256, images_of_set.test.images.shape, np.uint8)
    other_test = ImageArrays(images_of_set.train, Split(noise, images_of_set.test.labels))
    other_train = ImageArrays(
        Split(images_of_set.train.images[::-1].copy(), images_of_set.train.labels), images_of_set.test
    )
    weights_by_set = []
    for i, images in enumerate((images_of_set, other_test, other_train)):
        register_enlarged_digits(monkeypatch, images)
        evaluator = measure_run(
            trained_runs / "seed-0", tmp_path / f"{i}.json", data_folder, corruptions=("contrast",), refit_heads=True
        )
        weights_by_set.append([evaluator.heads[name].weight.detach() for name in (AS_TRAINED, *REFIT_HEADS)])
    for weights, with_other_test, with_other_train, should_be_equal in zip(
        *weights_by_set, (True, False, False), strict=True
    ):
        assert torch.equal(weights, with_other_test)
        assert torch.equal(weights, with_other_train) == should_be_equal
    assert not torch.equal(weights_by_set[0][1], weights_by_set[0][2])


def test_mixed_corruptions_use_every_image_once_and_all_pairs(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def record_call(
        images: torch.Tensor, name: str, severity: int, rows: torch.Tensor, photos: object, *, split: str
    ) -> torch.Tensor:
        calls.append((name, severity, rows.tolist(), split))
        return images

    monkeypatch.setattr(measuring, "apply_corruption", record_call)
    images, labels = torch.zeros(190, 3, 32, 32, dtype=torch.uint8), torch.arange(190)
    batch_labels = torch.cat([part.labels for part in measuring._iter_mixed_corruptions(images, labels, None)])
    assert batch_labels.sort().values.tolist() == list(range(190))
    assert [(name, severity) for name, severity, _, _ in calls] == measuring.CORRUPTION_SEVERITY_PAIRS
    assert all(rows == [i, i + 95] and split == "train" for i, (_, _, rows, split) in enumerate(calls))


def test_a_fitted_head_minimizes_the_loss(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    """The gradient of the loss is zero, and the loss is lower than before."""
    evaluator = measure_run(trained_runs / "seed-0", tmp_path / "r.json", data_folder, corruptions=("contrast",))
    labels = torch.from_numpy(load_enlarged_digits().train.labels)
    features = evaluator.extract_features(torch.from_numpy(load_enlarged_digits().train.images)).double()
    initial_head = evaluator.heads[AS_TRAINED]
    fitted_head = fit_linear_head(features, labels, initial_head)

    def compute_loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        logits = features @ weight.double().T + bias.double()
        return torch.nn.functional.cross_entropy(logits, labels) + 0.5e-4 * weight.double().square().sum()

    weight, bias = (p.detach().double().requires_grad_() for p in (fitted_head.weight, fitted_head.bias))
    final_loss = compute_loss(weight, bias)
    final_loss.backward()
    assert final_loss < compute_loss(initial_head.weight, initial_head.bias) - 0.05
    assert weight.grad is not None
    assert weight.grad.abs().max() < 1e-3


def test_an_unfinished_run_or_a_wrong_checkpoint_is_rejected(
    trained_runs: Path, data_folder: Path, tmp_path: Path
) -> None:
    unfinished = shutil.copytree(trained_runs / "seed-0", tmp_path / "half")
    (unfinished / "record.json").unlink()
    with pytest.raises(InputError, match="is not finished: the test split is only for finished runs"):
        measure_run(unfinished, tmp_path / "r.json", data_folder)
    changed = shutil.copytree(trained_runs / "seed-0", tmp_path / "changed")
    record = json.loads((changed / "record.json").read_text())
    record["figures"]["checkpoint_sha256"] = "0" * 64
    write_without_digest(changed / "record.json", record)
    with pytest.raises(InputError, match="is not the one in its record"):
        measure_run(changed, tmp_path / "r.json", data_folder)


def test_runs_with_different_classes_are_rejected(tmp_path: Path) -> None:
    tree = make_image_files(train=12, val=1, size=(32, 32))
    images = write_zip(tree, tmp_path / "a.zip")
    other_images = write_zip(
        {name.replace("bee", "wasp"): content for name, content in tree.items()}, tmp_path / "b.zip"
    )
    spec = TrainSpec(dataset="folder", image_size=32, epochs=1, batch_size=12)
    runs = [train_small_run(tmp_path / p.stem, spec, RunOptions("cpu", p, workers=0)) for p in (images, other_images)]
    with pytest.raises(InputError, match=r"need the same classes; only some have bee, wasp$"):
        measure_corruption_errors([(load_run_model(run), None) for run in runs], RunOptions("cpu", images))


def test_a_sample_of_an_image_folder_contains_all_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_zip(make_image_files(train=12, val=2, size=(32, 32)), tmp_path / "a.zip")
    run = train_small_run(
        tmp_path / "run",
        TrainSpec(dataset="folder", image_size=32, epochs=1, batch_size=12),
        RunOptions("cpu", images, workers=0),
    )
    labels_by_set: list[list[int]] = []
    generated_set = measuring.GeneratedSet

    def record_labels(split: Split, *arguments: object) -> object:
        labels_by_set.append(split.labels.tolist())
        return generated_set(split, *arguments)  # type: ignore[arg-type]  # a device and photos

    monkeypatch.setattr(measuring, "GeneratedSet", record_labels)
    settings = RobustnessSettings(corruptions=("contrast",), num_images=len(CLASSES))
    measure_corruption_errors(
        [(load_run_model(run), None)], RunOptions("cpu", images), settings, make_silent_progress_bar
    )
    assert labels_by_set == [list(range(len(CLASSES)))] * 2


def test_runs_of_two_data_sets_are_rejected(trained_runs: Path, data_folder: Path, tmp_path: Path) -> None:
    runs = [trained_runs / "seed-0", train_small_run(tmp_path / "run")]
    with pytest.raises(
        InputError, match="runs that are evaluated together need the same data set; got digits-32 and digits"
    ):
        measure_corruption_errors([(load_run_model(run), None) for run in runs], RunOptions("cpu", data_folder))


def test_severities_are_measured_in_order(
    trained_runs: Path, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, int]] = []
    original = apply_corruption

    def record_call(images: torch.Tensor, name: str, severity: int, rows: torch.Tensor, photos: object) -> torch.Tensor:
        calls.append((name, severity))
        return original(images, name, severity, rows, photos)  # type: ignore[arg-type]  # photos, or none

    monkeypatch.setattr("lcrbnn.evaluation.robustness.corrupted_sets.apply_corruption", record_call)
    measure_run(trained_runs / "seed-0", tmp_path / "r.json", data_folder, num_images=5)
    assert calls == [(name, severity) for name in TESTED_CORRUPTIONS for severity in SEVERITIES]
