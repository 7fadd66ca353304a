"""Which runs of a study go side by side, and in which order: a run comes after those that it starts or learns from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from lcrbnn.errors import InputError
from lcrbnn.train import Spec
from lcrbnn.train.build import others
from lcrbnn.train.run import SHARED

Places = dict[Path, Spec]  # runs by folder


def side_by_side(todo: Mapping[Path, Spec], width: int, named: Path) -> list[Places]:
    """Groups of at most `width` runs, one after another; runs that a spec names as study:... lie in `named`.

    The runs of a group share what runs side by side have to. Those with the same compiled step stay together, as far as
    they fit.
    """
    return [group for ready in _waves(todo, named) for group in _packed(ready, width)]


def compiled_for(spec: Spec) -> Spec:
    """What a step is compiled for: all but the seed and, where there is retention, its strength."""
    same = spec.but(seed=0, share=0.0, ramp=0.0, weight=0.0)
    return same.but(weight=1.0) if spec.retains else same


def _waves(todo: Mapping[Path, Spec], named: Path) -> Iterator[Places]:
    """Runs that need nothing of the others; then those that need these; and so on."""
    left = dict(todo)
    while left:
        open_places = {path.absolute() for path in left}
        needed = {path: {run.path.absolute() for run in others(spec, named).values()} for path, spec in left.items()}
        ready = {path: spec for path, spec in left.items() if not needed[path] & open_places}
        if not ready:
            raise InputError(f"the runs {', '.join(map(str, left))} cannot begin: each needs one of them finished")
        yield ready
        left = {path: spec for path, spec in left.items() if path not in ready}


def _packed(ready: Places, width: int) -> list[Places]:
    alike: dict[Spec, list[Path]] = {}
    for path, spec in ready.items():
        alike.setdefault(compiled_for(spec), []).append(path)
    groups: list[Places] = []
    for paths in alike.values():
        for start in range(0, len(paths), width):
            part = {path: ready[path] for path in paths[start : start + width]}
            room = next((group for group in groups if len(group) + len(part) <= width and _fit(group, part)), None)
            if room is None:
                groups.append(part)
            else:
                room |= part
    return groups


def _fit(group: Places, part: Places) -> bool:
    one, other = (next(iter(runs.values())) for runs in (group, part))
    return all(getattr(one, name) == getattr(other, name) for name in SHARED)
