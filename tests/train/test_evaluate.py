from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lcrbnn.cli import main
from lcrbnn.data import DATASETS, Split
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import InputError
from lcrbnn.layers import evaluating
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from lcrbnn.runs.folder import RunFolder, runs_in
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import load_network
from lcrbnn.train.captured import Answers
from lcrbnn.train.evaluate import accuracy
from lcrbnn.train.options import Options
from lcrbnn.train.reading import evaluate
from tests.runs.helpers import write_without_digest
from tests.train.helpers import OFTEN, SMALL, log, small_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return small_run(tmp_path_factory.mktemp("runs") / "run")


def test_the_validation_split_gives_what_the_log_says(run: Path) -> None:
    read, noted = evaluate(run, OFTEN)
    assert read.images == 297
    assert read.top1 == log(run)[-1]["valid"]
    assert read.loss == log(run)[-1]["valid_loss"]
    assert noted == 0
    assert "readings" not in json.loads((run / "record.json").read_text())


def test_the_test_split_is_read_image_by_image_and_each_reading_noted(run: Path) -> None:
    read, noted = evaluate(run, OFTEN, final=True)
    _, model, digest = load_network(RunFolder(run))
    test = read_digits().test
    with torch.no_grad(), evaluating(model):
        answers = [model(torch.tensor(i[None] / 16, dtype=torch.float32)).argmax().item() for i in test.images]
    assert read.top1 == pytest.approx(100 * float(np.mean(np.array(answers) == test.labels)))
    assert noted == 1
    assert evaluate(run, OFTEN, final=True)[1] == 2
    readings = json.loads((run / "record.json").read_text())["readings"]
    assert [r["top1"] for r in readings] == [read.top1, read.top1]
    assert all(r["split"] == "test" and r["images"] == 500 and r["checkpoint_sha256"] == digest for r in readings)
    assert all(r["date"] for r in readings)


def test_whoever_wants_to_stop_is_asked_after_each_batch(run: Path) -> None:
    spec, model, _ = load_network(RunFolder(run))
    asked: list[int] = []
    batches = Batches(read_digits().train, DATASETS["digits"], CPU)  # 1,297 images: two batches
    accuracy(Answers(model, spec), batches, lambda: asked.append(1))
    assert len(asked) == 2


