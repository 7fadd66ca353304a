"""Small trees of generated images, in every form in which the trainer takes them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")
Tree = dict[str, bytes]  # path from the top: content


def smooth(width: int, height: int, seed: int, brightness: int = 128) -> np.ndarray:
    """(height, width, 3): noise with the slopes of a photo rather than of snow."""
    coarse = np.random.default_rng(seed).integers(-90, 90, (max(2, height // 8), max(2, width // 8), 3))
    picture = Image.fromarray(np.clip(coarse + brightness, 0, 255).astype(np.uint8))
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels: np.ndarray | Image.Image, kind: str = "JPEG", **how: object) -> bytes:
    held = io.BytesIO()
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(held, kind, **how)
    return held.getvalue()


def generated(train: int = 8, val: int = 3, size: tuple[int, int] = (40, 30)) -> Tree:
    """So many images a class; a class is as bright as its number, so there is something to learn."""
    tree = {}
    for split, count in (("train", train), ("val", val)):
        for number, name in enumerate(CLASSES):
            for i in range(count):
                pixels = smooth(*size, seed=1000 * number + i + 500 * (split == "val"), brightness=60 + 60 * number)
                tree[f"{split}/{name}/{i:03d}.JPEG"] = encoded(pixels, quality=90)
    return tree


def as_folder(tree: Tree, where: Path) -> Path:
    for name, content in tree.items():
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_bytes(content)
    return where


def as_zip(tree: Tree, path: Path, deflated: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        for name, content in tree.items():
            archive.writestr(name, content)
    return path


def as_tar(tree: Tree, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in tree.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def under(tree: Tree, split: str, *, keep: bool = True) -> Tree:
    """One split of a tree; without `keep`, its names begin with the class."""
    return {n if keep else n.removeprefix(f"{split}/"): c for n, c in tree.items() if n.startswith(f"{split}/")}
