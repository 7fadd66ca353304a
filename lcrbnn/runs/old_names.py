"""Old names of settings, options, log columns and record keys (schema 1), and their translation to schema 2.

Files of schema 1 stay readable. Every reader verifies the digests of their original content, then calls one of the
`upgrade_...` functions. No new name is also the old name of something else. So a key can be translated without the
schema number, a log may contain both old and new lines, and a second upgrade changes nothing. All tables can be
inverted, because checkpoints of schema 1 contain a digest of the settings under their old names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lcrbnn.errors import InputError

SCHEMA = 2  # schema number in the specs and records that this version writes
SCHEMAS = (1, 2)  # schema numbers that this version reads

SETTINGS = {
    "data": "dataset",
    "images": "train_split",
    "augment": "augmentation",
    "side": "image_size",
    "classes": "num_classes",
    "skip_broken": "skip_broken_images",
    "start": "init_from",
    "start_with": "init_parameters",
    "norm_start": "bn_gamma_init",
    "weight": "lcr_weight",
    "share": "lcr_gradient_ratio",
    "form": "lcr_variant",
    "form_options": "lcr_options",
    "ramp": "lcr_warmup_epochs",
    "strength": "regularizer_weight",
    "distill": "distillation_alpha",
    "temperature": "distillation_temperature",
    "batch": "batch_size",
    "accumulate": "gradient_accumulation_steps",
    "decay": "weight_decay_parameters",
    "schedule": "lr_schedule",
    "pace": "lr_update_interval",
    "milestones": "lr_milestones",
    "gamma": "lr_gamma",
    "warmup": "lr_warmup_epochs",
    "consistency": "consistency_weight",
}
SETTING_VALUES = {  # dictionary: new name of the setting -> old value -> new value
    "train_split": {"all": "train+valid"},
    "augmentation": {
        "usual": "standard",
        "resized-crop": "random-resized-crop",
        "zoom-flip": "random-resized-crop-on-device",
    },
    "init_parameters": {"real": "non-latent"},
    "regularizer": {
        "spectral": "spectral-norm-latent",
        "spectral-signs": "spectral-norm-binary",
        "defensive": "defensive-quantization",
    },
    "weight_decay_parameters": {"real": "non-latent", "matrices": "conv-linear-weights"},
    "lr_schedule": {"linear-ahead": "linear-last-epoch-zero", "step": "multistep"},
}
LCR_OPTIONS = {
    "maps": "activations",
    "spans": "granularity",
    "last": "num_last_matrices",
    "start": "power_iteration_init",
    "iterations": "power_iterations",
    "root": "sqrt_eigenvalue",
    "scale": "learnable_scale",
    "quantization": "quantization_error_weight",
}
LCR_VALUES = {  # dictionary: new name of the option -> old value -> new value
    "matrix": {"batch": "cross-gram", "square": "gram", "channel": "per-sample"},
    "normalization": {"raw": "none", "unit": "l2", "centered": "centered-l2"},
    "reference": {"latent": "pre-binarization", "weights": "latent-weights"},
    "power_iteration_init": {"heaviest": "longest-column"},
    "distance": {"log": "log-ratio", "below": "ratio-below-1"},
    "coefficient": {"batch": "inverse-batch-size"},
}
RUN_OPTION_VALUES = {"step_mode": {"fast": "compiled"}}
LOG_COLUMNS = {
    "weight": "lcr_weight",
    "loss": "train_loss",
    "lip": "lcr_loss",
    "train": "train_top1",
    "valid": "valid_top1",
    "ratios": "sigma_ratios",
    "share": "lcr_gradient_ratio",
    "wait": "data_time_fraction",
}
TRAIN_FIGURES = {
    "images": "num_images",
    "last": "last_epoch",
    "over_training": "history",
    "noise": "noise_top1",
    "files": "data_loading",
    "step": "training_step",
    "teacher": "teacher_sha256",
}
DATA_LOADING = {"wait": "data_time_fraction", "broken": "num_broken_images", "which": "broken_images"}
PLAN = {"control": "baseline", "arms": "variants"}
PLAN_VARIANT = {"like": "extends", "times": "lcr_multiplier"}
TABLE_SPEC = {"studies": "plans_folder"}
TABLE = {"layers": "per_layer", "top5": "show_top5"}
TABLE_ROW = {
    "of": "variant",
    "seeds": "num_seeds",
    "paper": "paper_value",
    "note": "paper_note",
    "keep": "keep_weights_of_seeds",
    "than": "minus_gain_of",
}


def _option(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


_STUDY_OPTIONS = {
    "--part": "--shard",
    "--side-by-side": "--parallel-runs",
    "--step": "--step-mode",
    "--ahead": "--compile-workers",
    "--save-seconds": "--checkpoint-interval",
    "--cache": "--cache-images",
    "--patience": "--worker-timeout",
    "--run": "--runs-folder",
}
OPTIONS = {  # dictionary: command -> old option -> new option; an option can have several meanings
    "train": {
        # --data is an option again: a data set or the path of pictures.
        **{_option(old): _option(new) for old, new in SETTINGS.items() if old != "data"},
        "--no-skip-broken": "--no-skip-broken-images",
        "--start-from": "--init-from",
        "--run": "--run-folder",
        "--folder": "--run-folder",
        "--save-seconds": "--checkpoint-interval",
        "--step": "--step-mode",
        "--cache": "--cache-images",
        "--patience": "--worker-timeout",
        "--timeout": "--distributed-timeout",
    },
    "study": _STUDY_OPTIONS,
    "reproduce": {
        **_STUDY_OPTIONS,
        "--plan": "--table-spec",
        "--show": "--from-records",
        "--write": "--markdown",
        "--gains": "--gains-figure",
    },
    "eval": {"--final": "--test", "--patience": "--worker-timeout"},
    "robustness": {
        "--images": "--num-images",
        "--refit": "--refit-head",
        "--folder": "--corrupted-data",
        "--frost": "--frost-photos",
    },
    "attack": {"--images": "--num-images", "--batch": "--batch-size"},
    "analyze": {"--images": "--num-images", "--layers": "--per-layer"},
    "layers": {"--images": "--num-images", "--kind": "--format"},
    "cost": {"--image": "--image-size", "--classes": "--num-classes", "--layers": "--per-layer"},
    "report": {"--picture": "--sample-image", "--frost": "--frost-photos"},
    "predict": {"--skip-broken": "--allow-broken"},
    "bench": {"--batch": "--batch-size"},
    "demo": {"--weight": "--lcr-weight", "--seeds": "--num-seeds"},
}


REMOVED_OPTIONS = {  # dictionary: command -> removed option -> its replacement
    "cost": {"--paper": "python -m paper costs"},
    "methods": {"--page": "python -m tools.methods_page"},
}


def upgrade_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a training run with the names and values of schema 2. Unknown names are kept."""
    check_schema(settings)
    _check_schema_2_names(settings, SETTINGS)
    upgraded = _rename(settings, SETTINGS)
    for name, value in upgraded.items():
        upgraded[name] = _translate(SETTING_VALUES, name, value)
    if isinstance(options := upgraded.get("lcr_options"), list | tuple):
        upgraded["lcr_options"] = type(options)(_upgrade_lcr_option(option) for option in options)
    if "schema" in upgraded:
        upgraded["schema"] = SCHEMA
    return upgraded


