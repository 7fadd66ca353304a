from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.corrupt import measure as measuring
from lcrbnn.corrupt.head import fit_head
from lcrbnn.corrupt.measure import Wanted, measure
from lcrbnn.corrupt.reader import AS_TRAINED, REFIT, Reader
from lcrbnn.corrupt.table import SEVERITIES, corrupt
from lcrbnn.data import Images, Split
from lcrbnn.errors import InputError, Stopped
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import read_record
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.reading import evaluate
from lcrbnn.train.subject import run_subject
from tests.corrupt.helpers import TEST, digits, know_digits
from tests.data.trees import CLASSES, as_zip, generated
from tests.runs.helpers import write_without_digest
from tests.train.helpers import small_run

SOME = ("contrast", "gaussian_noise", "frost")


def quiet(total: int) -> Progress:
    return Progress(total, io.StringIO())


def read(path: Path, record: Path, data: Path, **wanted: object) -> Reader:
    settings = Wanted(**{"corruptions": SOME, **wanted})  # type: ignore[arg-type]  # a test's shorthand
    return measure([(run_subject(path, finished=True), record)], Options("cpu", data), settings, quiet)[0]


def figures(path: Path) -> dict:
    return read_record(path)["figures"]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}


def test_errors_are_those_of_the_network_and_the_run_is_left_alone(trained: Path, data: Path, tmp_path: Path) -> None:
    path = trained / "seed-0"
    before = files(path)
    reader = read(path, tmp_path / "r.json", data)
    assert files(path) == before  # not even a reading is noted there
    copy = shutil.copytree(path, tmp_path / "copy")
    told = evaluate(copy, Options("cpu", data), final=True).accuracy
    assert reader.clean[AS_TRAINED] == pytest.approx(100 - told.top1, abs=1e-4)
    images, labels = torch.from_numpy(digits().test.images), torch.from_numpy(digits().test.labels)
    made = corrupt(images, "contrast", 5, torch.arange(TEST))
    wrong = reader.wrong(made, labels)[AS_TRAINED]
    assert reader.errors[AS_TRAINED]["contrast"][-1] == pytest.approx(100 * wrong / TEST, abs=1e-4)
    assert len(set(reader.errors[AS_TRAINED]["gaussian_noise"])) > 1


def test_a_record_says_what_was_read(trained: Path, data: Path, tmp_path: Path) -> None:
    read(trained / "seed-1", tmp_path / "r.json", data, images=20)
    record = read_record(tmp_path / "r.json")
    assert record["kind"] == "robustness"
    assert record["settings"]["run"]["seed"] == 1
    assert record["settings"]["images"] == 20
    assert record["settings"]["corrupted_images"] == "regenerated"
    assert (record["settings"]["seed"], record["settings"]["device"]) == (0, "cpu")
    assert record["figures"]["complete"] is True
    assert "readings" not in record
    assert list(record["figures"]["errors"][AS_TRAINED]) == list(SOME)
    assert record["figures"]["means"][AS_TRAINED]["main"] is None  # of fifteen, three were read
    assert str(tmp_path) not in (tmp_path / "r.json").read_text()


