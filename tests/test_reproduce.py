"""A small table of digits, made from nothing, interrupted and continued; its figures are those of its records."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

from lcrbnn.analyze.layers import look_at_run
from lcrbnn.cli import main
from lcrbnn.errors import Failed, InputError
from lcrbnn.study import plan as planning
from lcrbnn.study import reproduce
from lcrbnn.study.plan import Part
from lcrbnn.study.promise import Promise, read_promise
from lcrbnn.study.reproduce import run_tables
from lcrbnn.study.results import progress, render, render_table
from lcrbnn.study.weights import read_weights, recompute, write_weights
from lcrbnn.train.options import Options
from tests.runs.helpers import write_without_digest

STUDY = """# Digits, two arms
recipe = "digits"
seeds = [0]
control = "none"
[settings]
images = "all"
epochs = 1
batch = 500
[arms.none]
[arms.kept]
weight = 1
"""
PLAN = """studies = "../studies"
[tables.small]
title = "Digits"
source = "Table 0"
layers = true
rows = [
    { title = "without", of = "digits/none", seeds = 2, paper = 60.0, keep = [1] },
    { title = "with", of = "digits/kept", seeds = 2, paper = 61.5, note = "a guess" },
    { title = "later", of = "digits/later", seeds = 2 },
]
"""
OPTIONS = Options(device="cpu")


def promised(folder: Path, records: Path | None = None) -> Promise:
    for name, text in (("studies/digits.toml", STUDY), ("results/plan.toml", PLAN)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return read_promise(folder / "results" / "plan.toml", records)


def run(promise: Promise, folder: Path) -> list[str]:
    return run_tables(promise, [promise.tables["small"]], folder / "runs", OPTIONS, 2, look=look_at_run)


def records(folder: Path) -> dict[str, dict[str, Any]]:
    root = folder / "results" / "digits"
    return {f"{p.parent.name}/{p.stem}": json.loads(p.read_text()) for p in sorted(root.rglob("*.json"))}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table, whose making was interrupted twice: after the second reading, and before the third."""
    folder = tmp_path_factory.mktemp("reproduce")
    promise = promised(folder)
    torch.set_num_threads(1)
    looks = itertools.count(1)

    def look(path: Path, options: Options) -> dict[str, Any]:
        return interrupt() if next(looks) == 2 else look_at_run(path, options)

    with pytest.raises(KeyboardInterrupt):
        run_tables(promise, [promise.tables["small"]], folder / "runs", OPTIONS, 2, look=look)
    assert readings(folder) == {"none/seed-0": 1, "none/seed-1": 0}  # the second was read, but its record not kept
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(promise, folder)
    assert readings(folder) == {"kept/seed-0": 0, "kept/seed-1": 0, "none/seed-0": 1, "none/seed-1": 1}
    assert progress(promise, promise.tables["small"]) == (1, 3, 2, 6)
    run(promise, folder)
    return folder


def interrupt(*given: Any, **named: Any) -> Any:
    raise KeyboardInterrupt


def readings(folder: Path) -> dict[str, int]:
    return {place: len(record.get("readings", [])) for place, record in records(folder).items()}


def test_an_interrupted_table_goes_on_and_reads_every_test_once(made: Path) -> None:
    found = records(made)
    assert list(found) == ["kept/seed-0", "kept/seed-1", "none/seed-0", "none/seed-1"]
    for record in found.values():
        assert [(r["split"], r["images"]) for r in record["readings"]] == [("test", 500)]
        assert record["readings"][0]["checkpoint_sha256"] == record["figures"]["checkpoint_sha256"]
    before = {p: p.stat().st_mtime_ns for p in made.rglob("*") if p.is_file()}
    sentences = run(promised(made), made)
    assert sentences == ["digits/later is not decided yet: its plan lacks the arm, or the one that it is like"]
    after = {p: p.stat().st_mtime_ns for p in made.rglob("*") if p.is_file() and p.suffix != ".toml"}
    assert [p for p in after if after[p] != before[p]] == []


