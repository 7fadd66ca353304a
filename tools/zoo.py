"""Add a finished run to the zoo, with a file of its network, its test accuracy, its record and its index entry.

    python -m tools.zoo runs/a/seed-0 NAME --recipe RECIPE [--siblings FOLDER] [--note TEXT]

It writes lcrbnn/zoo/files/NAME.safetensors (or zoo/NAME.safetensors if the file is too large for the wheel), evaluates
the test set with this file, and writes bench/records/zoo/NAME.json and lcrbnn/zoo/index.json.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import statistics
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from lcrbnn.cli.run_options import add_data_folder_option, add_device_option
from lcrbnn.errors import InputError
from lcrbnn.recipes.recipe import find_recipe
from lcrbnn.runs.record import append_test_result, read_record, write_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.zoo import zoo_index as index
from lcrbnn.zoo.zoo_file import read_zoo_file, write_zoo_file
from lcrbnn.zoo.zoo_index import ZooMember, list_members, member_path, write_index
from lcrbnn.zoo.zoo_model import compute_probe_logits, evaluate_zoo_file

RECORDS = Path(__file__).parents[1] / "bench" / "records" / "zoo"
SAMPLE_THOUSANDS = 1  # number of thousands of test images on which the record also has the accuracy, for a quick test


def add_run_to_zoo(
    run: Path, name: str, recipe: str, records: Path, options: RunOptions, siblings: Path | None = None, note: str = ""
) -> ZooMember:
    """Write a zoo file with the network of a run, evaluate the file on the test set, and add it to the index.

    The test result is stored in `records`/NAME.json. The network is not changed after this, so the second use of its
    test set selects nothing. `siblings` is the folder with the records of all seeds of the run. The index states their
    mean accuracy.
    """
    members = list_members()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise InputError(f"a zoo name consists of small letters, digits, dots and dashes; got {name!r}")
    if name in members:
        raise InputError(f"the zoo has a network {name!r} already")
    folder = RunFolder(run)
    spec, net, digest = load_network(folder)
    if not folder.record_file.exists():
        raise InputError(f"the run in {run} is not finished; only finished runs can be added to the zoo")
    run_record = read_record(folder.record_file)
    train_command = format_train_command(recipe, spec, name)
    test_result = _find_test_result(run_record)
    num_runs, mean_top1 = 1, None if test_result is None else float(test_result["top1"])
    if siblings is not None:
        num_runs, mean_top1 = compute_mean_top1_over_seeds(spec, siblings)
    path = index.ZOO_FOLDER / "files" / f"{name}.safetensors"
    write_zoo_file(path, spec, net, digest)
    path = _move_if_too_large_for_wheel(path, name)
    zoo_file = read_zoo_file(path)
    try:
        accuracy = evaluate_zoo_file(zoo_file, options)
        sample_accuracy = evaluate_zoo_file(zoo_file, options, SAMPLE_THOUSANDS)
    except BaseException:
        path.unlink()  # remove the zoo file, because the index has no entry for it
        raise
    member = ZooMember(
        name=name,
        model=spec.model,
        method=spec.method + (f" {spec.bits}" if spec.bits else ""),
        dataset=spec.dataset,
        lcr=_describe_lcr(spec),
        top1=round(accuracy.top1, 2),
        images=accuracy.images,
        bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        train_command=train_command,
        record=f"bench/records/zoo/{name}.json",
        seed=spec.seed,
        runs=num_runs,
        mean_top1=None if mean_top1 is None else round(mean_top1, 2),
        note=note,
    )
    figures = {
        "bytes": member.bytes,
        "sha256": member.sha256,
        "checkpoint_sha256": run_record["figures"]["checkpoint_sha256"],
        "as_trained": test_result and {key: test_result[key] for key in ("top1", "images", "device")},
        "sample": sample_accuracy._asdict(),
        "drawn": compute_probe_logits(zoo_file.model, find_dataset(zoo_file.spec)),
    }
    record = records / f"{name}.json"
    write_record(record, "zoo", zoo_file.spec.to_dict(), figures)
    append_test_result(record, {"split": "test", **accuracy._asdict(), "sha256": member.sha256, "precision": "float32"})
    write_index(members | {name: member})
    return member


def format_train_command(recipe: str, spec: TrainSpec, name: str) -> str:
    """Return the command that trains this spec.

    It has the recipe, the run folder, and the settings that differ from the recipe.
    """
    recipe_spec, command = find_recipe(recipe).spec, ["lcrbnn", "train", recipe]
    for setting in fields(TrainSpec):
        value, flag = getattr(spec, setting.name), f"--{setting.name.replace('_', '-')}"
        if value == getattr(recipe_spec, setting.name):
            continue
        if isinstance(value, bool):
            command.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            command += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join([*command, "--run-folder", f"runs/{name}"])


def compute_mean_top1_over_seeds(spec: TrainSpec, records: Path) -> tuple[int, float]:
    """Return how many recorded runs differ from `spec` only in the seed, and their mean test accuracy."""
    top1 = {}
    for path in sorted(records.glob("seed-*.json")):
        record = read_record(path)
        settings = TrainSpec.from_dict(record["settings"])
        test_result = _find_test_result(record)
        if test_result is not None and settings.replace(seed=spec.seed) == spec:
            top1[settings.seed] = test_result["top1"]
    if spec.seed not in top1:
        raise InputError(f"{records} has no record of the run with seed {spec.seed} that has a test result")
    return len(top1), statistics.fmean(top1.values())


def _find_test_result(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the first test result of a record, or None if there is none."""
    return next((result for result in record.get("test_results", []) if result.get("split") == "test"), None)


def _move_if_too_large_for_wheel(path: Path, name: str) -> Path:
    final = member_path(name, path.stat().st_size)
    if final != path:
        final.parent.mkdir(parents=True, exist_ok=True)
        path.replace(final)
    return final


def _describe_lcr(spec: TrainSpec) -> str:
    if not spec.uses_lcr:
        return "none"
    is_ratio = spec.lcr_gradient_ratio > 0
    strength = f"gradient ratio {spec.lcr_gradient_ratio:g}" if is_ratio else f"weight {spec.lcr_weight:g}"
    return ", ".join([spec.lcr_variant, strength, *spec.lcr_options])


def main() -> int:
    """Add one run and print its entry."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("name", metavar="NAME", help="name of the network in the zoo")
    parser.add_argument("--recipe", required=True, help="name of the recipe with which the run was trained")
    parser.add_argument(
        "--siblings",
        type=Path,
        metavar="FOLDER",
        help="records of the runs with these settings and other seeds, for the mean test accuracy",
    )
    parser.add_argument("--note", default="", help="warning about comparisons with other networks")
    add_device_option(parser)
    add_data_folder_option(parser)
    args = parser.parse_args()
    options = RunOptions(args.device, args.data_folder)
    try:
        member = add_run_to_zoo(args.run, args.name, args.recipe, RECORDS, options, args.siblings, args.note)
    except InputError as error:
        print(f"tools.zoo: {error}", file=sys.stderr)
        return 2
    print(f"{member.name}: {member.top1:.2f} % of {member.images:,} test images, {member.bytes:,} bytes")
    print(member.train_command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
