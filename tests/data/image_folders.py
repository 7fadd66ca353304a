"""Helpers that write small image folders of generated images as folders, zip and tar archives."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")
FolderFiles = dict[str, bytes]  # path in the image folder: content


def make_smooth_image(width: int, height: int, seed: int, brightness: int = 128) -> np.ndarray:
    """Return an image (height, width, 3) of smooth noise, which compresses like a photo."""
    coarse = np.random.default_rng(seed).integers(-90, 90, (max(2, height // 8), max(2, width // 8), 3))
    image = Image.fromarray(np.clip(coarse + brightness, 0, 255).astype(np.uint8))
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def encode_image(pixels: np.ndarray | Image.Image, image_format: str = "JPEG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


def make_image_files(train: int = 8, val: int = 3, size: tuple[int, int] = (40, 30)) -> FolderFiles:
    """Return the files of an image folder with so many images per class. The brightness depends on the class."""
    files = {}
    for split, count in (("train", train), ("val", val)):
        for class_number, class_name in enumerate(CLASSES):
            for i in range(count):
                pixels = make_smooth_image(
                    *size, seed=1000 * class_number + i + 500 * (split == "val"), brightness=60 + 60 * class_number
                )
                files[f"{split}/{class_name}/{i:03d}.JPEG"] = encode_image(pixels, quality=90)
    return files


def write_folder(files: FolderFiles, folder: Path) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def write_zip(files: FolderFiles, path: Path, deflated: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(files: FolderFiles, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def select_split(files: FolderFiles, split: str, *, keep_split_folder: bool = True) -> FolderFiles:
    """Return the files of one split. Without `keep_split_folder`, their paths start with the class."""
    return {
        n if keep_split_folder else n.removeprefix(f"{split}/"): c
        for n, c in files.items()
        if n.startswith(f"{split}/")
    }


FILES = make_image_files(train=4, val=2)
TINY_IMAGENET_LABELS = "".join(f"val_{i}.JPEG\t{CLASSES[i // 2]}\t0\t32\t44\t62\n" for i in range(6))
KAGGLE_LABELS = "ImageId,PredictionString\n" + "".join(f"val_{i},{CLASSES[i // 2]} 85 1 499 272 \n" for i in range(6))


def make_flat_val(
    labels: str, label_file: str = "val/val_annotations.txt", val_folder: str = "val/images"
) -> FolderFiles:
    """Return FILES with the val images in one folder and a label file with this content."""
    val_files = {f"{val_folder}/val_{i}.JPEG": c for i, c in enumerate(select_split(FILES, "val").values())}
    return {**select_split(FILES, "train"), **val_files, label_file: labels.encode()}


def encode_tar(files: FolderFiles, scratch_folder: Path) -> bytes:
    """Return the bytes of a tar archive of these files."""
    path = write_tar(files, scratch_folder / "scratch.tar")
    content = path.read_bytes()
    path.unlink()
    return content


def encode_class_archive(class_name: str, scratch_folder: Path) -> bytes:
    """Return a tar archive of the training images of one class, without folders."""
    train = select_split(FILES, "train", keep_split_folder=False)
    return encode_tar(select_split(train, class_name, keep_split_folder=False), scratch_folder)