def test_parts_are_every_arm_once(made: Path) -> None:
    promise = promised(made)
    parts = [Part(number, 3) for number in (1, 2, 3)]
    missing = [run_tables(promise, [promise.tables["small"]], made / "runs", OPTIONS, 2, part) for part in parts]
    assert [len(sentences) for sentences in missing] == [0, 0, 1]


def test_the_table_shows_what_the_records_say(made: Path) -> None:
    promise = promised(made)
    lines = [line.strip("| ").split(" | ") for line in render_table(promise, promise.tables["small"]).splitlines()]
    cells = [[cell.strip() for cell in line] for line in lines]
    found = {place: record["readings"][0]["top1"] for place, record in records(made).items()}
    none, kept = ([found[f"{arm}/seed-{seed}"] for seed in (0, 1)] for arm in ("none", "kept"))
    assert cells[2][:4] == ["without", "2", "60.0", f"{statistics.fmean(none):.2f} ({statistics.stdev(none):.2f})"]
    assert cells[3][:3] == ["with", "2", "61.5 (a guess)"]
    assert cells[3][5] == f"{statistics.fmean(kept) - 61.5:+.2f}".replace("-", "−")
    assert cells[3][6] == f"{statistics.fmean(kept) - statistics.fmean(none):+.2f}".replace("-", "−")
    assert cells[3][9] == "+1.5"
    assert cells[4][:3] == ["later", "not run", "–"]
    share = statistics.fmean(records(made)[f"kept/seed-{s}"]["figures"]["last"]["share"] for s in (0, 1))
    assert cells[3][10] == f"{share:.4f}".removeprefix("0")
    assert progress(promise, promise.tables["small"]) == (2, 3, 4, 6)


def test_layers_of_every_run_are_in_its_record_and_in_the_document(made: Path) -> None:
    text = render(promised(made))
    found = records(made)
    deviation = [found[f"none/seed-{s}"]["layers"]["weights"]["layer2.0.conv2"]["std"] for s in (0, 1)]
    assert f"| {statistics.fmean(deviation):.3f} " in next(
        line for line in text.splitlines() if line.startswith("| `layer2.0.conv2` ")
    )
    likeness = [found[f"kept/seed-{s}"]["layers"]["maps"]["pool"]["binary"]["correlation"] for s in (0, 1)]
    assert f"| {statistics.fmean(likeness):.3f} (" in next(
        line for line in text.splitlines() if line.startswith("| `pool` ")
    )
    assert "| rank correlation " in text


def test_kept_weights_give_the_figure_of_their_record_again(made: Path, tmp_path: Path) -> None:
    files = list((made / "results" / "weights").iterdir())
    assert [p.name for p in files] == ["digits-none-seed-1.safetensors"]
    record = records(made)["none/seed-1"]
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
    assert record["weights"] == {"file": files[0].name, "sha256": digest}
    assert read_weights(files[0]).checkpoint == record["figures"]["checkpoint_sha256"]
    again = recompute(files[0], OPTIONS)
    assert (again.top1, again.images) == (record["readings"][0]["top1"], 500)
    other = tmp_path / "other.safetensors"
    write_weights(made / "runs" / "digits" / "none" / "seed-0", other)
    assert recompute(other, OPTIONS).loss != pytest.approx(again.loss, abs=1e-4)  # another seed would not do


def test_damaged_weights_are_refused(made: Path, tmp_path: Path) -> None:
    file = next((made / "results" / "weights").iterdir())
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="the checksum of"):
        read_weights(tmp_path / "bad.safetensors")
    checkpoint = next((made / "runs" / "digits" / "none" / "seed-0" / "checkpoints").iterdir())
    with pytest.raises(InputError, match="holds a checkpoint of a run, not the weights of a finished one"):
        read_weights(checkpoint)


def test_a_record_without_a_reading_and_without_its_run_is_not_made_anew_in_silence(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "results", tmp_path / "results")
    shutil.copytree(made / "studies", tmp_path / "studies")
    path = tmp_path / "results" / "digits" / "kept" / "seed-1.json"
    record = json.loads(path.read_text())
    del record["readings"]
    write_without_digest(path, record)
    with pytest.raises(InputError, match="whose test images were not read, and that run is not in"):
        run(read_promise(tmp_path / "results" / "plan.toml"), tmp_path)


