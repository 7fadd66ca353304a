"""Find the records of other commands, assign them to the runs of a report, and parse them.

A record belongs to a run if both have the same checkpoint digest. A run may have several records of one kind with
different settings. Then the settings that exist for most runs are used. So all compared numbers were measured in the
same way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lcrbnn.errors import InputError
from lcrbnn.report.run_groups import ReportRun, RunGroup
from lcrbnn.runs.atomic_files import read_regular_file
from lcrbnn.runs.record import DIGEST_KEY, read_record
from lcrbnn.train.setup.spec import TrainSpec

T = TypeVar("T")
MapCorrelations = dict[str, dict[str, float]]  # dictionary: layer -> kind of map (real or binary) -> mean |correlation|


class RobustnessResult(NamedTuple):
    """Errors on clean and corrupted images, in percent."""

    num_images: int
    image_source: str  # text that describes where the corrupted images come from
    clean_errors: dict[str, float]  # dictionary: classifier head -> error in percent on clean images
    # Dictionary: classifier head -> corruption -> errors in percent at severities 1 to 5
    errors: dict[str, dict[str, list[float]]]
    mean_errors: dict[str, dict[str, float]]  # dictionary: classifier head -> name of a mean -> mean error in percent


class AttackResult(NamedTuple):
    """Accuracy under attack in percent, by eps, the radius of the attack."""

    num_images: int
    clean_accuracy: float
    accuracy: dict[str, dict[str, float]]  # dictionary: eps -> attack -> accuracy in percent
    worst_accuracy: dict[str, float]
    # whether an attack without gradients succeeds more often than all attacks with gradients
    has_masked_gradients: dict[str, bool]


class AnalysisResult(NamedTuple):
    """Measurements of `lcrbnn analyze`. A field is empty if the network has nothing of this kind."""

    norms: dict[str, tuple[float, float]]
    surrogate_bound_log10: float | None
    eq5_log10: tuple[float, float] | None
    sensitivity: dict[str, float]  # mean sensitivity, by noise radius
    relative_sensitivity: dict[str, float]  # mean sensitivity divided by the sensitivity between different images
    sign_flips: dict[str, dict[str, float]]  # rate of flipped signs in percent, by noise and layer
    sigma_ratios: dict[str, float]  # ratios of Eq. 8 on L2-normalized maps, by layer; NaN for one sign
    map_correlations: MapCorrelations


class WeightDistribution(NamedTuple):
    """Standard deviation of a layer's latent weights and, if recorded, their histogram as a density."""

    std: float
    low: float = 0.0
    high: float = 0.0
    density: tuple[float, ...] = ()


class LayerResult(NamedTuple):
    """Weight distributions and map correlations of one network, by layer."""

    weights: dict[str, WeightDistribution]
    map_correlations: MapCorrelations


def _parse_robustness(settings: dict[str, Any], figures: dict[str, Any]) -> RobustnessResult:
    errors = {
        head: {name: [_to_finite(v) for v in values] for name, values in by_name.items()}
        for head, by_name in figures["errors"].items()
    }
    if any(len(values) != 5 for by_name in errors.values() for values in by_name.values()):
        raise ValueError("a corruption has five severities")
    return RobustnessResult(
        int(settings["images"]),
        str(settings.get("corrupted_images", "")),
        {head: _to_finite(v) for head, v in figures["clean"].items()},
        errors,
        {head: _drop_missing(by_name) for head, by_name in figures["means"].items()},
    )


def _parse_attacks(settings: dict[str, Any], figures: dict[str, Any]) -> AttackResult:
    return AttackResult(
        int(settings["images"]),
        _to_finite(next(iter(figures.values()))["clean"]),
        {eps: _drop_missing(result["accuracy"]) for eps, result in figures.items()},
        {eps: _to_finite(result["worst"]) for eps, result in figures.items()},
        {eps: bool(result.get("masked")) for eps, result in figures.items()},
    )