class Ranked(nn.Module):
    """Gives image i the classes in the order of its first pixels."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def test_the_five_best_are_counted_from_six_classes_on() -> None:
    labels = np.arange(40) % 50
    images = np.zeros((40, 1, 5, 10), np.uint8)
    for i, label in enumerate(labels):
        images[i].reshape(-1)[label] = 10
        for better in range(i % 8):  # so many classes are ranked before the label
            images[i].reshape(-1)[(label + 1 + better) % 50] = 20 + better
    row = replace(DATASETS["digits"], top=1)
    batches = Batches(Split(images, labels.astype(np.int64)), row, CPU)
    read = accuracy(Answers(Ranked(), SMALL), batches)
    assert read.top1 == 100 * 5 / 40
    assert read.top5 == 100 * 25 / 40
    for classes, counted in ((5, False), (6, True)):
        few = Batches(Split(images[:, :, :1, :classes].copy(), np.zeros(40, np.int64)), row, CPU)
        assert (accuracy(Answers(Ranked(), SMALL), few).top5 is not None) == counted


def test_the_loss_of_a_reading_is_the_mean_cross_entropy_of_its_images() -> None:
    torch.manual_seed(1)
    labels = np.arange(40) % 10
    images = torch.randint(17, (40, 1, 2, 5), dtype=torch.uint8).numpy()
    batches = Batches(Split(images, labels), DATASETS["digits"], CPU)
    (batch,) = batches.plain(40)
    expected = nn.functional.cross_entropy(Ranked()(batch.images), batch.labels).item()
    assert accuracy(Answers(Ranked(), SMALL), batches).loss == pytest.approx(expected, rel=1e-5)


def test_a_run_on_all_images_has_no_validation_split(tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(images="all", epochs=1))
    assert log(tmp_path / "run")[0]["valid"] is None
    with pytest.raises(InputError, match=r"learned from all 1,297 training images, so none is left.*--final"):
        evaluate(tmp_path / "run", OFTEN)
    assert evaluate(tmp_path / "run", OFTEN, final=True)[0].images == 500


def test_an_unfinished_run_may_be_looked_at_but_not_finally(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    assert evaluate(tmp_path / "run", OFTEN)[0].images == 297
    with pytest.raises(InputError, match="is not finished: the test split is for finished runs"):
        evaluate(tmp_path / "run", OFTEN, final=True)


def test_a_damaged_checkpoint_is_not_evaluated_in_silence(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    newest.write_bytes(newest.read_bytes()[:-1])
    assert main(["eval", str(tmp_path / "run")]) == 2


def test_several_seeds_are_one_line_each_and_a_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "digits", "--run", str(tmp_path / "runs"), "--seeds", "0,10", "--epochs", "1", "--batch", "300"]
    assert main([*words, "--device", "cpu"]) == 0
    assert [p.name for p in runs_in(tmp_path / "runs")] == ["seed-0", "seed-10"]
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
    assert main(["eval", str(tmp_path / "runs"), "--final", "--device", "cpu"]) == 0
    assert "500 test images (reading 1)" in capsys.readouterr().out


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no run in .*: neither"):
        runs_in(tmp_path)
    with pytest.raises(InputError, match=r"there is no run in .*: it has no spec\.json"):
        evaluate(tmp_path, Options(device="cpu"))


def test_a_network_whose_spec_was_changed_afterwards_is_not_evaluated(run: Path, tmp_path: Path) -> None:
    """Methods share the names of their state: the checkpoint fits, and would mean something else."""
    import shutil

    shutil.copytree(run, tmp_path / "run")
    spec = tmp_path / "run" / "spec.json"
    spec.write_text(spec.read_text().replace('"images": "train"', '"images": "all"'))
    with pytest.raises(InputError, match=r"is of a run with other settings than spec\.json has"):
        evaluate(tmp_path / "run", OFTEN, final=True)


def test_a_final_reading_needs_its_record_and_the_checkpoint_that_it_is_of(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    record = tmp_path / "run" / "record.json"
    whole = record.read_text()
    for broken in ("", "[]", '{"schema": 1}', whole.replace('"schema": 1', '"schema": 99', 1)):
        record.write_text(broken)
        with pytest.raises(InputError, match=r"record\.json is no record"):
            evaluate(tmp_path / "run", OFTEN, final=True)
    digest = json.loads(whole)["figures"]["checkpoint_sha256"]
    write_without_digest(record, json.loads(whole.replace(digest, "0" * 64)))
    with pytest.raises(InputError, match="is not the one that its record is of"):
        evaluate(tmp_path / "run", OFTEN, final=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_checkpoint_with_bad_numbers_is_refused_however_right_its_checksums(
    value: float, run: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "run")
    newest = RunFolder(tmp_path / "run").newest()
    assert newest is not None
    arrays, facts = read_checkpoint(newest)
    arrays["model/stem.0.weight"] = np.full_like(arrays["model/stem.0.weight"], value)
    write_checkpoint(newest, Checkpoint(arrays, facts))
    with pytest.raises(InputError, match=r"holds numbers that are not finite, in 'model/stem\.0\.weight'"):
        evaluate(tmp_path / "run", OFTEN)


def test_no_test_image_is_read_if_another_run_cannot_be(run: Path, tmp_path: Path) -> None:
    import shutil

    for name in ("seed-0", "seed-1"):
        shutil.copytree(run, tmp_path / name)
    before = (tmp_path / "seed-0" / "record.json").read_bytes()
    shutil.rmtree(tmp_path / "seed-1" / "checkpoints")
    assert main(["eval", str(tmp_path), "--final", "--device", "cpu"]) == 2
    assert (tmp_path / "seed-0" / "record.json").read_bytes() == before


def test_a_finished_run_whose_network_is_lost_says_how_it_is_made_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    newest = RunFolder(folder).newest()
    assert newest is not None
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    words = ["train", "--run", str(folder), "--resume", "--device", "cpu"]
    assert main(words) == 0
    said = capsys.readouterr().err
    assert f"{folder}: the run is finished, but " in said
    assert "without its record.json, --resume makes its end again" in said
    (folder / "record.json").unlink()
    assert main(words) == 0
    assert (folder / "record.json").exists()
    assert "the run is finished, but" not in capsys.readouterr().err
