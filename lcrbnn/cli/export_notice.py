"""Lines that `lcrbnn train` prints before the first step if the trained network could not be exported."""

from __future__ import annotations

from collections.abc import Iterable

from lcrbnn.deploy.export.check_export import ExportCheck, check_export
from lcrbnn.errors import InputError
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.spec import TrainSpec

MAX_PRINTED_REASONS = 3
NUMERIC_SETTINGS = {"precision": "float32", "seed": 0}  # they change the numbers of a network, not its layers


def describe_export_problems(specs: Iterable[TrainSpec]) -> list[str]:
    """Return lines about what keeps the networks of these runs from being exported; none if all can be exported."""
    kinds = {
        (spec.model, spec.method, spec.bits, spec.method_options, spec.dataset, spec.image_size): spec for spec in specs
    }
    return [line for spec in kinds.values() for line in _describe_network(spec)]


def _describe_network(spec: TrainSpec) -> list[str]:
    dataset = find_dataset(spec)
    try:
        network = build_network(spec.replace(**NUMERIC_SETTINGS))
        check = check_export(network, (1, dataset.channels, dataset.image_size, dataset.image_size))
    except InputError as error:
        return [f"note: the export of {spec.model} cannot be checked: {error}"]
    if check.is_exportable:
        return []
    title = f"{spec.model} with the method {spec.method}"
    return [f"note: {title} can be trained, but lcrbnn export cannot export it:", *_list_reasons(check)]


def _list_reasons(check: ExportCheck) -> list[str]:
    """Return one indented line per reason, with the first layer that has it."""
    layers_by_reason: dict[str, list[str]] = {}
    for layer in check.problems:
        layers_by_reason.setdefault(layer.outcome.removeprefix("NOT EXPORTABLE: "), []).append(layer.layer)
    lines = []
    for reason, names in list(layers_by_reason.items())[:MAX_PRINTED_REASONS]:
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines.append(f"  {names[0]}{others}: {reason}")
    num_hidden = len(layers_by_reason) - MAX_PRINTED_REASONS
    return lines + ([f"  and {num_hidden} more reasons (lcrbnn.check_export lists all)"] if num_hidden > 0 else [])
