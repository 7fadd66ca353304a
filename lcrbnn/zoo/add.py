"""Adding a finished run to the zoo: its file, the reading of its test images, its record and its line in the list."""

from __future__ import annotations

import hashlib
import re
import shlex
import statistics
from dataclasses import fields
from pathlib import Path
from typing import Any

from lcrbnn.errors import InputError
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import note_reading, read_record, write_record
from lcrbnn.train.build import load_network
from lcrbnn.train.dataset import data_row
from lcrbnn.train.options import Options
from lcrbnn.train.recipes import find_recipe
from lcrbnn.train.spec import Spec
from lcrbnn.zoo import index
from lcrbnn.zoo.file import read_small, write_small
from lcrbnn.zoo.index import Member, member_path, members, write_index
from lcrbnn.zoo.measure import drawn_logits, read_test

SAMPLE = 1  # thousands of test images whose figure is kept too, so that a test is quick


def add_run(
    run: Path, name: str, recipe: str, records: Path, options: Options, siblings: Path | None = None, note: str = ""
) -> Member:
    """Write the network of a run as a file of the zoo, read all test images with that file, and list it.

    The reading is noted in the record, `records`/NAME.json. It is one more reading of the test images, of a network
    that is not changed by it any more. `siblings` is the folder of the records of all runs that differ from this one
    only in the seed: the list shows their mean accuracy beside that of the file.
    """
    listed = members()
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise InputError(f"a name of the zoo is made of small letters, digits, dots and dashes; got {name!r}")
    if name in listed:
        raise InputError(f"the zoo has a network {name!r} already")
    folder = RunFolder(run)
    spec, net, digest = load_network(folder)
    if not folder.record.exists():
        raise InputError(f"the run in {run} is not finished: the zoo is for finished runs")
    trained = read_record(folder.record)
    words = command(recipe, spec, name)
    runs, mean = (1, _trained_top1(trained)) if siblings is None else mean_of_siblings(spec, siblings)
    path = index.FOLDER / "files" / f"{name}.safetensors"
    write_small(path, spec, net, digest)
    path = _move_if_too_large_for_wheel(path, name)
    small = read_small(path)
    try:
        whole, sample = read_test(small, options), read_test(small, options, SAMPLE)
    except BaseException:
        path.unlink()  # no file without its line in the list
        raise
    member = Member(
        name=name,
        network=spec.model,
        method=spec.method + (f" {spec.bits}" if spec.bits else ""),
        data=spec.data,
        retention=_retention(spec),
        top1=round(whole.top1, 2),
        images=whole.images,
        bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        recipe=words,
        record=f"results/zoo/{name}.json",
        seed=spec.seed,
        runs=runs,
        mean_top1=None if mean is None else round(mean, 2),
        note=note,
    )
    _write_record(records / f"{name}.json", member, small.spec, trained, whole._asdict(), sample._asdict())
    write_index(listed | {name: member})
    return member


def command(recipe: str, spec: Spec, name: str) -> str:
    """The command that trains a spec: the recipe, every setting in which the spec differs from it, a folder for it."""
    base, words = find_recipe(recipe).spec, ["lcrbnn", "train", recipe]
    for one in fields(Spec):
        value, flag = getattr(spec, one.name), f"--{one.name.replace('_', '-')}"
        if value == getattr(base, one.name):
            continue
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join([*words, "--run", f"runs/{name}"])


def mean_of_siblings(spec: Spec, records: Path) -> tuple[int, float]:
    """Number and mean test accuracy of the recorded runs whose settings differ from `spec` only in the seed."""
    top1 = {}
    for path in sorted(records.glob("seed-*.json")):
        record = read_record(path)
        settings = Spec.of(record["settings"])
        accuracy = _trained_top1(record)
        if accuracy is not None and settings.but(seed=spec.seed) == spec:
            top1[settings.seed] = accuracy
    if spec.seed not in top1:
        raise InputError(f"{records} has no record of the run with seed {spec.seed} that has read the test images")
    return len(top1), statistics.fmean(top1.values())


def _trained_top1(record: dict[str, Any]) -> float | None:
    """The first test result that a record holds."""
    return next((one["top1"] for one in record.get("readings", []) if one.get("split") == "test"), None)


def _move_if_too_large_for_wheel(path: Path, name: str) -> Path:
    final = member_path(name, path.stat().st_size)
    if final != path:
        final.parent.mkdir(parents=True, exist_ok=True)
        path.replace(final)
    return final


def _retention(spec: Spec) -> str:
    if not spec.retains:
        return "none"
    strength = f"share {spec.share:g}" if spec.share > 0 else f"weight {spec.weight:g}"
    return " ".join([spec.form, strength, *spec.form_options])


def _write_record(path: Path, member: Member, spec: Spec, trained: dict, whole: dict, sample: dict) -> None:
    first = next((one for one in trained.get("readings", []) if one.get("split") == "test"), None)
    figures = {
        "bytes": member.bytes,
        "sha256": member.sha256,
        "checkpoint_sha256": trained["figures"]["checkpoint_sha256"],
        "as_trained": None if first is None else {key: first[key] for key in ("top1", "images", "device")},
        "sample": sample,
        "drawn": drawn_logits(read_small(member.path).model, data_row(spec)),
    }
    write_record(path, "zoo", spec.stored(), figures)
    note_reading(path, {"split": "test", **whole, "sha256": member.sha256, "precision": "float32"})
