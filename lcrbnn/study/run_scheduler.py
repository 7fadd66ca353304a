"""Choose the order of a study's runs, and which runs share a process. A run starts after the runs that it refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from lcrbnn.errors import InputError
from lcrbnn.train.setup.load import find_referenced_runs
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import SHARED_SETTINGS

RunSpecs = dict[Path, TrainSpec]  # dictionary from the folder of a run to its training spec


def schedule_runs(specs: Mapping[Path, TrainSpec], parallel_runs: int, runs_folder: Path) -> list[RunSpecs]:
    """Return groups of at most `parallel_runs` runs. The groups are in training order.

    The runs of a group agree in the settings that runs of one process must share. As far as possible, runs with the
    same compiled step are in one group. References study:... are searched in `runs_folder`.
    """
    return [
        group
        for startable in _split_by_dependency(specs, runs_folder)
        for group in _pack_groups(startable, parallel_runs)
    ]


def compilation_key(spec: TrainSpec) -> TrainSpec:
    """Return a spec that is equal for runs with the same compiled step.

    It is the spec without the seed and without the value of lambda.
    """
    normalized = spec.replace(seed=0, lcr_gradient_ratio=0.0, lcr_warmup_epochs=0.0, lcr_weight=0.0)
    return normalized.replace(lcr_weight=1.0) if spec.uses_lcr else normalized


def _split_by_dependency(specs: Mapping[Path, TrainSpec], runs_folder: Path) -> Iterator[RunSpecs]:
    """Yield the runs that refer to no other run, then the runs that refer only to those runs, and so on."""
    waiting = dict(specs)
    while waiting:
        waiting_paths = {path.absolute() for path in waiting}
        referenced_paths = {
            path: {run.path.absolute() for run in find_referenced_runs(spec, runs_folder).values()}
            for path, spec in waiting.items()
        }
        startable = {path: spec for path, spec in waiting.items() if not referenced_paths[path] & waiting_paths}
        if not startable:
            raise InputError(
                f"the runs {', '.join(map(str, waiting))} cannot start: each needs another of them to be finished"
            )
        yield startable
        waiting = {path: spec for path, spec in waiting.items() if path not in startable}


def _pack_groups(startable: RunSpecs, parallel_runs: int) -> list[RunSpecs]:
    paths_by_key: dict[TrainSpec, list[Path]] = {}
    for path, spec in startable.items():
        paths_by_key.setdefault(compilation_key(spec), []).append(path)
    groups: list[RunSpecs] = []
    for paths in paths_by_key.values():
        for start in range(0, len(paths), parallel_runs):
            part = {path: startable[path] for path in paths[start : start + parallel_runs]}
            for group in groups:
                if len(group) + len(part) <= parallel_runs and _can_share_process(group, part):
                    group |= part
                    break
            else:
                groups.append(part)
    return groups


def _can_share_process(group: RunSpecs, part: RunSpecs) -> bool:
    spec, other_spec = (next(iter(runs.values())) for runs in (group, part))
    return all(getattr(spec, name) == getattr(other_spec, name) for name in SHARED_SETTINGS)
