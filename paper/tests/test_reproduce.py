"""A small table of digits is trained, interrupted and continued. Its values are those of its records."""

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

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError, RunFailed
from lcrbnn.study import plan as planning
from lcrbnn.study.plan import StudyPart
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.weights_file import read_weights, write_weights
from paper.tables import run_tables as reproduce
from paper.tables.layer_records import measure_run_layers
from paper.tables.recompute_accuracy import recompute_test_accuracy
from paper.tables.render_tables import count_finished, render_document, render_table
from paper.tables.run_tables import run_tables
from paper.tables.table_spec import PaperTables, read_table_spec
from tests.runs.helpers import write_without_digest

STUDY = """# Digits, two variants
recipe = "digits"
seeds = [0]
baseline = "none"
[settings]
train_split = "train+valid"
epochs = 1
batch_size = 500
[variants.none]
[variants.kept]
lcr_weight = 1
"""
PLAN = """plans_folder = "studies"
records = "results"
[tables.small]
title = "Digits"
source = "Table 0"
per_layer = true
rows = [
    { title = "without", variant = "digits/none", num_seeds = 2, paper_value = 60.0, keep_weights_of_seeds = [1] },
    { title = "with", variant = "digits/kept", num_seeds = 2, paper_value = 61.5, paper_note = "a guess" },
    { title = "later", variant = "digits/later", num_seeds = 2 },
]
"""
OPTIONS = RunOptions(device="cpu")
ROOT = Path(__file__).parents[2]


