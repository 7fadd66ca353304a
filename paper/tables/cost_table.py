"""Compare the paper's cost table with our counts, and find which of its values follow from a counting rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from lcrbnn.evaluation.analysis.cost import Cost, count_cost
from lcrbnn.nn.models.model_registry import create_model

IMAGE_SHAPE = (3, 224, 224)
NOT_DERIVABLE = (
    "The paper does not state how it counts the FLOPS of the binary networks. The rule that gives its full-precision "
    "row exactly gives other values for them, and many other rules give the printed ones. They are not derivable."
)


@dataclass(frozen=True)
class PublishedCost:
    """A row of the paper's cost table (ResNet-18, one image of 224 x 224), and the network that the row describes."""

    title: str
    bops: float
    flops: float
    network: str
    method: str | None
    # True if there is no batch norm before the classifier; the networks of IR-Net have such a batch norm
    has_plain_head: bool = False


TABLE = (
    PublishedCost("BNN", 1.695e9, 1.314e8, "resnet18-binary-shortcut-imagenet", "bnn"),
    PublishedCost("XNOR-Net", 1.695e9, 1.333e8, "resnet18-binary-shortcut-imagenet", "xnor"),
    PublishedCost("ProxyBNN", 1.695e9, 1.564e8, "resnet18-binary-shortcut-imagenet", "proxybnn"),
    PublishedCost("IR-Net", 1.676e9, 1.544e8, "resnet18-double-imagenet", "irnet"),
    PublishedCost("Ours", 1.676e9, 1.544e8, "resnet18-double-imagenet", "irnet"),
    PublishedCost("Full precision", 0, 1.826e9, "resnet18-relu-imagenet", None, has_plain_head=True),
)


def compare_costs() -> list[tuple[PublishedCost, Cost]]:
    """Return each row of the paper's table together with our count."""
    return [(row, _count_network_cost(row.network, row.method, row.has_plain_head)) for row in TABLE]


def matches_printed_digits(printed: float, counted: float) -> bool:
    """Return whether a count equals the printed value after it is cut off to the four printed digits."""
    if printed == 0:
        return counted == 0
    unit = 10 ** (len(str(int(printed))) - 4)
    return int(counted) // unit == round(printed / unit)


@cache
def _count_network_cost(network: str, method: str | None, has_plain_head: bool) -> Cost:
    model = create_model(network, method)
    if has_plain_head:
        model.head = model.get_submodule("head.1")
    return count_cost(model, IMAGE_SHAPE)


def _print_table() -> dict[str, Any]:
    """Print the table and return its values for a record."""
    print(f"{'':<15} {'BOPS, paper':>11} {'ours':>14}   {'FLOPS, paper':>12} {'ours':>14}")
    metrics = {}
    for row, cost in compare_costs():
        bops_exact = matches_printed_digits(row.bops, cost.bit_operations)
        flops_exact = matches_printed_digits(row.flops, cost.flops)
        verdicts = ["exact" if is_exact else "not derivable" for is_exact in (bops_exact, flops_exact)]
        print(
            f"{row.title:<15} {row.bops:>11.3e} {cost.bit_operations:>14,}   {row.flops:>12.3e} {cost.flops:>14,}"
            f"  BOPS {verdicts[0]}, FLOPS {verdicts[1]}"
        )
        metrics[row.title] = {
            "network": row.network,
            "bops": cost.bit_operations,
            "bops_exact": bops_exact,
            "flops": cost.flops,
            "flops_exact": flops_exact,
            "printed": [row.bops, row.flops],
        }
    print(NOT_DERIVABLE)
    return metrics


def main(files: list[str]) -> None:
    """Print the table and write it as a record to each file."""
    from pathlib import Path

    from lcrbnn.errors import check_output_file
    from lcrbnn.runs.record import write_record

    for name in files:
        check_output_file(Path(name), "a record")
    metrics = _print_table()
    settings = {"model": "the paper's cost table", "shape": list(IMAGE_SHAPE)}
    for name in files:
        write_record(Path(name), "cost", settings, metrics)
        print(name)
