"""A split that is read from files: the batches of a held one, from any step on, by any number of processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.data import DATASETS
from lcrbnn.data.tree import Tree, find_tree
from lcrbnn.errors import InputError
from lcrbnn.train import Spec
from lcrbnn.train.augment import normalize
from lcrbnn.train.batches import Batch, Batches, evaluation_batch
from lcrbnn.train.channel import Channel
from lcrbnn.train.feeds import StreamFeed
from lcrbnn.train.pool import Pool
from lcrbnn.train.seeds import derive
from lcrbnn.train.sources import Access, check, decoded, open_splits, open_test, without
from lcrbnn.train.stream import Stream
from tests.data.trees import as_folder, as_tar, as_zip, encoded, generated, smooth
from tests.train.test_crops import pillow_random

CPU = torch.device("cpu")
SIDE, BATCH = 16, 16
ROW = replace(DATASETS["folder"].sized(SIDE, 3), augment="crop-flip")
FILES = generated(train=14, val=4)  # 42 images: two batches and ten more


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return find_tree(as_folder(FILES, tmp_path_factory.mktemp("tree")))


def channel(workers: int = 0, capacity: int = BATCH) -> Channel:
    return Channel(Pool(SIDE, ROW.margin, capacity, workers), CPU)


def stream(tree: Tree, workers: int = 0, rank: int = 0, world: int = 1) -> Stream:
    return Stream(tree.train, ROW, CPU, channel(workers), rank=rank, world=world)


def same(one: Iterator[Batch] | list[Batch], other: Iterator[Batch] | list[Batch]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("augment", ["usual", "none"])
def test_a_streamed_epoch_is_that_of_the_same_images_held(tree: Tree, augment: str) -> None:
    made = stream(tree)
    held = Batches(decoded(tree.train, channel()), ROW, CPU)
    for epoch in range(2):
        same(made.epoch(3, epoch, BATCH, augment, 0, 3), held.epoch(3, epoch, BATCH, augment, 0, 3))
    same(made.plain(25), held.plain(25))
    same(made.raw(7), held.raw(7))
    assert len(made) == len(held) == 42


def test_a_random_part_is_the_one_of_its_place_in_the_epoch(tree: Tree) -> None:
    batches = list(stream(tree).epoch(3, 1, BATCH, "resized-crop", 0, 3))
    order = stream(tree).order(3, 1)
    for place in (0, 15, 16, 41):
        batch, at = batches[place // BATCH], place % BATCH
        row = int(order[place])
        assert int(batch.rows[at]) == row
        assert int(batch.labels[at]) == tree.train.labels[row]
        content = Path(tree.train[row].path).read_bytes()
        wanted = torch.from_numpy(pillow_random(content, SIDE, derive(3, "crop", 1), place).copy()).permute(2, 0, 1)
        made = stream(tree)
        apart = (batch.images[at] - normalize(wanted, made.scale, made.shift)).abs() / made.scale
        assert apart.max() < 1.01  # a level


def test_an_epoch_can_be_entered_at_any_step_with_any_number_of_processes(tree: Tree) -> None:
    augment = "resized-crop"
    whole = list(stream(tree).epoch(0, 2, BATCH, augment, 0, 3))
    assert [len(b.labels) for b in whole] == [16, 16, 10]
    for first in range(3):
        same(stream(tree).epoch(0, 2, BATCH, augment, first, 3), whole[first:])
    made = stream(tree, workers=2)
    with made.channel:
        same(made.epoch(0, 2, BATCH, augment, 0, 3), whole)
        same(made.epoch(0, 2, BATCH, augment, 1, 3), whole[1:])


def test_two_ranks_share_each_batch(tree: Tree) -> None:
    whole = list(stream(tree).epoch(0, 2, BATCH, "resized-crop", 0, 3))
    parts = [stream(tree, rank=r, world=2).epoch(0, 2, BATCH, "resized-crop", 0, 3) for r in range(2)]
    joined = [Batch(*(torch.cat(two) for two in zip(*pair, strict=True))) for pair in zip(*parts, strict=True)]
    same(joined, whole)


def test_folder_zip_and_tar_give_the_same_batches(tree: Tree, tmp_path: Path) -> None:
    wanted = list(stream(tree).epoch(0, 0, BATCH, "resized-crop", 0, 3))
    for path in (as_zip(FILES, tmp_path / "a.zip"), as_tar(FILES, tmp_path / "a.tar")):
        same(stream(find_tree(path)).epoch(0, 0, BATCH, "resized-crop", 0, 3), wanted)


def test_a_captured_steps_buffers_hold_the_batch_of_the_step(tree: Tree) -> None:
    spec = Spec(data="folder", side=SIDE, classes=3, batch=BATCH, augment="crop-flip", seed=3)
    feed = StreamFeed(spec, stream(tree))
    feed.begin(1, 1, 2)
    feed.load()
    images, labels = feed.pick(*torch.zeros(2, 1, dtype=torch.int64))
    (wanted,) = stream(tree).epoch(3, 1, BATCH, "crop-flip", 1, 2)
    assert torch.equal(images, wanted.images)
    assert torch.equal(labels, wanted.labels)
    feed.show_sample()
    images, labels = feed.pick(*torch.zeros(2, 1, dtype=torch.int64))
    shown = stream(tree).sample(BATCH)
    assert torch.equal(images, normalize(shown.images, feed.train.scale, feed.train.shift))
    assert torch.equal(labels, shown.labels)
    assert labels.unique().tolist() == [0, 1, 2]


def test_waiting_for_images_is_counted(tree: Tree) -> None:
    made = stream(tree)
    assert made.waited == 0
    list(made.epoch(0, 0, BATCH, "none", 0, 3))
    assert 0 < made.waited < 60
    assert Batches(decoded(tree.train, channel()), ROW, CPU).waited == 0


def test_a_broken_image_ends_it_with_its_name_or_is_left_out(tmp_path: Path) -> None:
    bad = {"train/ant/003.JPEG": b"", "train/cat/001.JPEG": FILES["train/cat/001.JPEG"][:300]}
    tree = find_tree(as_folder({**FILES, **bad}, tmp_path))
    with pytest.raises(InputError, match=r"JPEG is broken: .*; --skip-broken leaves such images out, and lists them"):
        list(stream(tree).epoch(0, 0, BATCH, "none", 0, 3))
    with pytest.raises(InputError, match=r"003.JPEG is broken: it is empty"):
        decoded(tree.train, channel())
    found = check(tree.train, channel())
    assert [Path(name).name for name in found] == ["003.JPEG", "001.JPEG"]
    good = without(tree.train, found)
    assert len(good) == 40
    assert check(good, channel()) == {}
    with pytest.raises(InputError, match="all 42 images are broken"):
        without(tree.train, {tree.train.inside(i): "bad" for i in range(42)})


# -- what a run reads ------------------------------------------------------------------------------------------------

FOLDER = Spec(data="folder", side=SIDE, classes=3, batch=BATCH, augment="crop-flip")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return as_folder({**FILES, "val/bee/bad.png": b"bad"}, tmp_path)


def test_a_small_set_is_held_and_the_same_as_streamed(top: Path) -> None:
    with ExitStack() as held:
        found = {cache: open_splits([FOLDER], Access(top, 0, cache), CPU, held)[0] for cache in ("auto", "yes", "no")}
    assert [type(s.train).__name__ for s in found.values()] == ["Batches", "Batches", "Stream"]
    assert [s.about["images"] for s in found.values()] == ["cached", "cached", "streamed"]
    assert (len(found["no"].train), len(found["no"].valid or ())) == (38, 4)
    streamed, kept = (found[cache].train.epoch(0, 0, BATCH, "crop-flip", 0, 3) for cache in ("no", "auto"))
    same(streamed, kept)
    same(found["no"].valid.plain(), found["auto"].valid.plain())  # type: ignore[union-attr]  # both are there


@pytest.mark.parametrize(
    ("change", "reading", "said"),
    [
        ({"augment": "resized-crop"}, {"cache": "yes"}, "images cannot be cached"),
        (
            {"side": 4096, "augment": "none"},
            {"cache": "yes"},
            "pixels take [0-9.]+ GB on the device, and .* GB are free: they cannot be cached",
        ),
        ({"classes": 4}, {}, "has 3 classes in train, and folder has 4"),
        ({"data": "tiny-imagenet", "classes": 0}, {}, "has 3 classes in train, and tiny-imagenet has 200"),
        ({"data": "tiny-imagenet"}, {}, "tiny-imagenet has 200 classes; got classes 3"),
        ({"data": "digits", "classes": 0}, {}, "side is for images that are read from files; digits has its own"),
        ({"data": "digits", "classes": 0, "side": 0, "augment": "resized-crop"}, {}, "digits is held whole"),
        ({}, {"workers": -2}, "workers must be a whole number from -1"),
        ({}, {"cache": "maybe"}, "no kind of cache is called 'maybe'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    change: dict[str, object], reading: dict[str, object], said: str, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lcrbnn.train.sources._free", lambda device: 10**9)
    with ExitStack() as held, pytest.raises(InputError, match=said):
        open_splits([FOLDER.but(**change)], Access(top, **{"workers": 0, **reading}), CPU, held)  # type: ignore[arg-type]  # wrong on purpose


def test_the_test_images_are_read_as_they_are_and_broken_ones_are_told(top: Path) -> None:
    with ExitStack() as held:
        source, broken = open_test(FOLDER.but(skip_broken=True), Access(top, 0), CPU, held)
        assert len(source) == sum(len(b.labels) for b in source.plain()) == 12
        assert [Path(name).name for name in broken] == ["bad.png"]
        source, broken = open_test(FOLDER, Access(top, 0), CPU, held)
        assert (len(source), broken) == (13, {})
        with pytest.raises(InputError, match=r"bad.png is broken"):
            list(source.plain())


def test_large_images_are_evaluated_in_smaller_batches() -> None:
    assert [evaluation_batch(side) for side in (8, 32, 64, 126, 224, 5000)] == [1000, 1000, 1000, 1000, 318, 1]


def test_runs_side_by_side_have_processes_of_their_own(top: Path) -> None:
    with ExitStack() as held:
        two = open_splits([FOLDER, FOLDER.but(seed=1, batch=8)], Access(top, 0, "no"), CPU, held)
        mine, theirs = (s.train.epoch(s_, 0, 8, "usual", 0, 4) for s_, s in enumerate(two))
        mixed = [(next(mine).rows, next(theirs).rows) for _ in range(4)]
        assert torch.equal(torch.cat([a for a, _ in mixed]), two[0].train.order(0, 0)[:32])
        assert torch.equal(torch.cat([b for _, b in mixed]), two[0].train.order(1, 0)[:32])


def test_the_number_of_processes_is_that_of_the_cores_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert [Access().crew(), Access().crew(4), Access(workers=3).crew(4)] == [15, 3, 3]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Access().crew() == 3
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert Access().crew() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    with pytest.raises(InputError, match="the launcher says LOCAL_WORLD_SIZE='many', which is no number"):
        Access().crew()


def test_odd_images_reach_the_batch(tmp_path: Path) -> None:
    grey = encoded(smooth(SIDE, SIDE, 3)[:, :, 0], "PNG")
    tree = find_tree(as_folder({**FILES, "train/ant/000.png": grey}, tmp_path))
    made = Stream(tree.train, replace(ROW, margin=1.0), CPU, Channel(Pool(SIDE, 1.0, BATCH, 0), CPU))
    at = next(i for i in range(len(tree.train)) if tree.train[i].name.endswith("png"))
    image = torch.cat([b.images for b in made.raw(BATCH)])[at]
    assert np.array_equal(image.numpy(), np.stack([smooth(SIDE, SIDE, 3)[:, :, 0]] * 3))


def test_what_is_looked_at_stands_for_all_classes_streamed_or_held(tree: Tree) -> None:
    """A tree lies class by class: its first images are of one class alone."""
    held, read = Batches(decoded(tree.train, channel()), ROW, CPU), stream(tree)
    for source in (held, read):
        shown = source.sample(6)
        assert shown.rows.tolist() == [len(source) * i // 6 for i in range(6)]
        assert shown.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert torch.equal(shown.images, held.images[shown.rows])
    digits = DATASETS["digits"]
    assert Batches(digits.load(Path()).train, digits, CPU).sample(3).rows.tolist() == [0, 1, 2]
