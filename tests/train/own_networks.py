"""Files with networks of a user, and small class folders, for the tests of FILE.py:FUNCTION."""

from __future__ import annotations

from pathlib import Path

from tests.data.image_folders import CLASSES, FolderFiles, encode_image, make_smooth_image, write_folder

NETWORK = """\
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.hardtanh(self.norm(self.conv(x)))


def make_model(num_classes, in_channels=3):
    return nn.Sequential(
        nn.Conv2d(in_channels, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.Hardtanh(),
        Block(8, 16),
        Block(16, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


def make_digits_model():
    return make_model(10, 1)


def make_binary_model(num_classes):
    from lcrbnn import binarize

    return binarize(make_model(num_classes), "bnn")


class Net(nn.Module):
    def __init__(self, image_size, num_classes):
        super().__init__()
        self.layer = nn.Linear(3 * image_size**2, num_classes)

    def forward(self, x):
        return self.layer(x.flatten(1))
"""


def write_network(folder: Path, text: str = NETWORK, name: str = "my_net.py") -> Path:
    """Write a network file and return its path."""
    path = folder / name
    path.write_text(text)
    return path


def make_pictures(count: int = 30) -> FolderFiles:
    """Return so many pictures of each of three classes, which differ in brightness."""
    return {
        f"{class_name}/{i:03d}.png": encode_image(
            make_smooth_image(24, 20, seed=1000 * number + i, brightness=60 + 60 * number), "PNG"
        )
        for number, class_name in enumerate(CLASSES)
        for i in range(count)
    }


def write_pictures(folder: Path) -> Path:
    """Write 90 pictures of three classes and return their folder."""
    return write_folder(make_pictures(), folder)
