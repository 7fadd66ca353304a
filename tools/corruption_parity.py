"""Compare every corruption, value by value, with the outputs of the published generators, and write a record.

    python -m tools.corruption_parity FOLDER --frost data/frost [--record paper/results/corrupt/parity.json]

FOLDER contains corruptions-32.npz, corruptions-64.npz and corruptions-224.npz: images, and the outputs of
make_cifar_c.py, make_tinyimagenet_c.py and make_imagenet_c.py (hendrycks/robustness) for known seeds. The corruptions
use the same random draws here, so that only the arithmetic is compared.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.corruption_registry import CORRUPTIONS
from lcrbnn.evaluation.corruptions.frost_photos import FrostPhotos
from lcrbnn.evaluation.corruptions.severities import IMAGE_SIDES
from lcrbnn.runs.record import write_record

Rng = np.random.RandomState


class Case(NamedTuple):
    """One image that this package corrupts with the random draws of the published code."""

    name: str
    severity: int
    image: int
    corrupted: np.ndarray
    has_same_draws: bool  # whether this package and the published code have drawn equally many random numbers


def _to_batch(images: np.ndarray) -> Tensor:
    """Return an image with channels last as a batch of one image with channels first."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 0)))[None]


def _draw_normal(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    return (_to_batch(rng.normal(size=(*image.shape[1:], 3), scale=c)),)


def _draw_poisson(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    return (_to_batch(rng.poisson(np.moveaxis(image, 0, -1) / 255.0 * c)),)


def _draw_moves(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    _, max_offset, num_passes = c
    image_size = image.shape[-1]
    inner, moves = image_size - 2 * max_offset, np.zeros((1, num_passes, 2, image_size, image_size), np.int64)
    for step in range(num_passes):  # the published code makes the draws from the last pixel to the first
        offsets = rng.randint(-max_offset, max_offset, size=(inner, inner, 2))[::-1, ::-1]
        moves[
            0, step, :, max_offset + 1 : image_size - max_offset + 1, max_offset + 1 : image_size - max_offset + 1
        ] = np.moveaxis(offsets, -1, 0)
    return (torch.from_numpy(moves),)


def _angle_drawer(low: float, high: float) -> Callable[[Rng], Tensor]:
    return lambda rng: torch.tensor([rng.uniform(low, high)], dtype=torch.float64)


def _draw_field(rng: Rng, image: np.ndarray, c: Any) -> Tensor:
    return torch.from_numpy(rng.normal(size=image.shape[1:], loc=c[0], scale=c[1]))[None]


def _draw_plasma(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    levels = (image.shape[-1] - 1).bit_length()
    return ([torch.from_numpy(rng.random_sample((1, 3, 1 << level, 1 << level))) for level in range(levels)],)


def _draw_elastic(rng: Rng, image: np.ndarray, c: Any) -> tuple[Any, ...]:
    points = rng.uniform(-c[2], c[2], size=(1, 3, 2))
    return torch.from_numpy(points), torch.from_numpy(rng.uniform(-1, 1, size=(1, 2, *image.shape[1:])))


# Functions that repeat the draws of the published code, for corruptions that use NumPy's global generator.
DRAWERS: dict[str, Callable[[Rng, np.ndarray, Any], tuple[Any, ...]]] = {
    "gaussian_noise": _draw_normal,
    "speckle_noise": _draw_normal,
    "shot_noise": _draw_poisson,
    "glass_blur": _draw_moves,
    "motion_blur": lambda rng, image, c: (_angle_drawer(-45, 45)(rng),),
    "snow": lambda rng, image, c: (_draw_field(rng, image, c), _angle_drawer(-135, -45)(rng)),
    "fog": _draw_plasma,
    "elastic_transform": _draw_elastic,
    "spatter": lambda rng, image, c: (_draw_field(rng, image, c),),
}


def _draw_impulses(seed: int, image: np.ndarray, amount: float) -> tuple[Any, ...]:
    """Return the impulses of scikit-image, which has a separate random generator."""
    rng, shape = np.random.default_rng(seed), (*image.shape[1:], 3)
    hit, salt = rng.random(shape) <= amount, rng.random(shape) <= 0.5
    return (_to_batch(np.where(hit, np.where(salt, 1, -1), 0).astype(np.int8)),)


def _draw_crop(rng: Rng, side: int, photos: FrostPhotos) -> tuple[Any, ...]:
    photo_index = rng.randint(photos.count)
    h, w = photos.get_sizes(side)[photo_index].tolist()
    corner = [rng.randint(0, h - side), rng.randint(0, w - side)]
    return (photos.crop_photos(side, torch.tensor([photo_index]), torch.tensor([corner])),)


def compute_seed(name: str, severity: int, image: int) -> int:
    """Return the seed used for the published code."""
    return 1000 * list(CORRUPTIONS).index(name) + 10 * severity + image


def corrupt_with_published_draws(
    name: str, severity: int, index: int, image: np.ndarray, photos: FrostPhotos | None
) -> tuple[np.ndarray, float]:
    """Return the image corrupted with the published draws, uint8 (3, h, w).

    Also return the next value of the random generator, which shows whether all draws agree.
    """
    corruption, image_size, seed = CORRUPTIONS[name], image.shape[-1], compute_seed(name, severity, index)
    parameters, rng = corruption.get_parameters(image_size, severity), Rng(seed)
    if name == "impulse_noise":
        draws = _draw_impulses(seed, image, parameters)
    elif name == "frost":
        assert photos is not None
        draws = _draw_crop(rng, image_size, photos)
    else:
        draws = DRAWERS[name](rng, image, parameters) if name in DRAWERS else ()
    corrupted = corruption.apply(torch.from_numpy(image)[None], parameters, *draws)[0].numpy()
    return corrupted, rng.random_sample()


def iterate_cases(golden: Mapping[str, np.ndarray], photos: FrostPhotos | None) -> Iterator[tuple[Case, np.ndarray]]:
    """Yield each case of a file, with the output of the published code. The corruption frost needs its photos."""
    for index, name in enumerate(CORRUPTIONS):
        if name == "frost" and photos is None:
            continue
        for s, severity in enumerate(golden["severities"].tolist()):
            for m, image in enumerate(golden["inputs"]):
                corrupted, next_draw = corrupt_with_published_draws(name, severity, m, image, photos)
                has_same_draws = next_draw == golden["rng_next"][index, s, m]
                yield Case(name, severity, m, corrupted, bool(has_same_draws)), golden[f"out_{name}"][s, m]


def compare(golden: Mapping[str, np.ndarray], photos: FrostPhotos | None) -> dict[str, dict[str, Any]]:
    """Return, by corruption, the numbers of compared and differing values, largest difference and equality of draws."""
    rows: dict[str, dict[str, Any]] = {}
    for case, expected in iterate_cases(golden, photos):
        differences = np.abs(case.corrupted.astype(int) - expected.astype(int))
        row = rows.setdefault(case.name, {"values": 0, "differ": 0, "largest": 0, "same_draws": True})
        row["values"] += differences.size
        row["differ"] += int((differences > 0).sum())
        row["largest"] = max(row["largest"], int(differences.max()))
        row["same_draws"] &= case.has_same_draws
    return rows


def main() -> None:
    """Compare all corruptions, print a table and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--frost", type=Path, help="folder of the frost photos (default: frost is not compared)")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    photos = None if args.frost is None else FrostPhotos(args.frost)
    figures = {}
    for image_size in IMAGE_SIDES:
        with np.load(args.folder / f"corruptions-{image_size}.npz") as golden:
            figures[str(image_size)] = compare(golden, photos)
        for name, row in figures[str(image_size)].items():
            differing = f"{row['differ']:>6} of {row['values']:>9,} differ"
            print(f"{image_size:>4} {name:<18} {differing}, by {row['largest']} at most")
    if args.record:
        write_record(args.record, "parity", {"sides": list(IMAGE_SIDES), "frost": photos is not None}, figures)


if __name__ == "__main__":
    main()