def _parse_analysis(settings: dict[str, Any], figures: dict[str, Any]) -> AnalysisResult:
    eq5, surrogate = figures["eq5_log10"], figures["surrogate_log10"]  # None: the bounds of a module are not known
    radii = figures["sensitivity"]["radii"]
    return AnalysisResult(
        {name: (_to_finite(result["low"]), _to_finite(result["high"])) for name, result in figures["norms"].items()},
        None if surrogate is None else _to_finite(surrogate),
        None if eq5 is None else (_to_finite(eq5[0]), _to_finite(eq5[1])),
        {radius: _to_finite(result["mean"]) for radius, result in radii.items()},
        _drop_missing(figures["sensitivity"].get("over_pairs", {})),
        {
            noise: {name: 100 * _to_finite(v) for name, v in rates.items()}
            for noise, rates in figures.get("flips", {}).items()
        },
        {name: _to_ratio(result["eq8-unit"]) for name, result in (figures.get("ratios") or {}).items()},
        _parse_map_correlations(figures.get("activation_correlation", {})),
    )


def _parse_map_correlations(maps: dict[str, Any]) -> MapCorrelations:
    return {
        name: {kind: _to_finite(result[kind]["correlation"]) for kind in ("real", "binary") if kind in result}
        for name, result in maps.items()
    }


def _parse_layers(network: dict[str, Any]) -> LayerResult:
    return LayerResult(
        {name: _parse_weights(layer) for name, layer in network["weights"].items()},
        _parse_map_correlations(network["activations"]),
    )


def _parse_weights(layer: dict[str, Any]) -> WeightDistribution:
    if "histogram" not in layer:
        return WeightDistribution(_to_finite(layer["std"]))
    low, high, counts = (layer["histogram"][name] for name in ("low", "high", "counts"))
    total = max(sum(counts), 1) * (_to_finite(high) - low) / len(counts)
    return WeightDistribution(
        _to_finite(layer["std"]), _to_finite(low), _to_finite(high), tuple(n / total for n in counts)
    )


def _parse_networks(settings: dict[str, Any], figures: dict[str, Any]) -> list[tuple[TrainSpec, LayerResult]]:
    return [(TrainSpec.from_dict(settings[name]), _parse_layers(network)) for name, network in figures.items()]


def _to_finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return float(value)


def _to_ratio(value: Any) -> float:
    """Return a sigma ratio, which is NaN for feature maps with only one sign."""
    return float(value) if math.isnan(value) else _to_finite(value)


def _drop_missing(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: _to_finite(v) for name, v in values.items() if v is not None}


# The parser of each kind of record about one checkpoint. The kind is the name of the command that writes the record.
RECORD_PARSERS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "robustness": _parse_robustness,
    "attack": _parse_attacks,
    "analyze": _parse_analysis,
}
# Kind of a record of several networks, and key in the record of a run with the measurements of layers
LAYERS = "layers"
COST = "cost"  # kind of a record of an architecture, which does not belong to a checkpoint
# Names of settings that may differ between the runs of a group
PER_RUN_SETTINGS = ("spec", "checkpoint_sha256", "device")


class RecordFile(NamedTuple):
    """A record and the path of its file."""

    path: Path
    record: dict[str, Any]


def find_records(groups: Sequence[RunGroup], paths: Sequence[Path]) -> list[RecordFile]:
    """Return all records that reports use, from the run folders and from the given paths."""
    files: dict[Path, Path] = {}
    for place in paths:
        if not place.exists():
            raise InputError(f"there are no records at {place}")
        for path in sorted(place.rglob("*.json")) if place.is_dir() else [place]:
            files[path.absolute()] = path
    for group in groups:
        for run in group.runs.values():
            for path in sorted(run.path.glob("*.json")) if run.path.is_dir() else []:
                if path.name not in ("record.json", "spec.json", "fault.json"):
                    files[path.absolute()] = path
    return [
        RecordFile(path, read_record(path))
        for path in files.values()
        if _read_kind(path) in (*RECORD_PARSERS, LAYERS, COST)
    ]