def write_table_spec(folder: Path, records: Path | None = None) -> PaperTables:
    for name, text in (("paper/studies/digits.toml", STUDY), ("paper/tables.toml", PLAN)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return read_table_spec(folder / "paper" / "tables.toml", records)


def run_table(paper_tables: PaperTables, folder: Path) -> list[str]:
    return run_tables(
        paper_tables, [paper_tables.tables["small"]], folder / "runs", OPTIONS, 2, measure_layers=measure_run_layers
    )


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    root = folder / "paper" / "results" / "digits"
    return {f"{p.parent.name}/{p.stem}": json.loads(p.read_text()) for p in sorted(root.rglob("*.json"))}


@pytest.fixture(scope="module")
def reproduced_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a table that was interrupted twice: after the second evaluation and before the third."""
    folder = tmp_path_factory.mktemp("reproduce")
    paper_tables = write_table_spec(folder)
    torch.set_num_threads(1)
    calls = itertools.count(1)

    def measure_layers(path: Path, options: RunOptions) -> dict[str, Any]:
        return interrupt() if next(calls) == 2 else measure_run_layers(path, options)

    with pytest.raises(KeyboardInterrupt):
        run_tables(
            paper_tables, [paper_tables.tables["small"]], folder / "runs", OPTIONS, 2, measure_layers=measure_layers
        )
    assert count_test_results(folder) == {
        "none/seed-0": 1,
        "none/seed-1": 0,
    }  # the second was evaluated, but its record not stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "evaluate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_table(paper_tables, folder)
    assert count_test_results(folder) == {"kept/seed-0": 0, "kept/seed-1": 0, "none/seed-0": 1, "none/seed-1": 1}
    assert count_finished(paper_tables, paper_tables.tables["small"]) == (1, 3, 2, 6)
    run_table(paper_tables, folder)
    return folder


def interrupt(*arguments: Any, **options: Any) -> Any:
    raise KeyboardInterrupt


def count_test_results(folder: Path) -> dict[str, int]:
    return {place: len(record.get("test_results", [])) for place, record in read_records(folder).items()}


def test_an_interrupted_table_continues_and_evaluates_every_run_once(reproduced_folder: Path) -> None:
    runs = read_records(reproduced_folder)
    assert list(runs) == ["kept/seed-0", "kept/seed-1", "none/seed-0", "none/seed-1"]
    for record in runs.values():
        assert [(r["split"], r["images"]) for r in record["test_results"]] == [("test", 500)]
        assert record["test_results"][0]["checkpoint_sha256"] == record["figures"]["checkpoint_sha256"]
    before = {p: p.stat().st_mtime_ns for p in reproduced_folder.rglob("*") if p.is_file()}
    sentences = run_table(write_table_spec(reproduced_folder), reproduced_folder)
    assert sentences == ["digits/later is not decided yet: its plan lacks the variant, or the one that it extends"]
    after = {p: p.stat().st_mtime_ns for p in reproduced_folder.rglob("*") if p.is_file() and p.suffix != ".toml"}
    assert [p for p in after if after[p] != before[p]] == []


def test_shards_contain_every_variant_once(reproduced_folder: Path) -> None:
    paper_tables = write_table_spec(reproduced_folder)
    parts = [StudyPart(number, 3) for number in (1, 2, 3)]
    missing = [
        run_tables(paper_tables, [paper_tables.tables["small"]], reproduced_folder / "runs", OPTIONS, 2, part)
        for part in parts
    ]
    assert [len(sentences) for sentences in missing] == [0, 0, 1]


def test_the_table_shows_the_values_of_the_records(reproduced_folder: Path) -> None:
    paper_tables = write_table_spec(reproduced_folder)
    lines = [
        line.strip("| ").split(" | ") for line in render_table(paper_tables, paper_tables.tables["small"]).splitlines()
    ]
    cells = [[cell.strip() for cell in line] for line in lines]
    runs = {place: record["test_results"][0]["top1"] for place, record in read_records(reproduced_folder).items()}
    without, with_lcr = ([runs[f"{variant}/seed-{seed}"] for seed in (0, 1)] for variant in ("none", "kept"))
    assert cells[2][:4] == [
        "without",
        "2",
        "60.0",
        f"{statistics.fmean(without):.2f} ({statistics.stdev(without):.2f})",
    ]
    assert cells[3][:3] == ["with", "2", "61.5 (a guess)"]
    assert cells[3][5] == f"{statistics.fmean(with_lcr) - 61.5:+.2f}".replace("-", "−")
    assert cells[3][6] == f"{statistics.fmean(with_lcr) - statistics.fmean(without):+.2f}".replace("-", "−")
    assert cells[3][9] == "+1.5"
    assert cells[4][:3] == ["later", "not run", "–"]
    gradient_ratio = statistics.fmean(
        read_records(reproduced_folder)[f"kept/seed-{s}"]["figures"]["last_epoch"]["lcr_gradient_ratio"] for s in (0, 1)
    )
    assert cells[3][10] == f"{gradient_ratio:.4f}".removeprefix("0")
    assert count_finished(paper_tables, paper_tables.tables["small"]) == (2, 3, 4, 6)


def test_layer_measurements_are_in_the_record_and_in_the_document(reproduced_folder: Path) -> None:
    text = render_document(write_table_spec(reproduced_folder))
    runs = read_records(reproduced_folder)
    stds = [runs[f"none/seed-{s}"]["layers"]["weights"]["layer2.0.conv2"]["std"] for s in (0, 1)]
    assert f"| {statistics.fmean(stds):.3f} " in next(
        line for line in text.splitlines() if line.startswith("| `layer2.0.conv2` ")
    )
    correlations = [runs[f"kept/seed-{s}"]["layers"]["activations"]["pool"]["binary"]["correlation"] for s in (0, 1)]
    assert f"| {statistics.fmean(correlations):.3f} (" in next(
        line for line in text.splitlines() if line.startswith("| `pool` ")
    )
    assert "| rank correlation " in text


def test_stored_weights_reproduce_the_test_accuracy_of_their_record(reproduced_folder: Path, tmp_path: Path) -> None:
    files = list((reproduced_folder / "paper" / "results" / "weights").iterdir())
    assert [p.name for p in files] == ["digits-none-seed-1.safetensors"]
    record = read_records(reproduced_folder)["none/seed-1"]
    digest = hashlib.sha256(files[0].read_bytes()).hexdigest()
    assert record["weights"] == {"file": files[0].name, "sha256": digest}
    assert read_weights(files[0]).checkpoint_sha256 == record["figures"]["checkpoint_sha256"]
    again = recompute_test_accuracy(files[0], OPTIONS)
    assert (again.top1, again.images) == (record["test_results"][0]["top1"], 500)
    other = tmp_path / "other.safetensors"
    write_weights(reproduced_folder / "runs" / "digits" / "none" / "seed-0", other)
    assert recompute_test_accuracy(other, OPTIONS).loss != pytest.approx(
        again.loss, abs=1e-4
    )  # another seed would not do


def test_damaged_weights_are_rejected(reproduced_folder: Path, tmp_path: Path) -> None:
    file = next((reproduced_folder / "paper" / "results" / "weights").iterdir())
    content = bytearray(file.read_bytes())
    content[-1000] ^= 1
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(InputError, match="the checksum of"):
        read_weights(tmp_path / "bad.safetensors")
    checkpoint = next((reproduced_folder / "runs" / "digits" / "none" / "seed-0" / "checkpoints").iterdir())
    with pytest.raises(InputError, match="is a checkpoint of a run, not a file with the weights of a finished run"):
        read_weights(checkpoint)


def test_a_record_without_test_result_and_run_is_an_error(reproduced_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(reproduced_folder / "paper", tmp_path / "paper")
    path = tmp_path / "paper" / "results" / "digits" / "kept" / "seed-1.json"
    record = json.loads(path.read_text())
    del record["test_results"]
    write_without_digest(path, record)
    with pytest.raises(InputError, match="without a test result, and that run is not in"):
        run_table(read_table_spec(tmp_path / "paper" / "tables.toml"), tmp_path)


def test_missing_parts_of_a_record_are_added_without_another_evaluation(
    reproduced_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(reproduced_folder, folder)
    places = {
        place: folder / "paper" / "results" / "digits" / f"{place}.json" for place in ("none/seed-1", "kept/seed-0")
    }
    records = {place: json.loads(path.read_text()) for place, path in places.items()}
    for place, path in places.items():  # only the stored record has the test result
        stripped_record = {part: value for part, value in records[place].items() if part not in ("layers", "weights")}
        write_without_digest(path, stripped_record)
        del stripped_record["test_results"]
        write_without_digest(folder / "runs" / "digits" / place / "record.json", stripped_record)
    shutil.rmtree(folder / "paper" / "results" / "weights")
    shutil.rmtree(folder / "runs" / "digits" / "kept" / "seed-0")  # nothing can be added to that one
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "evaluate", None)  # a call would fail
        run_table(write_table_spec(folder), folder)
    assert read_records(folder)["none/seed-1"] == records["none/seed-1"]
    assert (folder / "paper" / "results" / "weights" / "digits-none-seed-1.safetensors").exists()
    assert "layers" not in read_records(folder)["kept/seed-0"]


def test_the_command_lists_runs_and_writes_tables(
    reproduced_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "reproduce",
        "--table-spec",
        str(reproduced_folder / "paper" / "tables.toml"),
        "--runs-folder",
        str(reproduced_folder / "runs"),
    ]
    assert main(arguments) == 0
    assert capsys.readouterr().out == "small  2 of 3 rows, 4 of 6 runs      Digits\n"
    assert main([*arguments, "small", "--device", "cpu"]) == 0
    output = capsys.readouterr()
    assert "| without | 2 " in output.out
    assert (
        output.err
        == "lcrbnn: digits/later is not decided yet: its plan lacks the variant, or the one that it extends\n"
    )
    assert main([*arguments, "--markdown", str(tmp_path / "results.md")]) == 0
    assert (tmp_path / "results.md").read_text() == render_document(write_table_spec(reproduced_folder))
    capsys.readouterr()
    assert main([*arguments, "smal"]) == 2
    assert "no table is called 'smal'" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main([*arguments, "small", "--from-records", "--records", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.count("not run") == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ["small", "--from-records"],
        ["--markdown", "page.md"],
        ["--gains-figure", "a.svg"],
        ["small", "--from-records", "--markdown"],
        [],
    ],
    ids=str,
)
def test_a_missing_folder_of_records_is_an_error(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table_spec(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper" / "docs").mkdir(parents=True)
    for name in ("page.md", "paper/docs/results.md"):
        (tmp_path / name).write_text("as it was")
    (tmp_path / "file").write_text("")
    for folder in ("nowhere", "file"):
        assert main(["reproduce", *arguments, "--records", folder]) == 2
        output = capsys.readouterr()
        assert (output.out, output.err) == ("", f"lcrbnn: there is no folder of records called {folder}\n")
    assert [(tmp_path / name).read_text() for name in ("page.md", "paper/docs/results.md")] == ["as it was"] * 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--gains-figure", "x.txt"], "a figure is a .png, .svg or .pdf file; got 'x.txt'"),
        (["--gains-figure", "file/x.svg"], "a figure cannot be written to file/x.svg: {here}/file is not a folder"),
        (["--markdown", "paper"], "a document cannot be written to paper: it is a folder"),
        (["--compile-workers", "-1"], "--compile-workers must be a whole number of at least 0; got -1"),
        (["--shard", "3/2"], "a shard must be I/N with I from 1 to N, such as 1/4; got '3/2'"),
    ],
)
def test_all_arguments_are_checked_before_anything_runs(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_table_spec(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    for show in ([], ["--from-records"]):
        assert main(["reproduce", "small", *show, *arguments]) == 2
        output = capsys.readouterr()
        assert (output.out, output.err) == ("", f"lcrbnn: {sentence.format(here=tmp_path)}\n")
    assert not (tmp_path / "runs").exists()


def test_outside_the_source_tree_the_command_names_the_table_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce"]) == 2
    assert capsys.readouterr().err == (
        "lcrbnn: the table spec paper/tables.toml is not in this folder: "
        "run the command in the root of the source tree, or use --table-spec FILE\n"
    )
    assert main(["reproduce", "--table-spec", "mine.toml"]) == 2
    assert capsys.readouterr().err == "lcrbnn: the table spec mine.toml cannot be read: No such file or directory\n"


def test_some_seeds_of_a_table_can_be_trained_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table_spec(tmp_path)
    arguments = [
        "reproduce",
        "small",
        "--table-spec",
        str(tmp_path / "paper" / "tables.toml"),
        "--runs-folder",
        str(tmp_path / "runs"),
    ]
    assert main([*arguments, "--device", "cpu", "--seeds", "1"]) == 0
    assert count_test_results(tmp_path) == {"kept/seed-1": 1, "none/seed-1": 1}
    capsys.readouterr()
    assert main([*arguments, "--device", "cpu", "--seeds", "2"]) == 2
    assert capsys.readouterr().err == "lcrbnn: there is no run of seed 2: the seeds are 0, 1\n"


def test_a_failed_run_does_not_stop_the_other_runs_of_a_table(tmp_path: Path) -> None:
    write_table_spec(tmp_path)
    (tmp_path / "paper" / "studies" / "broken.toml").write_text(
        STUDY.replace("[variants.none]", "[variants.none]\nlr = 1e30")
    )
    path = tmp_path / "paper" / "tables.toml"
    broken = '{ title = "no", variant = "broken/none", num_seeds = 1 },\n    { title = "with"'
    path.write_text(PLAN.replace('{ title = "with"', broken).replace("keep = [1]", "keep = []"))
    paper_tables = read_table_spec(path)
    with pytest.raises(RunFailed, match=r"^broken/none/seed-0: non-finite values at step 1 "):
        run_tables(
            paper_tables,
            [paper_tables.tables["small"]],
            tmp_path / "runs",
            OPTIONS,
            2,
            measure_layers=measure_run_layers,
        )
    assert count_test_results(tmp_path) == {"kept/seed-0": 1, "kept/seed-1": 1, "none/seed-0": 1, "none/seed-1": 1}


def test_runs_of_several_tables_are_trained_in_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table_spec(tmp_path)
    (tmp_path / "paper" / "studies" / "other.toml").write_text(STUDY)
    path = tmp_path / "paper" / "tables.toml"
    between = '{ title = "between", variant = "other/none", num_seeds = 1 },\n    { title = "with"'
    rows = [
        '{ title = "more", variant = "digits/none", num_seeds = 3 }',
        '{ title = "new", variant = "other/kept", num_seeds = 1 }',
    ]
    second = f'[tables.second]\ntitle = "More"\nsource = "none"\nrows = [{", ".join(rows)}]\n'
    path.write_text(PLAN.replace('{ title = "with"', between) + second)
    paper_tables = read_table_spec(path)
    groups: list[list[str]] = []

    def note(runs: dict[Path, Any], *arguments: Any, **options: Any) -> None:
        groups.append([str(place.relative_to(tmp_path / "runs")) for place in runs])

    monkeypatch.setattr(planning, "train_parallel", note)
    run_tables(paper_tables, list(paper_tables.tables.values()), tmp_path / "runs", OPTIONS, 4)
    without = ["digits/none/seed-0", "digits/none/seed-1", "digits/none/seed-2", "other/none/seed-0"]
    with_lcr = ["digits/kept/seed-0", "digits/kept/seed-1", "other/kept/seed-0"]
    assert groups == [without, with_lcr]