def test_an_interrupted_reading_goes_on_and_ends_alike(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(trained / "seed-0", tmp_path / "whole.json", data, refit=True)
    plain = Reader.write

    def stopped(self: Reader, complete: bool) -> None:
        plain(self, complete)
        raise Stopped("stopped", 15)

    monkeypatch.setattr(Reader, "write", stopped)
    for done in (1, 2):
        with pytest.raises(Stopped):
            read(trained / "seed-0", tmp_path / "part.json", data, refit=True)
        part = figures(tmp_path / "part.json")
        assert part["complete"] is False
        assert list(part["errors"][REFIT[0]]) == list(SOME[:done])
    monkeypatch.setattr(Reader, "write", plain)
    went_on = read(trained / "seed-0", tmp_path / "part.json", data, refit=True)
    assert went_on.errors == whole.errors
    assert figures(tmp_path / "part.json") == figures(tmp_path / "whole.json")

    def never(self: Reader, images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("a complete record is not read again")

    monkeypatch.setattr(Reader, "features", never)
    assert read(trained / "seed-0", tmp_path / "part.json", data, refit=True).errors == whole.errors


def test_runs_that_are_read_together_have_each_its_own_errors(trained: Path, data: Path, tmp_path: Path) -> None:
    wanted = Wanted(images=40, corruptions=SOME[:2])
    subjects = [(run_subject(trained / name, finished=True), None) for name in ("seed-0", "seed-1")]
    first, second = measure(subjects, Options("cpu", data), wanted, quiet)
    for reader, name in ((first, "seed-0"), (second, "seed-1")):
        alone = read(trained / name, tmp_path / f"{name}.json", data, images=40, corruptions=SOME[:2])
        assert (reader.clean, reader.errors) == (alone.clean, alone.errors)
    assert first.errors != second.errors


def test_more_images_than_there_are_are_refused(trained: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"--images must be a whole number from 1 to {TEST}; got {TEST + 1}"):
        read(trained / "seed-0", tmp_path / "r.json", data, images=TEST + 1)


def test_the_last_batch_is_read_also_where_it_is_one_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "BATCH", 2)
    shown = list(measuring._in_order(torch.arange(5), torch.arange(5) + 10))
    assert [part.images.tolist() for part in shown] == [[0, 1], [2, 3], [4]]
    assert [part.labels.tolist() for part in shown] == [[10, 11], [12, 13], [14]]


def test_a_signal_ends_it_after_the_network_at_hand(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(measuring.StopRequest):
        def __enter__(self) -> measuring.StopRequest:
            self.number = 15
            return self

    monkeypatch.setattr(measuring, "StopRequest", Asked)
    with pytest.raises(Stopped, match="the same command goes on"):
        read(trained / "seed-0", tmp_path / "r.json", data)


def test_a_record_of_other_settings_is_not_overwritten(trained: Path, data: Path, tmp_path: Path) -> None:
    read(trained / "seed-0", tmp_path / "r.json", data, images=10)
    kept = (tmp_path / "r.json").read_bytes()
    for change in ({"images": 11}, {"images": 10, "refit": True}, {"images": 10, "corruptions": ("fog",)}):
        with pytest.raises(InputError, match=r"r\.json is a record of something else, or of other settings"):
            read(trained / "seed-0", tmp_path / "r.json", data, **change)
    with pytest.raises(InputError, match="other settings"):
        read(trained / "seed-1", tmp_path / "r.json", data, images=10)
    assert (tmp_path / "r.json").read_bytes() == kept


def test_heads_are_fitted_on_training_images_alone(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other test images change no head; other training images do."""
    known = digits()
    noise = np.random.default_rng(0).integers(0, 256, known.test.images.shape, np.uint8)
    other_test = Images(known.train, Split(noise, known.test.labels))
    other_train = Images(Split(known.train.images[::-1].copy(), known.train.labels), known.test)
    found = []
    for i, images in enumerate((known, other_test, other_train)):
        know_digits(monkeypatch, images)
        reader = read(trained / "seed-0", tmp_path / f"{i}.json", data, corruptions=("contrast",), refit=True)
        found.append([reader.heads[name].weight.detach() for name in (AS_TRAINED, *REFIT)])
    for mine, same, other, kept in zip(*found, (True, False, False), strict=True):
        assert torch.equal(mine, same)
        assert torch.equal(mine, other) == kept
    assert not torch.equal(found[0][1], found[0][2])


def test_a_head_fitted_on_corrupted_images_sees_every_pair_once(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def noted(
        images: torch.Tensor, name: str, severity: int, rows: torch.Tensor, photos: object, *, split: str
    ) -> torch.Tensor:
        seen.append((name, severity, rows.tolist(), split))
        return images

    monkeypatch.setattr(measuring, "corrupt", noted)
    images, labels = torch.zeros(190, 3, 32, 32, dtype=torch.uint8), torch.arange(190)
    shown = torch.cat([part.labels for part in measuring._mixed(images, labels, None)])
    assert shown.sort().values.tolist() == list(range(190))
    assert [(name, severity) for name, severity, _, _ in seen] == measuring.PAIRS
    assert all(rows == [i, i + 95] and split == "train" for i, (_, _, rows, split) in enumerate(seen))


def test_a_fitted_head_is_the_best_one(trained: Path, data: Path, tmp_path: Path) -> None:
    """The loss that it minimises is flat there, and lower than before."""
    reader = read(trained / "seed-0", tmp_path / "r.json", data, corruptions=("contrast",))
    labels = torch.from_numpy(digits().train.labels)
    features = reader.features(torch.from_numpy(digits().train.images)).double()
    start = reader.heads[AS_TRAINED]
    fitted = fit_head(features, labels, start)

    def loss(weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        logits = features @ weight.double().T + bias.double()
        return torch.nn.functional.cross_entropy(logits, labels) + 0.5e-4 * weight.double().square().sum()

    weight, bias = (p.detach().double().requires_grad_() for p in (fitted.weight, fitted.bias))
    at_end = loss(weight, bias)
    at_end.backward()
    assert at_end < loss(start.weight, start.bias) - 0.05
    assert weight.grad is not None
    assert weight.grad.abs().max() < 1e-3


def test_a_run_without_an_end_or_with_another_network_is_refused(trained: Path, data: Path, tmp_path: Path) -> None:
    half = shutil.copytree(trained / "seed-0", tmp_path / "half")
    (half / "record.json").unlink()
    with pytest.raises(InputError, match="is not finished: the test split is for finished runs"):
        read(half, tmp_path / "r.json", data)
    changed = shutil.copytree(trained / "seed-0", tmp_path / "changed")
    record = json.loads((changed / "record.json").read_text())
    record["figures"]["checkpoint_sha256"] = "0" * 64
    write_without_digest(changed / "record.json", record)
    with pytest.raises(InputError, match="is not the one that its record is of"):
        read(changed, tmp_path / "r.json", data)


def test_runs_that_learned_other_classes_are_not_read_together(tmp_path: Path) -> None:
    tree = generated(train=12, val=1, size=(32, 32))
    images = as_zip(tree, tmp_path / "a.zip")
    other = as_zip({name.replace("bee", "wasp"): content for name, content in tree.items()}, tmp_path / "b.zip")
    spec = Spec(data="folder", side=32, epochs=1, batch=12)
    runs = [small_run(tmp_path / p.stem, spec, Options("cpu", p, workers=0)) for p in (images, other)]
    with pytest.raises(InputError, match=r"learned the same classes; only some learned bee, wasp$"):
        measure([(run_subject(run), None) for run in runs], Options("cpu", images))


def test_some_images_of_a_tree_are_of_all_its_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = as_zip(generated(train=12, val=2, size=(32, 32)), tmp_path / "a.zip")
    run = small_run(
        tmp_path / "run", Spec(data="folder", side=32, epochs=1, batch=12), Options("cpu", images, workers=0)
    )
    seen: list[list[int]] = []
    whole = measuring.Regenerated

    def noted(split: Split, *more: object) -> object:
        seen.append(split.labels.tolist())
        return whole(split, *more)  # type: ignore[arg-type]  # a device and photos

    monkeypatch.setattr(measuring, "Regenerated", noted)
    wanted = Wanted(corruptions=("contrast",), images=len(CLASSES))
    measure([(run_subject(run), None)], Options("cpu", images), wanted, quiet)
    assert seen == [list(range(len(CLASSES)))] * 2


def test_runs_of_two_data_sets_are_refused(trained: Path, data: Path, tmp_path: Path) -> None:
    runs = [trained / "seed-0", small_run(tmp_path / "run")]
    with pytest.raises(InputError, match="runs that are read together have one data set; got digits-32 and digits"):
        measure([(run_subject(run), None) for run in runs], Options("cpu", data))


def test_severities_are_read_in_order(
    trained: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []
    whole = corrupt

    def noted(images: torch.Tensor, name: str, severity: int, rows: torch.Tensor, photos: object) -> torch.Tensor:
        asked.append((name, severity))
        return whole(images, name, severity, rows, photos)  # type: ignore[arg-type]  # photos, or none

    monkeypatch.setattr("lcrbnn.corrupt.official.corrupt", noted)
    read(trained / "seed-0", tmp_path / "r.json", data, images=5)
    assert asked == [(name, severity) for name in SOME for severity in SEVERITIES]
