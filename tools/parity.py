"""Compare every corruption, number by number, with the outputs of the published generators; a record of it.

    python -m tools.parity FOLDER --frost data/frost [--record results/corrupt/parity.json]

FOLDER holds corruptions-32.npz, corruptions-64.npz, corruptions-224.npz: images, and what make_cifar_c.py,
make_tinyimagenet_c.py and make_imagenet_c.py (hendrycks/robustness) made of them from known seeds. The same draws are
taken here, so that only the arithmetic is compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.corrupt.constants import SIDES
from lcrbnn.corrupt.photos import Photos
from lcrbnn.corrupt.table import CORRUPTIONS
from lcrbnn.runs.record import write_record

Rng = np.random.RandomState


class Case(NamedTuple):
    """One image under one corruption: what it was, what the published code made of it, what ours does."""

    name: str
    severity: int
    image: int
    made: np.ndarray
    drawn: bool  # whether exactly as many numbers were drawn


def _first(images: np.ndarray) -> Tensor:
    """Channel last -> a batch of one, channel first."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 0)))[None]


def _normal(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    return (_first(rng.normal(size=(*image.shape[1:], 3), scale=c)),)


def _poisson(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    return (_first(rng.poisson(np.moveaxis(image, 0, -1) / 255.0 * c)),)


def _moves(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    _, reach, times = c
    side = image.shape[-1]
    inner, moves = side - 2 * reach, np.zeros((1, times, 2, side, side), np.int64)
    for step in range(times):  # drawn from the last pixel to the first
        drawn = rng.randint(-reach, reach, size=(inner, inner, 2))[::-1, ::-1]
        moves[0, step, :, reach + 1 : side - reach + 1, reach + 1 : side - reach + 1] = np.moveaxis(drawn, -1, 0)
    return (torch.from_numpy(moves),)


def _angle(low: float, high: float) -> Callable[[Rng], Tensor]:
    return lambda rng: torch.tensor([rng.uniform(low, high)], dtype=torch.float64)


def _field(rng: Rng, image: np.ndarray, c: Any) -> Tensor:
    return torch.from_numpy(rng.normal(size=image.shape[1:], loc=c[0], scale=c[1]))[None]


def _plasma(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    levels = (image.shape[-1] - 1).bit_length()
    return ([torch.from_numpy(rng.random_sample((1, 3, 1 << level, 1 << level))) for level in range(levels)],)


def _elastic(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    points = rng.uniform(-c[2], c[2], size=(1, 3, 2))
    return torch.from_numpy(points), torch.from_numpy(rng.uniform(-1, 1, size=(1, 2, *image.shape[1:])))


# How the published code draws, for those corruptions that draw from NumPy's global generator.
REPLAY: dict[str, Callable[[Rng, np.ndarray, Any], tuple[Any, ...]]] = {
    "gaussian_noise": _normal,
    "speckle_noise": _normal,
    "shot_noise": _poisson,
    "glass_blur": _moves,
    "motion_blur": lambda rng, image, c: (_angle(-45, 45)(rng),),
    "snow": lambda rng, image, c: (_field(rng, image, c), _angle(-135, -45)(rng)),
    "fog": _plasma,
    "elastic_transform": _elastic,
    "spatter": lambda rng, image, c: (_field(rng, image, c),),
}


def _impulses(seed: int, image: np.ndarray, amount: float) -> tuple[Any, ...]:
    """scikit-image draws from a generator of its own."""
    rng, shape = np.random.default_rng(seed), (*image.shape[1:], 3)
    hit, salt = rng.random(shape) <= amount, rng.random(shape) <= 0.5
    return (_first(np.where(hit, np.where(salt, 1, -1), 0).astype(np.int8)),)


def _crop(rng: Rng, side: int, photos: Photos) -> tuple[Any, ...]:
    which = rng.randint(photos.count)
    h, w = photos.sizes(side)[which].tolist()
    corner = [rng.randint(0, h - side), rng.randint(0, w - side)]
    return (photos.crops(side, torch.tensor([which]), torch.tensor([corner])),)


def seed_of(name: str, severity: int, image: int) -> int:
    """What the published code's generator was seeded with."""
    return 1000 * list(CORRUPTIONS).index(name) + 10 * severity + image


def replayed(
    name: str, severity: int, index: int, image: np.ndarray, photos: Photos | None
) -> tuple[np.ndarray, float]:
    """Ours with the published code's draws, uint8 (3, h, w); and what the generator says next."""
    row, side, seed = CORRUPTIONS[name], image.shape[-1], seed_of(name, severity, index)
    constant, rng = row.constant(side, severity), Rng(seed)
    if name == "impulse_noise":
        draws = _impulses(seed, image, constant)
    elif name == "frost":
        assert photos is not None
        draws = _crop(rng, side, photos)
    else:
        draws = REPLAY[name](rng, image, constant) if name in REPLAY else ()
    made = row.apply(torch.from_numpy(image)[None], constant, *draws)[0].numpy()
    return made, rng.random_sample()


def cases(golden: Mapping[str, np.ndarray], photos: Photos | None) -> Iterator[tuple[Case, np.ndarray]]:
    """All that a file has, and what the published code made; frost only with its photos."""
    for place, name in enumerate(CORRUPTIONS):
        if name == "frost" and photos is None:
            continue
        for s, severity in enumerate(golden["severities"].tolist()):
            for m, image in enumerate(golden["inputs"]):
                made, following = replayed(name, severity, m, image, photos)
                drawn = following == golden["rng_next"][place, s, m]
                yield Case(name, severity, m, made, bool(drawn)), golden[f"out_{name}"][s, m]


def compare(golden: Mapping[str, np.ndarray], photos: Photos | None) -> dict[str, dict[str, Any]]:
    """For each corruption: values compared, how many differ, the largest difference, whether draws agree."""
    found: dict[str, dict[str, Any]] = {}
    for case, wanted in cases(golden, photos):
        apart = np.abs(case.made.astype(int) - wanted.astype(int))
        row = found.setdefault(case.name, {"values": 0, "differ": 0, "largest": 0, "same_draws": True})
        row["values"] += apart.size
        row["differ"] += int((apart > 0).sum())
        row["largest"] = max(row["largest"], int(apart.max()))
        row["same_draws"] &= case.drawn
    return found


def main() -> None:
    """Compare, print a table, write a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frost", type=Path, help="folder of the photos; without, frost is left out")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    photos = None if args.frost is None else Photos(args.frost)
    figures = {}
    for side in SIDES:
        with np.load(args.folder / f"corruptions-{side}.npz") as golden:
            figures[str(side)] = compare(golden, photos)
        for name, row in figures[str(side)].items():
            print(f"{side:>4} {name:<18} {row['differ']:>6} of {row['values']:>9,} differ, by {row['largest']} at most")
    if args.record:
        write_record(args.record, "parity", {"sides": list(SIDES), "frost": photos is not None}, figures)


if __name__ == "__main__":
    main()
