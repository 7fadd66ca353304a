from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lcrbnn.train import Spec
from tests.corrupt.helpers import NAME, know_digits, put_photos
from tests.train.helpers import OFTEN, small_run

SPEC = Spec(data=NAME, images="all", model="resnet8-double", epochs=2, batch=95, augment="none")


@pytest.fixture(scope="package")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, seed-0 and seed-1, on enlarged digits; nobody writes there."""
    folder = tmp_path_factory.mktemp("trained") / "plain"
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        know_digits(patch)
        for seed in (0, 1):
            small_run(folder / f"seed-{seed}", SPEC.but(seed=seed), OFTEN)
    return folder


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder with photos of frost, and the enlarged digits known."""
    know_digits(monkeypatch)
    put_photos(tmp_path / "data" / "frost")
    return tmp_path / "data"