def _read_kind(path: Path) -> Any:
    try:
        stored = json.loads(read_regular_file(path).decode("utf-8"))
    except OSError as error:
        raise InputError(f"the record {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not a record: {error}") from None
    if isinstance(stored, dict) and DIGEST_KEY in stored:
        # read_record raises InputError for a damaged record, even if its kind is unknown
        return read_record(path).get("kind")
    return stored.get("kind") if isinstance(stored, dict) else None


def attach_records(groups: Sequence[RunGroup], records: Sequence[RecordFile]) -> None:
    """Parse the records and store them in the `measurements` of the runs to which they belong."""
    _attach_layers([run for group in groups for run in group.runs.values()], records)
    # Dictionary: checkpoint digest -> runs; a report may contain the same run twice
    runs: dict[str, list[ReportRun]] = {}
    for run in [run for group in groups for run in group.runs.values() if run.checkpoint_digest is not None]:
        runs.setdefault(str(run.checkpoint_digest), []).append(run)
    for name, parse in RECORD_PARSERS.items():
        by_settings: dict[str, dict[str, RecordFile]] = {}  # by settings, then by checkpoint digest
        for file in records:
            digest = file.record["settings"].get("checkpoint_sha256")
            if file.record.get("kind") == name and digest in runs:
                by_settings.setdefault(_shared_settings_key(file.record["settings"]), {})[digest] = file
        chosen = max(by_settings.values(), key=lambda files: (len(files), _count_images(files)), default={})
        for digest, file in chosen.items():
            for run in runs[digest]:
                run.measurements[name] = parse_record(file, parse)
                run.source_files.append(file.path)


def _attach_layers(runs: Sequence[ReportRun], files: Sequence[RecordFile]) -> None:
    """Store layer measurements in the runs.

    Records of several networks contain histograms. A run that is in such a record gets the measurements of this record.
    Each other run gets the measurements in its own record.
    """
    for file in select_records(files, LAYERS):
        for spec, layers in parse_record(file, _parse_networks):
            for run in [run for run in runs if run.spec == spec]:
                run.measurements[LAYERS] = layers
                run.source_files.append(file.path)
    for run in runs:
        stored = None if run.record is None else run.record.get(LAYERS)
        if stored is not None and LAYERS not in run.measurements:
            own_file = RecordFile(run.source_files[0], {"kind": LAYERS, "settings": {}, "figures": stored})
            run.measurements[LAYERS] = parse_record(own_file, lambda settings, figures: _parse_layers(figures))


def measurement_getter(kind: str, get_value: Callable[[Any], T | None]) -> Callable[[ReportRun], T | None]:
    """Return a function that reads a value from a run's measurement of this kind, or returns None if there is none."""
    return lambda run: get_value(run.measurements[kind]) if kind in run.measurements else None


def first_measurement(kind: str, groups: Sequence[RunGroup]) -> Any:
    """Return the measurement of this kind of the first run that has such a measurement, or None."""
    runs = (run for group in groups for run in group.runs.values())
    return next((run.measurements[kind] for run in runs if kind in run.measurements), None)


def parse_record(file: RecordFile, parse: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Any:
    """Return the parsed record. Raise InputError if its content has an unknown form."""
    try:
        return parse(file.record["settings"], file.record["figures"])
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration, IndexError) as error:
        kind = file.record.get("kind")
        raise InputError(f"{file.path} is not a {kind} record of a known form: {error!r}") from None


def _shared_settings_key(settings: dict[str, Any]) -> str:
    return json.dumps({k: v for k, v in settings.items() if k not in PER_RUN_SETTINGS}, sort_keys=True, default=str)


def _count_images(files: dict[str, RecordFile]) -> int:
    images = next(iter(files.values())).record["settings"].get("images")
    return images if isinstance(images, int) else 0


def select_records(files: Sequence[RecordFile], kind: str) -> Iterator[RecordFile]:
    """Return those records that are of this kind."""
    return (file for file in files if file.record.get("kind") == kind)
