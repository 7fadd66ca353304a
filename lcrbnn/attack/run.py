"""The attacks on a trained network: what a record of them depends on, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lcrbnn.attack.suite import Verdict, attack_all
from lcrbnn.attack.table import ATTACKS, Attack
from lcrbnn.attack.target import target_of
from lcrbnn.data import DataSet
from lcrbnn.errors import InputError, choose
from lcrbnn.models import Network
from lcrbnn.train.numerics import all_digits, find_device
from lcrbnn.train.options import Options

EPS = ("2/255", "8/255")
IMAGES = 1000  # the first ones of the test split
WORST = "worst"


def chosen_attacks(names: Sequence[str], changes: Mapping[str, int | None]) -> dict[str, Attack]:
    """Rows of ATTACKS (all, if none is named), with their steps, restarts or queries changed where they have them."""
    given = {name: value for name, value in changes.items() if value is not None}
    rows = [choose(ATTACKS, name, "attack") for name in names or ATTACKS]
    known = {row.name: {k: v for k, v in given.items() if k in row.settings} for row in rows}
    return {row.name: replace(row, settings={**row.settings, **known[row.name]}) for row in rows}


def parse_eps(text: str) -> float:
    """The number meant by a text such as 8/255 or 0.03."""
    above, _, below = text.partition("/")
    try:
        value = float(above) / float(below or 1)
    except (ValueError, ZeroDivisionError):
        value = -1.0
    if not 0 < value <= 1:
        raise InputError(f"eps is a share of the range of a pixel, over 0 and at most 1, such as 8/255; got {text!r}")
    return value


def settings_of(
    said: Mapping[str, Any], attacks: Mapping[str, Attack], eps: Sequence[str], images: int, seed: int
) -> dict[str, Any]:
    """What the figures of a network depend on, of which a record says so much; no batch, for nothing is drawn by it."""
    return {
        **said,
        "split": "test",
        "images": images,
        "eps": list(eps),
        "norm": "Linf, pixels from 0 to 1",
        "attacks": {name: dict(row.settings) for name, row in attacks.items()},
        "seed": seed,
        "precision": "float32",
    }


def attack_some(
    model: Network,
    row: DataSet,
    settings: Mapping[str, Any],
    attacks: Mapping[str, Attack],
    options: Options,
    batch: int,
    tick: Callable[[str], None],
) -> dict[str, Any]:
    """The figures of a network on some test images, by eps; `tick` hears of each attack that is done."""
    device = find_device(options.device)
    test = row.load(options.data_folder).test
    count = settings["images"]
    if count > len(test.labels):
        raise InputError(f"there are {len(test.labels):,} test images; got --images {count}")
    some = row.some(test, count)
    images = (torch.from_numpy(some.images).float() / row.top).to(device)
    labels = torch.from_numpy(some.labels).to(device)
    with all_digits(), target_of(model.to(device), row) as target:
        found = {}
        for eps in settings["eps"]:
            verdict = attack_all(
                target, images, labels, attacks, parse_eps(eps), seed=settings["seed"], batch=batch, between=tick
            )
            found[eps] = figures(verdict)
    return found


def figures(verdict: Verdict) -> dict[str, Any]:
    """A verdict as a record holds it: who survived as bits, the first image first, in hexadecimal digits."""
    found = {name: value for name, value in verdict._asdict().items() if name != "survived"}
    bits = {name: _hexadecimal(entries) for name, entries in verdict.survived.items()}
    return {**found, "masked": verdict.masked, "survived": bits}


def _hexadecimal(entries: Sequence[bool]) -> str:
    padded = [*entries, *[False] * (-len(entries) % 4)]
    return "".join(f"{int(''.join('01'[b] for b in padded[i : i + 4]), 2):x}" for i in range(0, len(padded), 4))


def summary(found: Mapping[str, Any]) -> dict[str, float]:
    """What of a run is compared between groups: percent left right, by eps and attack."""
    rows: dict[str, float] = {}
    for eps, one in found.items():
        rows["clean"] = one["clean"]
        rows |= {f"{eps} {name}": value for name, value in one["accuracy"].items()}
        if one["gradients"] is not None:
            rows[f"{eps} gradients"] = one["gradients"]
        rows[f"{eps} {WORST}"] = one["worst"]
    return rows
