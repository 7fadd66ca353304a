"""The paper's cost table beside our counts: which of its figures follow from a rule, and which do not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lcrbnn.analyze.cost import Cost, count
from lcrbnn.models import Network, network

IMAGE = (3, 224, 224)
UNKNOWN = (
    "The paper does not say how it counts the FLOPS of the binary networks: with the rule that gives its "
    "full-precision row exactly they come out otherwise, and many other rules would give them. They are not derivable."
)


@dataclass(frozen=True)
class PrintedCost:
    """A row of the paper's table: ResNet-18, one image of 224 x 224; and the network here that it is about."""

    title: str
    bops: float
    flops: float
    network: str
    method: str | None
    usual_head: bool = False  # without the batch norm that IR-Net's networks have before the classifier


TABLE = (
    PrintedCost("BNN", 1.695e9, 1.314e8, "resnet18-binary-shortcut-imagenet", "bnn"),
    PrintedCost("XNOR-Net", 1.695e9, 1.333e8, "resnet18-binary-shortcut-imagenet", "xnor"),
    PrintedCost("ProxyBNN", 1.695e9, 1.564e8, "resnet18-binary-shortcut-imagenet", "proxybnn"),
    PrintedCost("IR-Net", 1.676e9, 1.544e8, "resnet18-double-imagenet", "irnet"),
    PrintedCost("Ours", 1.676e9, 1.544e8, "resnet18-double-imagenet", "irnet"),
    PrintedCost("Full precision", 0, 1.826e9, "resnet18-relu-imagenet", None, usual_head=True),
)


def paper_costs() -> list[tuple[PrintedCost, Cost]]:
    """Each row with our count; networks that two rows share are counted once."""
    found: dict[tuple[Any, ...], Cost] = {}
    for row in TABLE:
        key = (row.network, row.method, row.usual_head)
        if key not in found:
            found[key] = count(_network(row), IMAGE)
    return [(row, found[row.network, row.method, row.usual_head]) for row in TABLE]


def agrees(printed: float, counted: float) -> bool:
    """Whether a count, cut off after the digits that are printed (four), is the printed figure."""
    if printed == 0:
        return counted == 0
    unit = 10 ** (len(str(int(printed))) - 4)
    return int(counted) // unit == round(printed / unit)


def _network(row: PrintedCost) -> Network:
    net = network(row.network, row.method)
    if row.usual_head:
        net.head = net.get_submodule("head.1")
    return net
