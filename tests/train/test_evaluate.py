from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.cli.main import main
from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.data.split import Split
from lcrbnn.errors import InputError
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.nn.model_hooks import eval_mode
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.run_folder import RunFolder, find_runs
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.validation import compute_accuracy
from tests.runs.helpers import write_without_digest
from tests.train.helpers import SAVE_EVERY_STEP, SMALL, read_log_without_times, train_small_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train_small_run(tmp_path_factory.mktemp("runs") / "run")


def test_the_validation_accuracy_equals_that_in_the_log(run: Path) -> None:
    read, noted = evaluate(run, SAVE_EVERY_STEP)
    assert read.images == 297
    assert read.top1 == read_log_without_times(run)[-1]["valid_top1"]
    assert read.loss == read_log_without_times(run)[-1]["valid_loss"]
    assert noted == 0
    assert "test_results" not in json.loads((run / "record.json").read_text())


def test_each_test_result_counts_every_image_and_is_added_to_the_record(run: Path) -> None:
    read, noted = evaluate(run, SAVE_EVERY_STEP, use_test_split=True)
    _, model, digest = load_network(RunFolder(run))
    test = read_digits().test
    with torch.no_grad(), eval_mode(model):
        answers = [model(torch.tensor(i[None] / 16, dtype=torch.float32)).argmax().item() for i in test.images]
    assert read.top1 == pytest.approx(100 * float(np.mean(np.array(answers) == test.labels)))
    assert noted == 1
    assert evaluate(run, SAVE_EVERY_STEP, use_test_split=True)[1] == 2
    readings = json.loads((run / "record.json").read_text())["test_results"]
    assert [r["top1"] for r in readings] == [read.top1, read.top1]
    assert all(r["split"] == "test" and r["images"] == 500 and r["checkpoint_sha256"] == digest for r in readings)
    assert all(r["date"] for r in readings)


def test_after_batch_is_called_after_each_batch(run: Path) -> None:
    spec, model, _ = load_network(RunFolder(run))
    calls: list[int] = []
    batches = InMemoryBatches(read_digits().train, DATASETS["digits"], CPU)  # 1,297 images: two batches
    compute_accuracy(GraphPredictor(model, spec), batches, lambda: calls.append(1))
    assert len(calls) == 2


