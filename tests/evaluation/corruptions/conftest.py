from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lcrbnn.train.setup.spec import TrainSpec
from tests.evaluation.corruptions.helpers import DATASET_NAME, register_enlarged_digits, write_frost_photos
from tests.train.helpers import SAVE_EVERY_STEP, train_small_run

SPEC = TrainSpec(
    dataset=DATASET_NAME,
    train_split="train+valid",
    model="resnet8-double",
    epochs=2,
    batch_size=95,
    augmentation="none",
)


@pytest.fixture(scope="package")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of two finished runs on enlarged digits, seed-0 and seed-1; tests must not change it."""
    folder = tmp_path_factory.mktemp("trained") / "plain"
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        register_enlarged_digits(patch)
        for seed in (0, 1):
            train_small_run(folder / f"seed-{seed}", SPEC.replace(seed=seed), SAVE_EVERY_STEP)
    return folder


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Data folder with frost photos; the enlarged digits are registered as a data set."""
    register_enlarged_digits(monkeypatch)
    write_frost_photos(tmp_path / "data" / "frost")
    return tmp_path / "data"