def test_what_a_record_lacks_is_added_from_its_run_without_another_reading(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    places = {place: folder / "results" / "digits" / f"{place}.json" for place in ("none/seed-1", "kept/seed-0")}
    whole = {place: json.loads(path.read_text()) for place, path in places.items()}
    for place, path in places.items():  # as `lcrbnn eval --final` leaves them, the readings noted in one place only
        bare = {part: value for part, value in whole[place].items() if part not in ("layers", "weights")}
        write_without_digest(path, bare)
        del bare["readings"]
        write_without_digest(folder / "runs" / "digits" / place / "record.json", bare)
    shutil.rmtree(folder / "results" / "weights")
    shutil.rmtree(folder / "runs" / "digits" / "kept" / "seed-0")  # nothing can be added to that one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "evaluate", None)  # nothing is read
        run(promised(folder), folder)
    assert records(folder)["none/seed-1"] == whole["none/seed-1"]
    assert (folder / "results" / "weights" / "digits-none-seed-1.safetensors").exists()
    assert "layers" not in records(folder)["kept/seed-0"]


def test_the_command_runs_a_table_lists_and_writes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["reproduce", "--plan", str(made / "results" / "plan.toml"), "--run", str(made / "runs")]
    assert main(words) == 0
    assert capsys.readouterr().out == "small  2 of 3 rows, 4 of 6 runs      Digits\n"
    assert main([*words, "small", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "| without | 2 " in said.out
    assert said.err == "lcrbnn: digits/later is not decided yet: its plan lacks the arm, or the one that it is like\n"
    assert main([*words, "--write", str(tmp_path / "results.md")]) == 0
    assert (tmp_path / "results.md").read_text() == render(promised(made))
    capsys.readouterr()
    assert main([*words, "smal"]) == 2
    assert "no table is called 'smal'; there are small" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main([*words, "small", "--show", "--records", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.count("not run") == 3


@pytest.mark.parametrize(
    "more",
    [["small", "--show"], ["--write", "page.md"], ["--gains", "a.svg"], ["small", "--show", "--write"], []],
    ids=str,
)
def test_records_that_are_not_there_are_no_empty_tables(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    promised(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for name in ("page.md", "docs/results.md"):
        (tmp_path / name).write_text("as it was")
    (tmp_path / "file").write_text("")
    for folder in ("nowhere", "file"):
        assert main(["reproduce", *more, "--records", folder]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", f"lcrbnn: there is no folder of records called {folder}\n")
    assert [(tmp_path / name).read_text() for name in ("page.md", "docs/results.md")] == ["as it was"] * 2


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--gains", "x.txt"], "a figure is a .png, .svg or .pdf file; got 'x.txt'"),
        (["--gains", "file/x.svg"], "a figure cannot be written to file/x.svg: {here}/file is not a folder"),
        (["--write", "results"], "a document cannot be written to results: it is a folder"),
        (["--ahead", "-1"], "--ahead must be a whole number of at least 0; got -1"),
        (["--part", "3/2"], "a part is written number/total, such as 1/4; got '3/2'"),
    ],
)
def test_nothing_is_printed_or_run_before_all_words_are_checked(
    more: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    promised(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for show in ([], ["--show"]):
        assert main(["reproduce", "small", *show, *more]) == 2
        shown = capsys.readouterr()
        assert (shown.out, shown.err) == ("", f"lcrbnn: {sentence.format(here=tmp_path)}\n")
    assert not (tmp_path / "runs").exists()


def test_outside_the_source_tree_it_is_said_where_the_tables_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce"]) == 2
    said = "the list of tables, results/plan.toml, belongs to the source tree and is not here: "
    assert capsys.readouterr().err == f"lcrbnn: {said}go there, or say --plan FILE\n"
    assert main(["reproduce", "--plan", "mine.toml"]) == 2
    assert capsys.readouterr().err == "lcrbnn: the list of tables mine.toml cannot be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('studies = "../studies"', "", "studies names a folder, and tables are there"),
        ('source = "Table 0"', "", "it lacks source"),
        ("rows = [", "plans = []\nrows = [", "table small lists rows, or plans whose arms are its rows"),
        ("layers = true", "layers = 1", "layers is of the wrong kind; got 1"),
        ("layers = true", "layer = true", "no part of a table is called 'layer'"),
        ("seeds = 2, paper = 60.0", "seeds = 0, paper = 60.0", "row 1 of table small: seeds must be a whole number"),
        ("paper = 61.5", 'paper = "61.5"', "row 2 of table small: paper is of the wrong kind; got '61.5'"),
        ("keep = [1]", "keep = [2]", "row 1 of table small: keep lists some of the seeds; got [2]"),
        ('of = "digits/later"', 'of = "digits"', "row 3 of table small: of is written PLAN/ARM"),
        ("rows = [", "rows = [ 3,", "row 1 of table small: a row is a table; got 3"),
    ],
)
def test_a_list_of_tables_that_is_wrong_is_refused(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in PLAN
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new))
    with pytest.raises(InputError) as refusal:
        read_promise(path)
    assert str(refusal.value).startswith(f"the list of tables {path}: ")
    assert sentence in str(refusal.value)


def test_some_seeds_of_a_table_can_be_made_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    promised(tmp_path)
    words = ["reproduce", "small", "--plan", str(tmp_path / "results" / "plan.toml"), "--run", str(tmp_path / "runs")]
    assert main([*words, "--device", "cpu", "--seeds", "1"]) == 0
    assert readings(tmp_path) == {"kept/seed-1": 1, "none/seed-1": 1}
    capsys.readouterr()
    assert main([*words, "--device", "cpu", "--seeds", "2"]) == 2
    assert capsys.readouterr().err == "lcrbnn: there is no run of seed 2: the seeds are 0, 1\n"


def test_a_run_that_fails_does_not_keep_the_rest_of_a_table_from_its_figures(tmp_path: Path) -> None:
    promised(tmp_path)
    (tmp_path / "studies" / "broken.toml").write_text(STUDY.replace("[arms.none]", "[arms.none]\nlr = 1e30"))
    path = tmp_path / "results" / "plan.toml"
    broken = '{ title = "no", of = "broken/none", seeds = 1 },\n    { title = "with"'
    path.write_text(PLAN.replace('{ title = "with"', broken).replace("keep = [1]", "keep = []"))
    promise = read_promise(path)
    with pytest.raises(Failed, match=r"^broken/none/seed-0: bad numbers at step 1 "):
        run_tables(promise, [promise.tables["small"]], tmp_path / "runs", OPTIONS, 2, look=look_at_run)
    assert readings(tmp_path) == {"kept/seed-0": 1, "kept/seed-1": 1, "none/seed-0": 1, "none/seed-1": 1}


def test_all_runs_of_some_tables_go_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promised(tmp_path)
    (tmp_path / "studies" / "other.toml").write_text(STUDY)
    path = tmp_path / "results" / "plan.toml"
    between = '{ title = "between", of = "other/none", seeds = 1 },\n    { title = "with"'
    rows = ['{ title = "more", of = "digits/none", seeds = 3 }', '{ title = "new", of = "other/kept", seeds = 1 }']
    second = f'[tables.second]\ntitle = "More"\nsource = "none"\nrows = [{", ".join(rows)}]\n'
    path.write_text(PLAN.replace('{ title = "with"', between) + second)
    promise = read_promise(path)
    groups: list[list[str]] = []

    def note(runs: dict[Path, Any], *given: Any, **named: Any) -> None:
        groups.append([str(place.relative_to(tmp_path / "runs")) for place in runs])

    monkeypatch.setattr(planning, "train_together", note)
    run_tables(promise, list(promise.tables.values()), tmp_path / "runs", OPTIONS, 4)
    plain = ["digits/none/seed-0", "digits/none/seed-1", "digits/none/seed-2", "other/none/seed-0"]
    kept = ["digits/kept/seed-0", "digits/kept/seed-1", "other/kept/seed-0"]
    assert groups == [plain, kept]
