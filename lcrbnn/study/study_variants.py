"""Read the settings of a variant of a study plan, which are listed in full or as changes of another variant.

With `extends = "PLAN/VARIANT"`, a variant uses the settings of a variant of another plan. So each setting is written
down only once.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError, check_number
from lcrbnn.runs.atomic_files import read_regular_file
from lcrbnn.runs.old_names import upgrade_plan
from lcrbnn.train.setup.load import STUDY_PREFIX
from lcrbnn.train.setup.spec import TrainSpec

LCR_STRENGTHS = ("lcr_weight", "lcr_gradient_ratio")  # names of the settings that `lcr_multiplier` multiplies
# Names of settings that are lists of NAME=VALUE; lists are merged by NAME
OPTION_LISTS = ("lcr_options", "method_options")
REFERENCED_RUNS = ("init_from", "teacher")  # names of settings that refer to another run


def read_toml(path: Path, description: str) -> tuple[str, dict[str, Any]]:
    """Return the text and the content of a TOML file. Error messages call the file `description`."""
    try:
        text = read_regular_file(path).decode("utf-8")
        return text, tomllib.loads(text)
    except OSError as error:
        raise InputError(f"the {description} {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"the {description} {path} is not valid TOML: {error}") from None


def read_plan_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a plan and its content with the names of schema 2."""
    text, content = read_toml(path, "plan")
    try:
        return text, upgrade_plan(content)
    except InputError as error:
        raise InputError(f"the plan {path}: {error}") from None


def split_variant_name(name: Any, description: str) -> tuple[str, str]:
    """Return ("PLAN", "VARIANT") for "PLAN/VARIANT"."""
    plan_name, slash, variant = name.partition("/") if isinstance(name, str) else ("", "", "")
    if not plan_name or not slash or not variant or "/" in variant:
        raise InputError(f"{description} must be PLAN/VARIANT, such as cifar10-double/none; got {name!r}")
    return plan_name, variant


def set_seed(spec: TrainSpec, seed: int) -> TrainSpec:
    """Return the spec with this seed. A reference study:PLAN/VARIANT then means the run with the same seed."""
    references = {name: getattr(spec, name) for name in REFERENCED_RUNS}
    references_with_seed = {
        name: f"{reference}/seed-{seed}"
        for name, reference in references.items()
        if reference.startswith(STUDY_PREFIX) and reference.count("/") == 1
    }
    return spec.replace(seed=seed, **references_with_seed)


def check_referenced_names(spec: TrainSpec) -> None:
    """Raise InputError if a reference to a run of a study has an invalid form."""
    for name in REFERENCED_RUNS:
        reference = getattr(spec, name)
        valid_form = r"[^/]+/[^/]+(/seed-\d+)?"
        if reference.startswith(STUDY_PREFIX) and not re.fullmatch(valid_form, reference.removeprefix(STUDY_PREFIX)):
            raise InputError(
                f"{name} must be {STUDY_PREFIX}PLAN/VARIANT (the run of the same seed) or "
                f"{STUDY_PREFIX}PLAN/VARIANT/seed-0; got {reference!r}"
            )


def read_changes(table: dict[str, Any], folder: Path, extended: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """Return the settings that a variant changes, or None if it extends a variant that is not in its plan yet.

    `lcr_multiplier` multiplies lcr_weight or lcr_gradient_ratio of the extended variant. Options of LCR and of the
    method are merged by name. Plans are read from `folder`. The recipe and the [settings] of the other plan are not
    used.
    """
    own_changes = dict(table)
    extends, multiplier = own_changes.pop("extends", None), own_changes.pop("lcr_multiplier", None)
    if extends is None:
        if multiplier is not None:
            raise InputError("lcr_multiplier needs extends, the variant whose LCR strength it multiplies")
        return own_changes
    plan_name, variant = split_variant_name(extends, "extends")
    if extends in extended:
        raise InputError(f"{extends} extends itself")
    _, plan = read_plan_file(folder / f"{plan_name}.toml")
    variants = plan.get("variants")
    extended_table = variants.get(variant) if isinstance(variants, dict) else None
    if not isinstance(extended_table, dict):
        return None
    inherited = read_changes(extended_table, folder, (*extended, extends))
    if inherited is None:
        return None
    if multiplier is not None:
        inherited = _multiply_strength(inherited, multiplier, extends)
    return _merge_changes(inherited, own_changes)


def _multiply_strength(changes: dict[str, Any], multiplier: Any, extends: str) -> dict[str, Any]:
    check_number(multiplier, "lcr_multiplier", low=0)
    strengths = {name: changes[name] * multiplier for name in LCR_STRENGTHS if name in changes}
    if not strengths:
        raise InputError(f"lcr_multiplier needs an lcr_weight or lcr_gradient_ratio, and {extends} sets neither")
    return changes | strengths


def _merge_changes(inherited: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    option_lists = {
        name: list((_index_options(inherited[name]) | _index_options(own[name])).values())
        for name in OPTION_LISTS
        if name in inherited and name in own
    }
    return inherited | own | option_lists


def _index_options(options: Any) -> dict[str, Any]:
    if not isinstance(options, list):
        raise InputError(f"options must be a list of NAME=VALUE; got {options!r}")
    return {str(option).partition("=")[0]: option for option in options}