class Ranked(nn.Module):
    """Ranks the classes of an image by its first pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def test_top5_is_measured_from_six_classes_on() -> None:
    labels = np.arange(40) % 50
    images = np.zeros((40, 1, 5, 10), np.uint8)
    for i, label in enumerate(labels):
        images[i].reshape(-1)[label] = 10
        for better in range(i % 8):  # this number of classes is ranked before the label
            images[i].reshape(-1)[(label + 1 + better) % 50] = 20 + better
    row = replace(DATASETS["digits"], max_pixel_value=1)
    batches = InMemoryBatches(Split(images, labels.astype(np.int64)), row, CPU)
    read = compute_accuracy(GraphPredictor(Ranked(), SMALL), batches)
    assert read.top1 == 100 * 5 / 40
    assert read.top5 == 100 * 25 / 40
    for classes, counted in ((5, False), (6, True)):
        few = InMemoryBatches(Split(images[:, :, :1, :classes].copy(), np.zeros(40, np.int64)), row, CPU)
        assert (compute_accuracy(GraphPredictor(Ranked(), SMALL), few).top5 is not None) == counted


def test_the_evaluation_loss_is_the_mean_cross_entropy() -> None:
    torch.manual_seed(1)
    labels = np.arange(40) % 10
    images = torch.randint(17, (40, 1, 2, 5), dtype=torch.uint8).numpy()
    batches = InMemoryBatches(Split(images, labels), DATASETS["digits"], CPU)
    (batch,) = batches.evaluation_batches(40)
    expected = nn.functional.cross_entropy(Ranked()(batch.images), batch.labels).item()
    assert compute_accuracy(GraphPredictor(Ranked(), SMALL), batches).loss == pytest.approx(expected, rel=1e-5)


def test_a_run_on_all_images_has_no_validation_split(tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SMALL.replace(train_split="train+valid", epochs=1))
    assert read_log_without_times(tmp_path / "run")[0]["valid_top1"] is None
    with pytest.raises(
        InputError, match=r"was trained on all 1,297 training images and has no validation images.*--test"
    ):
        evaluate(tmp_path / "run", SAVE_EVERY_STEP)
    assert evaluate(tmp_path / "run", SAVE_EVERY_STEP, use_test_split=True)[0].images == 500


def test_an_unfinished_run_has_validation_but_no_test_results(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    assert evaluate(tmp_path / "run", SAVE_EVERY_STEP)[0].images == 297
    with pytest.raises(InputError, match="is not finished: the test split is only for finished runs"):
        evaluate(tmp_path / "run", SAVE_EVERY_STEP, use_test_split=True)


def test_a_damaged_checkpoint_is_rejected(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main(["eval", str(tmp_path / "run")]) == 2


def test_several_seeds_give_one_line_each_and_a_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "train",
        "digits",
        "--run-folder",
        str(tmp_path / "runs"),
        "--seeds",
        "0,10",
        "--epochs",
        "1",
        "--batch-size",
        "300",
    ]
    assert main([*words, "--device", "cpu"]) == 0
    assert [p.name for p in find_runs(tmp_path / "runs")] == ["seed-0", "seed-10"]
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "runs"), "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        str(tmp_path / "runs" / "seed-0"),
        str(tmp_path / "runs" / "seed-10"),
        str(tmp_path / "runs"),
    ]
    assert "297 validation images" in lines[0]
    assert "(2 seeds)" in lines[2]
    assert main(["eval", str(tmp_path / "runs"), "--test", "--device", "cpu"]) == 0
    assert "500 test images (evaluation 1)" in capsys.readouterr().out


def test_folders_without_a_run_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no run in .*: it has neither"):
        find_runs(tmp_path)
    with pytest.raises(InputError, match=r"there is no run in .*: it has no spec\.json"):
        evaluate(tmp_path, RunOptions(device="cpu"))


def test_a_network_whose_spec_was_changed_afterwards_is_not_evaluated(run: Path, tmp_path: Path) -> None:
    """Methods share array names, so the checkpoint fits the network, but its weights mean something else."""
    import shutil

    shutil.copytree(run, tmp_path / "run")
    spec = tmp_path / "run" / "spec.json"
    spec.write_text(spec.read_text().replace('"train_split": "train"', '"train_split": "train+valid"'))
    with pytest.raises(InputError, match=r"belongs to a run with other settings than those in spec\.json"):
        evaluate(tmp_path / "run", SAVE_EVERY_STEP, use_test_split=True)


def test_a_test_result_needs_the_record_and_its_checkpoint(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    record = tmp_path / "run" / "record.json"
    record_text = record.read_text()
    for broken in ("", "[]", '{"schema": 2}', record_text.replace('"schema": 2', '"schema": 99', 1)):
        record.write_text(broken)
        with pytest.raises(InputError, match=r"record\.json is no record"):
            evaluate(tmp_path / "run", SAVE_EVERY_STEP, use_test_split=True)
    digest = json.loads(record_text)["figures"]["checkpoint_sha256"]
    write_without_digest(record, json.loads(record_text.replace(digest, "0" * 64)))
    with pytest.raises(InputError, match="is not the one in its record"):
        evaluate(tmp_path / "run", SAVE_EVERY_STEP, use_test_split=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_checkpoint_with_non_finite_values_and_valid_checksums_is_rejected(
    value: float, run: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").find_newest_checkpoint()
    assert newest is not None
    arrays, facts = read_checkpoint(newest)
    arrays["model/stem.0.weight"] = np.full_like(arrays["model/stem.0.weight"], value)
    write_checkpoint(newest, Checkpoint(arrays, facts))
    with pytest.raises(InputError, match=r"contains non-finite values in 'model/stem\.0\.weight'"):
        evaluate(tmp_path / "run", SAVE_EVERY_STEP)


def test_no_test_image_is_read_if_one_of_the_runs_is_invalid(run: Path, tmp_path: Path) -> None:
    import shutil

    for name in ("seed-0", "seed-1"):
        shutil.copytree(run, tmp_path / name)
    before = (tmp_path / "seed-0" / "record.json").read_bytes()
    shutil.rmtree(tmp_path / "seed-1" / "checkpoints")
    assert main(["eval", str(tmp_path), "--test", "--device", "cpu"]) == 2
    assert (tmp_path / "seed-0" / "record.json").read_bytes() == before


def test_a_finished_run_with_a_damaged_network_explains_how_to_repeat_its_end(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    newest = RunFolder(folder).find_newest_checkpoint()
    assert newest is not None
    content = newest.read_bytes()
    newest.write_bytes(content[:-1])
    words = ["train", "--run-folder", str(folder), "--resume", "--device", "cpu"]
    assert main(words) == 0
    error_text = capsys.readouterr().err
    assert f"{folder}: the run is finished, but " in error_text
    assert "without its record.json, --resume repeats its end" in error_text
    (folder / "record.json").unlink()
    assert main(words) == 0
    assert (folder / "record.json").exists()
    assert "the run is finished, but" not in capsys.readouterr().err