def downgrade_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with the names and values of schema 1. This function is the inverse of `upgrade_settings`."""
    downgraded = {}
    for name, value in settings.items():
        if name == "lcr_options" and isinstance(value, list | tuple):
            value = type(value)(_downgrade_lcr_option(option) for option in value)
        downgraded[_INVERSE_SETTINGS.get(name, name)] = _translate(_INVERSE_SETTING_VALUES, name, value)
    if "schema" in downgraded:
        downgraded["schema"] = 1
    return downgraded


def upgrade_log_line(line: Any) -> Any:
    """Return a line of a log with the column names of schema 2. If it is not a dict, return it unchanged."""
    return _rename(line, LOG_COLUMNS) if isinstance(line, Mapping) else line


def upgrade_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the names of schema 2. Parts of an unexpected type are kept for later checks."""
    if record.get("schema") != 1:
        return dict(record)
    upgraded = _rename(record, {"readings": "test_results"}) | {"schema": SCHEMA}
    kind = record.get("kind")
    _update(upgraded, "settings", lambda settings: _upgrade_record_settings(kind, settings))
    _update(upgraded, "test_results", lambda results: _upgrade_list(results, {"broken": "broken_images"}))
    if kind == "train":
        _update(upgraded, "figures", _upgrade_train_figures)
        _update(upgraded, "layers", lambda layers: _upgrade_dict(layers, {"maps": "activations"}))
    elif kind == "layers":
        _update(upgraded, "figures", _upgrade_layer_figures)
    elif kind == "analyze":
        _update(upgraded, "figures", lambda figures: _upgrade_dict(figures, {"likeness": "activation_correlation"}))
    return upgraded


