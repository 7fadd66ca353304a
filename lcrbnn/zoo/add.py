"""Adding a finished run to the zoo: its file, the reading of its test images, its record and its line in the list."""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import fields
from pathlib import Path

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
from lcrbnn.zoo.index import Member, members, write_index
from lcrbnn.zoo.measure import drawn_logits, read_test

SAMPLE = 1  # thousands of test images whose figure is kept too, so that a test is quick


def add_run(run: Path, name: str, recipe: str, records: Path, options: Options) -> Member:
    """Write the network of a run as a file of the zoo, read all test images with that file, and list it.

    The reading is noted in the record, `records`/NAME.json. It is one more reading of the test images, of a network
    that is not changed by it any more.
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
    path = index.FOLDER / "files" / f"{name}.safetensors"
    write_small(path, spec, net, digest)
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
