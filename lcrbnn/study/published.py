"""PUBLISHED: the accuracy that a method's own authors have, to stand beside ours; network and setting with it."""

from __future__ import annotations

from typing import NamedTuple

from lcrbnn.study.cells import NONE

IMAGENET = "ImageNet, ResNet-18"


class Published(NamedTuple):
    """Top-1 in percent of a network, by this package's name where it is one of them."""

    top1: float
    network: str
    bits: str = "1/1"
    about: str = ""  # what else is not ours: epochs, blocks, where the figure is printed


# Of what has no figure of its authors for a ResNet on CIFAR-10, the nearest that there is. "in Table 1", "in Table 2":
# as the paper on retention prints it. The epochs are theirs where they are known and not 400.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "bnn": (Published(89.85, "CIFAR-10, its own network", about="not checked against its source"),),
    "xnor": (Published(51.2, IMAGENET, about="in Table 1"),),
    "bwn": (Published(60.8, IMAGENET, "1/32", "in Table 1"),),
    "xnor++": (Published(57.1, IMAGENET, about="in Table 1"),),
    "dorefa": (
        Published(79.3, "resnet20", about="in Table 2"),
        Published(90.0, "resnet20-relu", "1/32", "in Table 2"),
    ),
    "bireal": (Published(56.4, IMAGENET),),
    "irnet": (
        Published(86.5, "resnet20-double"),
        Published(91.5, "resnet18"),
        Published(90.8, "resnet20-relu", "1/32"),
    ),
    "rbnn": (Published(87.8, "resnet20-double", about="1000 epochs"),),
    "reactnet": (Published(65.9, IMAGENET),),
    "abc-net": (Published(42.7, IMAGENET, about="one base each, in Table 1"),),
    "bnn+": (Published(53.0, IMAGENET, about="in Table 1"),),
    "proxybnn": (Published(58.7, IMAGENET, about="in Table 1"),),
    "dsq": (Published(84.1, "resnet20"), Published(90.2, "resnet20-relu", "1/32")),
    "lns": (
        Published(85.7, "resnet20", about="in Table 2"),
        Published(90.8, "resnet20-relu", "1/32", "in Table 2"),
    ),
    "slb": (Published(85.5, "resnet20"), Published(90.6, "resnet20-relu", "1/32")),
    "rad": (Published(90.5, "resnet18", about="in Table 2"),),
    "hwgq": (
        Published(61.3, IMAGENET, "1/32", "in Table 1"),
        Published(59.6, IMAGENET, "1/2", "not checked against its source"),
    ),
    "sq-bwn": (Published(58.4, IMAGENET, "1/32", "in Table 1"),),
    "sq-twn": (Published(63.8, IMAGENET, "1/32", "ternary, in Table 1"),),
    "bwnh": (Published(64.3, IMAGENET, "1/32", "in Table 1"),),
    "recu": (Published(87.5, "resnet20-double-pool", about="600 epochs"),),
    "siman": (Published(87.4, "resnet20-double-prelu"),),
    "adabin": (Published(88.1, "resnet20-double-maxout"),),
    "reste": (Published(87.92, "resnet20-double", about="1000 epochs, ReLU before batch norm"),),
    "biper": (Published(86.98, "resnet20-double-pool", about="600 + 300 epochs; its code says 87.50"),),
    "ie-net": (Published(88.5, "resnet20-double-pool"),),
}


def published(method: str, bits: str, network: str) -> str:
    """The figure for these bits: of this network if there is one, else the first, which names its network."""
    of_bits = [row for row in PUBLISHED.get(method, ()) if row.bits == bits]
    found = next((row for row in of_bits if row.network == network), of_bits[0] if of_bits else None)
    if found is None:
        return NONE
    words = [found.network] if found.network != network else []
    said = ", ".join([*words, *([found.about] if found.about else [])])
    return f"{found.top1}" + (f" ({said})" if said else "")
