"""PUBLISHED contains the accuracies that the authors of each method have published, with network and setting."""

from __future__ import annotations

from typing import NamedTuple

from lcrbnn.evaluation.table_cells import NO_VALUE

IMAGENET = "ImageNet, ResNet-18"


class PublishedAccuracy(NamedTuple):
    """A published top-1 accuracy in percent. Networks of this package are called by their name in this package."""

    top1: float
    network: str
    bits: str = "1/1"
    # Differences between the published setting and ours (epochs, blocks), and the place where the value is printed
    note: str = ""


# For methods without a published ResNet on CIFAR-10, this is the closest published result. "in Table 1" and "in Table
# 2" refer to the LCR paper. Epochs are given if they are known and are not 400.
PUBLISHED: dict[str, tuple[PublishedAccuracy, ...]] = {
    "bnn": (PublishedAccuracy(89.85, "CIFAR-10, its own network", note="not checked against its source"),),
    "xnor": (PublishedAccuracy(51.2, IMAGENET, note="in Table 1"),),
    "bwn": (PublishedAccuracy(60.8, IMAGENET, "1/32", "in Table 1"),),
    "xnor++": (PublishedAccuracy(57.1, IMAGENET, note="in Table 1"),),
    "dorefa": (
        PublishedAccuracy(79.3, "resnet20", note="in Table 2"),
        PublishedAccuracy(90.0, "resnet20-relu", "1/32", "in Table 2"),
    ),
    "bireal": (PublishedAccuracy(56.4, IMAGENET),),
    "irnet": (
        PublishedAccuracy(86.5, "resnet20-double"),
        PublishedAccuracy(91.5, "resnet18"),
        PublishedAccuracy(90.8, "resnet20-relu", "1/32"),
    ),
    "rbnn": (PublishedAccuracy(87.8, "resnet20-double", note="1000 epochs"),),
    "reactnet": (PublishedAccuracy(65.9, IMAGENET),),
    "abc-net": (PublishedAccuracy(42.7, IMAGENET, note="one base each, in Table 1"),),
    "bnn+": (PublishedAccuracy(53.0, IMAGENET, note="in Table 1"),),
    "proxybnn": (PublishedAccuracy(58.7, IMAGENET, note="in Table 1"),),
    "dsq": (PublishedAccuracy(84.1, "resnet20"), PublishedAccuracy(90.2, "resnet20-relu", "1/32")),
    "lns": (
        PublishedAccuracy(85.7, "resnet20", note="in Table 2"),
        PublishedAccuracy(90.8, "resnet20-relu", "1/32", "in Table 2"),
    ),
    "slb": (PublishedAccuracy(85.5, "resnet20"), PublishedAccuracy(90.6, "resnet20-relu", "1/32")),
    "rad": (PublishedAccuracy(90.5, "resnet18", note="in Table 2"),),
    "hwgq": (
        PublishedAccuracy(61.3, IMAGENET, "1/32", "in Table 1"),
        PublishedAccuracy(59.6, IMAGENET, "1/2", "not checked against its source"),
    ),
    "sq-bwn": (PublishedAccuracy(58.4, IMAGENET, "1/32", "in Table 1"),),
    "sq-twn": (PublishedAccuracy(63.8, IMAGENET, "1/32", "ternary, in Table 1"),),
    "bwnh": (PublishedAccuracy(64.3, IMAGENET, "1/32", "in Table 1"),),
    "recu": (PublishedAccuracy(87.5, "resnet20-double-pool", note="600 epochs"),),
    "siman": (PublishedAccuracy(87.4, "resnet20-double-prelu"),),
    "adabin": (PublishedAccuracy(88.1, "resnet20-double-maxout"),),
    "reste": (PublishedAccuracy(87.92, "resnet20-double", note="1000 epochs, ReLU before batch norm"),),
    "biper": (PublishedAccuracy(86.98, "resnet20-double-pool", note="600 + 300 epochs; its code says 87.50"),),
    "ie-net": (PublishedAccuracy(88.5, "resnet20-double-pool"),),
}


def find_published(method: str, bits: str, network: str) -> str:
    """Return the published accuracy with these bit widths as text, of this network or else the first in the list.

    If it is not of this network, the text names the network.
    """
    candidates = [row for row in PUBLISHED.get(method, ()) if row.bits == bits]
    if not candidates:
        return NO_VALUE
    row = next((row for row in candidates if row.network == network), candidates[0])
    notes = [note for note in (row.network if row.network != network else "", row.note) if note]
    return f"{row.top1}" + (f" ({', '.join(notes)})" if notes else "")
