"""An arm of a plan, as its TOML table says it: settings, or "like" an arm of another plan, with a few of them changed.

What an arm is like stands in one place only: a plan for another network says `like = "PLAN/ARM"` instead of copying.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError, number
from lcrbnn.runs.files import read_regular_file
from lcrbnn.train import Spec
from lcrbnn.train.build import STUDY

STRENGTHS = ("weight", "share")  # what `times` multiplies
PAIRS = ("form_options", "method_options")  # lists of name=value, joined by name
OTHERS = ("start", "teacher")  # settings that name another run


def read_toml(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """The text of a TOML file and what it holds; `what` names the file in a sentence."""
    try:
        text = read_regular_file(path).decode("utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise InputError(f"the {what} {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the {what} {path} is no TOML: {error}") from None


def split_name(name: Any, what: str) -> tuple[str, str]:
    """("PLAN", "ARM") from "PLAN/ARM"."""
    study, slash, arm = name.partition("/") if isinstance(name, str) else ("", "", "")
    if not study or not slash or not arm or "/" in arm:
        raise InputError(f"{what} is written PLAN/ARM, such as cifar10-double/none; got {name!r}")
    return study, arm


def with_seed(spec: Spec, seed: int) -> Spec:
    """An arm's spec for a seed. Where it names study:PLAN/ARM it means that arm's run of the same seed."""
    named = {name: getattr(spec, name) for name in OTHERS}
    own = {
        name: f"{text}/seed-{seed}" for name, text in named.items() if text.startswith(STUDY) and text.count("/") == 1
    }
    return spec.but(seed=seed, **own)


def check_named(spec: Spec) -> None:
    """Raise unless the runs of other studies that an arm names are written as they should be."""
    for name in OTHERS:
        text = getattr(spec, name)
        if text.startswith(STUDY) and not re.fullmatch(r"[^/]+/[^/]+(/seed-\d+)?", text.removeprefix(STUDY)):
            raise InputError(
                f"{name} is written {STUDY}PLAN/ARM (its run of the same seed) or {STUDY}PLAN/ARM/seed-0; got {text!r}"
            )


def changes_of(table: dict[str, Any], home: Path, seen: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """The settings that an arm changes; None while the arm that it is like is not decided: not in its plan yet.

    `times` multiplies the other arm's strength, its weight or share; options of form and method are joined by name.
    Plans are looked for in `home`. The other plan's recipe and settings stay its own.
    """
    own = dict(table)
    like, times = own.pop("like", None), own.pop("times", None)
    if like is None:
        if times is not None:
            raise InputError("times goes with like, the arm whose strength is multiplied")
        return own
    study, arm = split_name(like, "like")
    if like in seen:
        raise InputError(f"{like} is like itself")
    _, given = read_toml(home / f"{study}.toml", "plan")
    arms = given.get("arms")
    found = arms.get(arm) if isinstance(arms, dict) else None
    theirs = changes_of(found, home, (*seen, like)) if isinstance(found, dict) else None
    if theirs is None:
        return None
    return _joined(theirs if times is None else _multiplied(theirs, times, like), own)


def _multiplied(changes: dict[str, Any], times: Any, like: str) -> dict[str, Any]:
    number(times, "times", low=0)
    strengths = {name: changes[name] * times for name in STRENGTHS if name in changes}
    if not strengths:
        raise InputError(f"times multiplies a weight or a share, and {like} sets neither")
    return changes | strengths


def _joined(theirs: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    pairs = {name: _by_name(theirs[name]) | _by_name(own[name]) for name in PAIRS if name in theirs and name in own}
    return theirs | own | {name: list(joined.values()) for name, joined in pairs.items()}


def _by_name(pairs: Any) -> dict[str, Any]:
    if not isinstance(pairs, list):
        raise InputError(f"options are a list of name=value; got {pairs!r}")
    return {str(pair).partition("=")[0]: pair for pair in pairs}