def upgrade_plan(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a study plan with the names of schema 2. The schema number is removed."""
    check_schema(plan)
    _check_schema_2_names(plan, PLAN)
    upgraded = _rename(plan, PLAN)
    schema = {"schema": plan["schema"]} if "schema" in plan else {}

    def upgrade_table(table: Any) -> Any:
        if not isinstance(table, Mapping):
            return table
        _check_schema_2_names(schema | dict(table), PLAN_VARIANT)
        settings = upgrade_settings(schema | dict(table))
        return _rename({name: value for name, value in settings.items() if name != "schema"}, PLAN_VARIANT)

    _update(upgraded, "settings", upgrade_table)
    if isinstance(variants := upgraded.get("variants"), Mapping):
        upgraded["variants"] = {name: upgrade_table(table) for name, table in variants.items()}
    return {name: value for name, value in upgraded.items() if name != "schema"}


def upgrade_table_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a table specification with the names of schema 2. The schema number is removed."""
    check_schema(spec)
    _check_schema_2_names(spec, TABLE_SPEC)
    upgraded = _rename(spec, TABLE_SPEC)
    schema = {"schema": spec["schema"]} if "schema" in spec else {}

    def upgrade_part(part: Any, names: Mapping[str, str]) -> Any:
        if not isinstance(part, Mapping):
            return part
        _check_schema_2_names(schema | dict(part), names)
        return _rename(part, names)

    def upgrade_table(table: Any) -> Any:
        table = upgrade_part(table, TABLE)
        if isinstance(table, dict) and isinstance(table.get("rows"), list):
            table["rows"] = [upgrade_part(row, TABLE_ROW) for row in table["rows"]]
        return table

    if isinstance(tables := upgraded.get("tables"), Mapping):
        upgraded["tables"] = {name: upgrade_table(table) for name, table in tables.items()}
    return {name: value for name, value in upgraded.items() if name != "schema"}


def check_schema(content: Mapping[str, Any]) -> None:
    """Raise InputError if the content has a schema number that this version cannot read."""
    schema = content.get("schema", SCHEMA)
    if isinstance(schema, bool) or schema not in SCHEMAS:
        raise InputError(
            f"schema {schema!r} was written by another version of lcrbnn; this version reads schemas 1 and {SCHEMA}"
        )


def reject_old_names(names: Iterable[str], renamed: Mapping[str, str], what: str = "") -> None:
    """Raise InputError if one of the names is an old name. The message states the new name."""
    for name in names:
        if name in renamed:
            raise InputError(f"{what}{name} is called {renamed[name]} now")


def reject_old_values(settings: Mapping[str, Any], values: Mapping[str, Mapping[str, str]] = SETTING_VALUES) -> None:
    """Raise InputError if a setting has an old value. The message states the new value."""
    for name, value in settings.items():
        if isinstance(value, str) and value in values.get(name, {}):
            raise InputError(f"{name} {value!r} is called {values[name][value]!r} now")


def reject_old_lcr_options(options: Iterable[Any]) -> None:
    """Raise InputError if an LCR option NAME=VALUE has an old name or value. The message states the new text."""
    for option in options:
        if (upgraded := _upgrade_lcr_option(option)) != option:
            raise InputError(f"the LCR option {option!r} is called {upgraded!r} now")


def reject_old_options(command: str, arguments: Sequence[str]) -> None:
    """Raise InputError if the command line has a renamed or removed option. The message states the new option."""
    renamed, removed = OPTIONS.get(command, {}), REMOVED_OPTIONS.get(command, {})
    for word in arguments:
        if word == "--":
            return
        option = word.partition("=")[0]
        if option in renamed:
            raise InputError(f"{option} is called {renamed[option]} now; see lcrbnn {command} --help")
        if option in removed:
            raise InputError(f"lcrbnn {command} {option} was removed; use {removed[option]}")


def _invert(table: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in table.items()}


_INVERSE_SETTINGS = _invert(SETTINGS)
_INVERSE_SETTING_VALUES = {name: _invert(values) for name, values in SETTING_VALUES.items()}
_INVERSE_LCR_OPTIONS = _invert(LCR_OPTIONS)
_INVERSE_LCR_VALUES = {name: _invert(values) for name, values in LCR_VALUES.items()}


def _rename(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for name, value in content.items():
        new = names.get(name, name)
        if new != name and new in content:
            raise InputError(f"{name} and {new} are the same setting; keep {new}")
        renamed[new] = value
    return renamed


def _translate(values: Mapping[str, Mapping[str, str]], name: str, value: Any) -> Any:
    return values.get(name, {}).get(value, value) if isinstance(value, str) else value


def _upgrade_lcr_option(option: Any) -> Any:
    if not isinstance(option, str) or "=" not in option:
        return option
    name, _, value = option.partition("=")
    name = LCR_OPTIONS.get(name, name)
    return f"{name}={_translate(LCR_VALUES, name, value)}"


def _downgrade_lcr_option(option: Any) -> Any:
    if not isinstance(option, str) or "=" not in option:
        return option
    name, _, value = option.partition("=")
    return f"{_INVERSE_LCR_OPTIONS.get(name, name)}={_translate(_INVERSE_LCR_VALUES, name, value)}"


def _check_schema_2_names(content: Mapping[str, Any], renamed: Mapping[str, str]) -> None:
    """Raise InputError if the content declares schema 2 but has a name of schema 1."""
    if content.get("schema") == SCHEMA:
        reject_old_names(content, renamed)


def _update(record: dict[str, Any], name: str, upgrade: Callable[[Any], Any]) -> None:
    if name in record:
        record[name] = upgrade(record[name])


def _upgrade_dict(part: Any, names: Mapping[str, str]) -> Any:
    return _rename(part, names) if isinstance(part, Mapping) else part


def _upgrade_list(parts: Any, names: Mapping[str, str]) -> Any:
    return [_upgrade_dict(part, names) for part in parts] if isinstance(parts, list) else parts


def _upgrade_record_settings(kind: Any, settings: Any) -> Any:
    """Return the upgraded settings of a record, which are either a spec, or a dict that contains specs."""
    if not isinstance(settings, Mapping):
        return settings
    if "schema" in settings:
        return upgrade_settings(settings)
    upgraded = {
        name: upgrade_settings(value) if isinstance(value, Mapping) and "schema" in value else value
        for name, value in settings.items()
    }
    return _rename(upgraded, {"run": "spec"}) if kind in ("robustness", "attack", "analyze") else upgraded


def _upgrade_train_figures(figures: Any) -> Any:
    if not isinstance(figures, Mapping):
        return figures
    upgraded = _rename(figures, TRAIN_FIGURES)
    _update(upgraded, "last_epoch", upgrade_log_line)
    _update(upgraded, "history", lambda lines: _upgrade_list(lines, LOG_COLUMNS))
    _update(upgraded, "data_loading", lambda facts: _upgrade_dict(facts, DATA_LOADING))
    return upgraded


def _upgrade_layer_figures(figures: Any) -> Any:
    if not isinstance(figures, Mapping):
        return figures
    return {name: _upgrade_dict(layers, {"maps": "activations"}) for name, layers in figures.items()}
