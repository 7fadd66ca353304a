"""Figures that paper/docs/LOG.md quotes about the search for the settings of ResNet-18."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from lcrbnn.study.plan import read_plan
from lcrbnn.zoo.zoo_file import load_member
from lcrbnn.zoo.zoo_index import list_members
from paper.figures import Passage
from paper.figures.record_values import RESULTS, STUDIES, join_values, read_last_epoch, read_runs, read_test_accuracy


def list_variants(plan: str) -> list[str]:
    """Return the variants of a plan."""
    return list(read_plan(STUDIES / f"{plan}.toml").variants)


def read_last_line(variant: str) -> dict[str, float]:
    """Return the last line of the log of the run with seed 0."""
    line: dict[str, float] = read_runs(variant, 1)[0]["figures"]["last_epoch"]
    return line


def _format_accuracies(variant: str) -> str:
    line = read_last_line(variant)
    return f"{line['valid_top1']:.2f} | {line['train_top1']:.2f} |"


def _read_valid_top1(variant: str) -> float:
    return read_last_line(f"cifar10-resnet18-{variant}")["valid_top1"]


def diagnosis() -> Iterator[Passage]:
    """Yield the full-precision accuracy, and the rows of the first two rounds of the search."""
    top1 = read_test_accuracy("cifar10-real/none")
    yield "paper/docs/claims.md", f"are within {max(top1) - min(top1):.2f} of each other"
    (resnet18_top1,) = read_test_accuracy("cifar10-resnet18-real/none", 1)
    yield "paper/docs/LOG.md", f"In full precision: {resnet18_top1:.2f} %"
    for variant in list_variants("cifar10-resnet18-diagnosis"):
        title = "`none`, the recipe" if variant == "none" else f"`{variant}`"
        yield "paper/docs/LOG.md", f"| {title} | {_format_accuracies(f'cifar10-resnet18-diagnosis/{variant}')}"
    for variant in list_variants("cifar10-resnet18-second"):
        yield "paper/docs/LOG.md", f"| `{variant}`… | {_format_accuracies(f'cifar10-resnet18-second/{variant}')}"


def batch_norm_scales() -> Iterator[Passage]:
    """Yield the range of the mean batch-norm scales in the zoo's ResNet-20."""
    model = load_member(list_members()["resnet20-double-irnet"]).model
    norms = [m for name, m in model.named_modules() if isinstance(m, nn.BatchNorm2d) and "layer" in name]
    scales = [float(norm.weight.detach().abs().mean()) for norm in norms]
    yield "paper/docs/LOG.md", f"scales is {min(scales):.2f} to {max(scales):.2f}.".replace("0.", ".")


def weight_decay_resnet18() -> Iterator[Passage]:
    """Yield the third and fourth round of the search: weight decay with and without batch norms."""
    for plan, epochs in (("cifar10-resnet18-third", 50), ("cifar10-resnet18-fourth", 200)):
        for variant in list_variants(plan):
            # Skip missing records; the fourth round has no variant `matrices-small`
            if (RESULTS / plan / variant).exists():
                row = f"| `{variant}`… | {epochs} | {_format_accuracies(f'{plan}/{variant}')}"
                yield "paper/docs/LOG.md", row
    third = {v: _read_valid_top1(f"third/{v}") for v in ("matrices", "matrices-small")}
    fourth = {v: _read_valid_top1(f"fourth/{v}") for v in ("own", "matrices", "weights-irnet")}
    yield "paper/docs/LOG.md", f"starting scales at .4 costs {third['matrices'] - third['matrices-small']:.2f} points"
    yield "paper/docs/LOG.md", f"{fourth['weights-irnet'] - fourth['matrices']:.2f} points better than `matrices`"
    yield "paper/docs/LOG.md", f"worth {fourth['matrices'] - fourth['own']:.1f} points after 200 epochs"
    baseline = _read_valid_top1("diagnosis/none")
    yield "paper/docs/LOG.md", f"{third['matrices']:.2f} % after 50 epochs, {baseline:.2f} if batch norms decay"


def weight_decay_resnet20() -> Iterator[Passage]:
    """Yield the rows of the study of batch-norm scales on ResNet-20."""
    for variant in list_variants("cifar10-norms"):
        cells = (join_values(read_last_epoch(f"cifar10-norms/{variant}", c, 2)) for c in ("valid_top1", "train_top1"))
        yield "paper/docs/LOG.md", f"| `{variant}`… | {' | '.join(cells)} |"


PASSAGES = [diagnosis, batch_norm_scales, weight_decay_resnet18, weight_decay_resnet20]
