"""Records of other commands that belong to the runs of a report: found, matched, and read into plain values.

A record belongs to a run if it is of the same checkpoint. Where there are several of a kind, those of one list of
settings are taken that cover most runs, so that only like is compared with like.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lcrbnn.errors import InputError
from lcrbnn.report.groups import Group, Run
from lcrbnn.runs.files import read_regular_file
from lcrbnn.runs.record import DIGEST, read_record
from lcrbnn.train.spec import Spec

T = TypeVar("T")
Likeness = dict[str, dict[str, float]]  # mean |correlation| by layer, of its real and its binary maps


class Robustness(NamedTuple):
    """Errors in percent."""

    images: int
    made: str  # where the corrupted images are from
    clean: dict[str, float]  # by head
    errors: dict[str, dict[str, list[float]]]  # by head and corruption, severities 1 to 5
    means: dict[str, dict[str, float]]  # by head


class Attacks(NamedTuple):
    """Percent of images that stay right, by eps."""

    images: int
    clean: float
    accuracy: dict[str, dict[str, float]]  # by eps and attack
    worst: dict[str, float]
    masked: dict[str, bool]  # whether an attack without gradients beats those with them


class Analysis(NamedTuple):
    """What `lcrbnn analyze` measured; empty where a network has nothing of the kind."""

    norms: dict[str, tuple[float, float]]
    surrogate_log10: float
    eq5_log10: tuple[float, float]
    sensitivity: dict[str, float]  # mean, by radius
    over_pairs: dict[str, float]  # the same over that of pairs of different images
    flips: dict[str, dict[str, float]]  # percent, by noise and layer
    ratios: dict[str, float]  # Eq. 8 on maps of unit length, by layer
    likeness: Likeness


class Weights(NamedTuple):
    """The latent weights of a layer: their deviation and, where it was made, their histogram."""

    std: float
    low: float = 0.0
    high: float = 0.0
    density: tuple[float, ...] = ()


class Layers(NamedTuple):
    """A network layer by layer."""

    weights: dict[str, Weights]
    maps: Likeness


def _robustness(settings: dict[str, Any], figures: dict[str, Any]) -> Robustness:
    errors = {
        head: {name: [_finite(v) for v in values] for name, values in found.items()}
        for head, found in figures["errors"].items()
    }
    if any(len(values) != 5 for found in errors.values() for values in found.values()):
        raise ValueError("a corruption has five severities")
    return Robustness(
        int(settings["images"]),
        str(settings.get("corrupted_images", "")),
        {head: _finite(v) for head, v in figures["clean"].items()},
        errors,
        {head: _known(found) for head, found in figures["means"].items()},
    )


def _attacks(settings: dict[str, Any], figures: dict[str, Any]) -> Attacks:
    return Attacks(
        int(settings["images"]),
        _finite(next(iter(figures.values()))["clean"]),
        {eps: _known(one["accuracy"]) for eps, one in figures.items()},
        {eps: _finite(one["worst"]) for eps, one in figures.items()},
        {eps: bool(one.get("masked")) for eps, one in figures.items()},
    )


def _analysis(settings: dict[str, Any], figures: dict[str, Any]) -> Analysis:
    low, high = figures["eq5_log10"]
    radii = figures["sensitivity"]["radii"]
    return Analysis(
        {name: (_finite(one["low"]), _finite(one["high"])) for name, one in figures["norms"].items()},
        _finite(figures["surrogate_log10"]),
        (_finite(low), _finite(high)),
        {radius: _finite(one["mean"]) for radius, one in radii.items()},
        _known(figures["sensitivity"].get("over_pairs", {})),
        {
            noise: {name: 100 * _finite(v) for name, v in rates.items()}
            for noise, rates in figures.get("flips", {}).items()
        },
        {name: _finite(one["eq8-unit"]) for name, one in (figures.get("ratios") or {}).items()},
        _likeness(figures.get("likeness", {})),
    )


def _likeness(maps: dict[str, Any]) -> Likeness:
    return {
        name: {kind: _finite(one[kind]["correlation"]) for kind in ("real", "binary") if kind in one}
        for name, one in maps.items()
    }


def _layers(seen: dict[str, Any]) -> Layers:
    return Layers({name: _weights(one) for name, one in seen["weights"].items()}, _likeness(seen["maps"]))


def _weights(one: dict[str, Any]) -> Weights:
    if "histogram" not in one:
        return Weights(_finite(one["std"]))
    low, high, counts = (one["histogram"][name] for name in ("low", "high", "counts"))
    total = max(sum(counts), 1) * (_finite(high) - low) / len(counts)
    return Weights(_finite(one["std"]), _finite(low), _finite(high), tuple(n / total for n in counts))


def _side_by_side(settings: dict[str, Any], figures: dict[str, Any]) -> list[tuple[Spec, Layers]]:
    return [(Spec.of(settings[name]), _layers(seen)) for name, seen in figures.items()]


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no number to show")
    return float(value)


def _known(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: _finite(v) for name, v in values.items() if v is not None}


@dataclass(frozen=True)
class Kind:
    """A kind of record that is of one checkpoint: how it is read, and the command that makes it."""

    parse: Callable[[dict[str, Any], dict[str, Any]], Any]
    command: str


KINDS = {
    "robustness": Kind(_robustness, "lcrbnn robustness"),
    "attack": Kind(_attacks, "lcrbnn attack"),
    "analyze": Kind(_analysis, "lcrbnn analyze"),
}
LAYERS = "layers"  # of networks side by side, named by their settings; or a part of a run's own record
COST = "cost"  # of a kind of network
PERSONAL = ("run", "checkpoint_sha256", "device")  # settings in which the runs of a group differ, or may


class Found(NamedTuple):
    """A record and where it lies."""

    path: Path
    record: dict[str, Any]


def find_records(groups: Sequence[Group], places: Sequence[Path]) -> list[Found]:
    """All records of a kind that a report knows, in the folders of the runs and at the given places."""
    files: dict[Path, Path] = {}
    for place in places:
        if not place.exists():
            raise InputError(f"there are no records at {place}")
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            files[path.absolute()] = path
    for group in groups:
        for run in group.runs.values():
            for path in sorted(run.place.glob("*.json")) if run.place.is_dir() else []:
                if path.name not in ("record.json", "spec.json", "fault.json"):
                    files[path.absolute()] = path
    return [Found(path, read_record(path)) for path in files.values() if _kind(path) in (*KINDS, LAYERS, COST)]


def _kind(path: Path) -> Any:
    try:
        stored = json.loads(read_regular_file(path).decode("utf-8"))
    except OSError as error:
        raise InputError(f"the record {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is no record: {error}") from None
    if isinstance(stored, dict) and DIGEST in stored:
        return read_record(path).get("kind")  # a damaged record is refused, whatever kind it now has
    return stored.get("kind") if isinstance(stored, dict) else None


def attach(groups: Sequence[Group], found: Sequence[Found]) -> None:
    """Give each run what was measured of it."""
    _attach_layers([run for group in groups for run in group.runs.values()], found)
    runs: dict[str, list[Run]] = {}  # by network; a report may show a run twice
    for run in [run for group in groups for run in group.runs.values() if run.digest is not None]:
        runs.setdefault(str(run.digest), []).append(run)
    for name, kind in KINDS.items():
        ours: dict[str, dict[str, Found]] = {}  # by settings, then by network
        for one in found:
            digest = one.record["settings"].get("checkpoint_sha256")
            if one.record.get("kind") == name and digest in runs:
                ours.setdefault(_shared(one.record["settings"]), {})[digest] = one
        chosen = max(ours.values(), key=lambda records: (len(records), _images(records)), default={})
        for digest, one in chosen.items():
            for run in runs[digest]:
                run.measured[name] = parsed(one, kind.parse)
                run.sources.append(one.path)


def _attach_layers(runs: Sequence[Run], found: Sequence[Found]) -> None:
    """From a record of networks side by side, which has histograms; otherwise from the run's own."""
    for one in of_kind(found, LAYERS):
        for spec, seen in parsed(one, _side_by_side):
            for run in [run for run in runs if run.spec == spec]:
                run.measured[LAYERS] = seen
                run.sources.append(one.path)
    for run in runs:
        own = None if run.record is None else run.record.get(LAYERS)
        if own is not None and LAYERS not in run.measured:
            at = Found(run.sources[0], {"kind": LAYERS, "settings": {}, "figures": own})
            run.measured[LAYERS] = parsed(at, lambda settings, figures: _layers(figures))


def of_run(kind: str, pick: Callable[[Any], T | None]) -> Callable[[Run], T | None]:
    """Something of what was measured of a run, if it was."""
    return lambda run: pick(run.measured[kind]) if kind in run.measured else None


def first_of(kind: str, groups: Sequence[Group]) -> Any:
    """What was measured of the first run that has it; None if none has."""
    runs = (run for group in groups for run in group.runs.values())
    return next((run.measured[kind] for run in runs if kind in run.measured), None)


def parsed(one: Found, parse: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Any:
    """What a record holds; one sentence if it does not."""
    try:
        return parse(one.record["settings"], one.record["figures"])
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration, IndexError) as error:
        kind = one.record.get("kind")
        raise InputError(f"{one.path} is no record of {kind} that this version knows: {error!r}") from None


def _shared(settings: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in settings.items() if k not in PERSONAL}, sort_keys=True, default=str)


def _images(records: dict[str, Found]) -> int:
    images = next(iter(records.values())).record["settings"].get("images")
    return images if isinstance(images, int) else 0


def of_kind(found: Sequence[Found], kind: str) -> Iterator[Found]:
    """The records of a kind."""
    return (one for one in found if one.record.get("kind") == kind)
