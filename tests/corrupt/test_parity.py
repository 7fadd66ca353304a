"""Every corruption against the outputs of the published generators, from the same draws (tools/parity.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.corrupt.constants import CONSTANTS
from lcrbnn.corrupt.table import CORRUPTIONS
from lcrbnn.corrupt.weather import plasma
from lcrbnn.runs.record import read_record
from tools.parity import compare, replayed, seed_of

GOLDEN = Path(__file__).parents[1] / "golden"
# Frost needs photos whose origin is not stated and that are not here: tools/parity.py, results/corrupt/parity.json.
HERE = [name for name in CORRUPTIONS if name != "frost"]
# OpenCV filters with a kernel as large as this one by a Fourier transform: one value of 150,528 differs, by 1.
TRANSFORMED = ("defocus_blur", 224, 3)


def golden(name: str) -> Mapping[str, np.ndarray]:
    with np.load(GOLDEN / name) as stored:
        return dict(stored)


@pytest.fixture(scope="module")
def small() -> Mapping[str, np.ndarray]:
    return golden("corruptions-32.npz")


def test_the_published_set_is_ours_in_the_same_order(small: Mapping[str, np.ndarray]) -> None:
    assert small["names"].tolist() == list(CORRUPTIONS)
    for place, name in enumerate(CORRUPTIONS):
        seeds = [[seed_of(name, severity, image) for image in range(3)] for severity in range(1, 6)]
        assert small["seeds"][place].tolist() == seeds


def test_every_value_at_32_pixels_is_the_published_one(small: Mapping[str, np.ndarray]) -> None:
    found = compare(small, None)
    assert list(found) == HERE
    assert {name: (row["differ"], row["same_draws"]) for name, row in found.items()} == dict.fromkeys(HERE, (0, True))


@pytest.mark.parametrize("side", [64, 224])
def test_every_value_at_64_and_224_pixels_is_the_published_one(side: int) -> None:
    stored = golden("corruptions-digests.npz")
    differ = []
    for name in HERE:
        place = list(CORRUPTIONS).index(name)
        for s, severity in enumerate(stored[f"severities_{side}"].tolist()):
            for m, image in enumerate(stored[f"inputs_{side}"]):
                made, following = replayed(name, severity, m, image, None)
                assert following == stored[f"rng_next_{side}"][place, s, m], name
                digest = hashlib.sha256(made.tobytes()).digest()
                if digest != stored[f"sha256_{side}"][place, s, m].tobytes():
                    differ.append((name, side, severity))
    assert differ == [TRANSFORMED] * (side == 224)


def test_plasma_is_the_published_one(small: Mapping[str, np.ndarray]) -> None:
    for s, wanted in enumerate(small["fog_plasma"]):
        rng = np.random.RandomState(seed_of("fog", s + 1, 0))
        draws = [torch.from_numpy(rng.random_sample((1, 3, 1 << k, 1 << k))) for k in range(5)]
        assert np.abs(plasma(draws, CONSTANTS["fog"][32][s][1])[0].numpy() - wanted).max() < 1e-15


def test_the_documents_have_the_figures_of_the_record() -> None:
    root = Path(__file__).parents[2]
    figures = read_record(root / "results" / "corrupt" / "parity.json")["figures"]
    text = (root / "docs" / "corruptions.md").read_text()
    lines = text.partition("### Against the published generators")[2].partition("\n## ")[0].splitlines()
    rows = {
        cells[0]: cells
        for line in lines
        if (cells := [c.strip() for c in line.strip("|").split("|")])[0] in CORRUPTIONS
    }
    assert list(rows) == list(CORRUPTIONS)
    for name, cells in rows.items():
        seen = [figures[side][name] for side in ("32", "64", "224")]
        assert cells[2:] == [f"{row['differ']} of {row['values']:,}" for row in seen], name
        assert all(row["same_draws"] and row["largest"] <= (cells[1] == "one level") for row in seen), name
