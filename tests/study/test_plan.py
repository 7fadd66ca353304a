"""Study plans: reading, training, tables and error messages."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from bench.loading.photo_like_images import write_photo_zip
from lcrbnn.cli.main import main
from lcrbnn.errors import InputError, RunFailed
from lcrbnn.study import plan as plan_module
from lcrbnn.study.plan import StudyPart, StudyPlan, read_plan, render_study_table, run_plan, run_study_runs
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from tests.runs.helpers import write_without_digest

PLAN_TEXT = """# Does it help?
# A test plan.
recipe = "digits"
seeds = [0, 3]
baseline = "none"
[settings]
epochs = 1
batch_size = 300
[variants.none]
[variants.weight-1]
lcr_weight = 1
"""
OPTIONS = RunOptions(device="cpu")


def write_plan(folder: Path, text: str = PLAN_TEXT) -> StudyPlan:
    path = folder / "small.toml"
    path.write_text(text)
    return read_plan(path)


def test_plan_lists_all_seeds_of_all_variants(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    assert (plan.name, plan.description, plan.baseline) == ("small", "Does it help? A test plan.", "none")
    assert [run.relative_path for run in plan.list_runs()] == [
        "none/seed-0",
        "none/seed-3",
        "weight-1/seed-0",
        "weight-1/seed-3",
    ]
    specs = {run.relative_path: run.spec for run in plan.list_runs()}
    assert (specs["none/seed-3"].seed, specs["none/seed-3"].epochs, specs["none/seed-3"].lcr_weight) == (3, 1, 0)
    assert specs["weight-1/seed-0"] == specs["none/seed-0"].replace(lcr_weight=1.0)


def test_study_trains_writes_records_and_prints_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path)
    argv = ["study", str(tmp_path / "small.toml"), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main(argv) == 0
    assert capsys.readouterr().out.count("not run") == 2
    assert main([*argv, "--runs-folder", str(tmp_path / "runs"), "--parallel-runs", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    values = {}
    for variant in ("none", "weight-1"):
        for seed in (0, 3):
            record = json.loads((tmp_path / "records" / variant / f"seed-{seed}.json").read_text())
            assert record["settings"]["seed"] == seed
            values[variant, seed] = record["figures"]["last_epoch"]["valid_top1"]
    assert lines[1].split()[:3] == ["none", "2", f"{(values['none', 0] + values['none', 3]) / 2:.2f}"]
    difference = sum(values["weight-1", seed] - values["none", seed] for seed in (0, 3)) / 2
    assert f"{difference:+.2f} [" in lines[2]
    assert " [" not in lines[1]


def test_noise_difference_requires_noise_accuracies_in_all_records(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, PLAN_TEXT.replace("[0, 3]", "[0, 3, 4]"))
    records = tmp_path / "records"
    run_plan(plan, tmp_path / "runs", records, OPTIONS, 6)

    def set_noise_top1(variant: str, seed: int, noise_top1: dict[str, float] | None) -> None:
        path = records / variant / f"seed-{seed}.json"
        record = json.loads(path.read_text())
        record["figures"].pop("noise_top1", None)
        record["figures"] |= {} if noise_top1 is None else {"noise_top1": noise_top1}
        write_without_digest(path, record)

    for seed in (0, 3, 4):
        set_noise_top1("none", seed, {"0.04": 60.0, "0.08": 50.0, "0.12": 40.0 + seed})
        set_noise_top1("weight-1", seed, {"0.04": 63.0 + seed, "0.08": 53.0, "0.12": 40.0 + seed})
    title, baseline_line, variant_line = render_study_table(plan, records).splitlines()
    column = title.index("noisy %")
    assert baseline_line[column:].startswith("50.78 ± 0.69  ")
    assert variant_line[column:].startswith("53.56 ± 1.39    +2.78 [+1.05, +4.50] *  ")
    assert variant_line[title.index("gradient ratio") :].split()[0] != "*"
    assert variant_line.count(" [") == 2
    set_noise_top1("none", 3, None)  # an older record
    title, baseline_line, variant_line = render_study_table(plan, records).splitlines()
    assert baseline_line[column:].startswith("50.67 ± 0.94  ")
    assert variant_line[column : title.index("gradient ratio")].strip() == "53.56 ± 1.39"
    assert variant_line.count(" [") == 1


def test_variant_without_validation_images_is_not_compared(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, PLAN_TEXT.replace("[variants.none]", '[variants.none]\ntrain_split = "train+valid"'))
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2)
    _, baseline_line, variant_line = render_study_table(plan, tmp_path / "records").splitlines()
    assert baseline_line.split()[:4] == ["none", "2", "-", "-"]
    assert "±" in variant_line
    assert " [" not in variant_line


def test_interrupted_study_repeats_no_finished_run(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2)
    times_before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("record.json")}
    assert len(times_before) == 4
    removed_record = tmp_path / "runs" / "weight-1" / "seed-3" / "record.json"
    removed_record.unlink()
    (tmp_path / "records" / "none" / "seed-0.json").unlink()
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2)
    times_after = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("record.json")}
    assert [p for p in times_before if times_before[p] != times_after[p]] == [removed_record]
    assert len(list((tmp_path / "records").rglob("*.json"))) == 4


def test_study_of_an_image_folder_can_be_continued_and_has_a_table(tmp_path: Path) -> None:
    """The first run finds the number of classes, which the plan does not contain."""
    settings = (
        'epochs = 1\nbatch_size = 8\ndataset = "folder"\nimage_size = 16\naugmentation = "crop-flip"\n'
        'model = "resnet8-double"'
    )
    plan = write_plan(tmp_path, PLAN_TEXT.replace("epochs = 1\nbatch_size = 300", settings))
    zip_file = write_photo_zip(tmp_path / "photos.zip", [(16, 16)] * 64, classes=4)
    options = RunOptions(device="cpu", data_folder=zip_file, workers=1)
    for _ in range(2):
        run_plan(plan, tmp_path / "runs", tmp_path / "records", options, 2)
        lines = render_study_table(plan, tmp_path / "records").splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [["none", "2"], ["weight-1", "2"]]
    recorded_spec = TrainSpec.from_dict(json.loads((tmp_path / "records/none/seed-0.json").read_text())["settings"])
    assert recorded_spec.num_classes == 4
    assert recorded_spec.difference(recorded_spec.replace(num_classes=0)) is None
    assert recorded_spec.difference(recorded_spec.replace(num_classes=3)) == ("num_classes", "4", "3")


def test_table_marks_missing_runs(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 4)
    for seed in (0, 3):
        (tmp_path / "records" / "weight-1" / f"seed-{seed}.json").unlink()
    (tmp_path / "records" / "none" / "seed-3.json").unlink()
    lines = render_study_table(plan, tmp_path / "records").splitlines()
    assert lines[1].split()[1] == "1"
    assert "±" not in lines[1]
    assert lines[2].split() == ["weight-1", "not", "run"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('recipe = "digits"\n', "", "recipe is missing"),
        ('"digits"', '"nope"', "no recipe is called 'nope'"),
        ('"digits"', "3", "recipe must be a name, settings and variants must be tables"),
        ("[0, 3]", "[]", "seeds must be a list of whole numbers; got []"),
        ("[0, 3]", "[0, true]", "seeds must be a list of whole numbers; got [0, True]"),
        ("[0, 3]", "[3, 3]", "seeds contains a seed twice; got [3, 3]"),
        ('baseline = "none"', 'baseline = "non"', "the baseline 'non' must be one of the variants: none, weight-1"),
        ("batch_size = 300", "batchs = 300", "no setting of a run is called 'batchs'"),
        ("lcr_weight = 1", "lcr_weight = -1", "variant weight-1: lcr_weight must be a number of at least 0.0; got -1"),
        ("lcr_weight = 1", "seed = 1", "seeds are set for the whole plan, not for a variant"),
        ("[variants.weight-1]", "[variants.Weight]", "a variant must be a table whose name has small letters"),
        ("[settings]", "[setings]", "no part of a plan is called 'setings'"),
        ("[settings]", "[settings", "is not valid TOML"),
    ],
)
def test_invalid_plan_is_rejected_with_its_path(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in PLAN_TEXT
    with pytest.raises(InputError) as error:
        write_plan(tmp_path, PLAN_TEXT.replace(old, new))
    assert str(error.value).startswith(f"the plan {tmp_path / 'small.toml'}")
    assert message in str(error.value)


def run_rejected_plan(text: str, folder: Path) -> Path:
    """Write a plan that `lcrbnn study` rejects, and return its path."""
    path = folder / "small.toml"
    path.write_text(text)
    options = ["--runs-folder", str(folder / "runs"), "--records", str(folder / "records"), "--device", "cpu"]
    assert main(["study", str(path), *options]) == 2
    return path


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('method = "nope"', "no binarization method is called 'nope'"),
        ('model = "nope"', "no network is called 'nope'"),
        ('dataset = "nope"', "no data set is called 'nope'"),
        ('bits = "3/3"', "irnet "),
        ('method_options = ["nope=1"]', "no option of irnet is called 'nope'"),
        ('method_options = ["t_min"]', "method_options are written name=value; got 't_min'"),
        ('lcr_variant = "nope"', "no variant of the LCR loss is called 'nope'"),
        ('lcr_options = ["nope=1"]', "no setting of the LCR loss is called 'nope'"),
        ("image_size = 32", "image_size is only for data sets that are read from image files; got digits"),
        ('method = "real"\nlcr_weight = 1', "a full-precision network has no binary layers for the LCR loss: "),
        (
            'method = "real"\nregularizer = "spectral-norm-latent"',
            "a full-precision network has no binary layers for a regular",
        ),
        (
            'teacher = "t"',
            "a teacher is given and nothing uses it: set distillation_alpha, or lcr_options reference=teacher",
        ),
        ('lcr_weight = "x"', "lcr_weight must be a number of at least 0.0; got 'x'"),
    ],
)
def test_invalid_variant_is_rejected_with_plan_and_variant_before_any_work(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run_rejected_plan(f"{PLAN_TEXT}[variants.a]\n{line}\n", tmp_path)
    assert capsys.readouterr().err.startswith(f"lcrbnn: the plan {path}: variant a: {message}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('method = "bnn"\nmethod_options = ["limit=-1"]', "the limit of latent weights must be a number"),
        ('bits = "1/32"\nlcr_weight = 1', "reference 'pre-binarization' compares activations with their signs"),
    ],
)
def test_error_while_building_the_network_names_the_run(
    line: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_rejected_plan(PLAN_TEXT.replace("[variants.none]", f"[variants.none]\n{line}"), tmp_path)
    assert capsys.readouterr().err.startswith(f"lcrbnn: none/seed-0: {message}")


def test_missing_plan_gives_a_one_line_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no.toml"
    assert main(["study", str(path)]) == 2
    assert capsys.readouterr().err == f"lcrbnn: the plan {path} cannot be read: No such file or directory\n"


def test_steps_are_compiled_ahead_in_order_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[RunOptions, list[TrainSpec]]] = []

    def record_call(specs: list[TrainSpec], options: RunOptions) -> nullcontext[None]:
        calls.append((options, specs))
        return nullcontext()

    monkeypatch.setattr(plan_module, "precompile_steps", record_call)
    monkeypatch.setattr(plan_module, "train_parallel", lambda *args, **kwargs: None)
    write_plan(tmp_path, PLAN_TEXT + "[variants.c]\nmethod = 'xnor'\n[variants.d]\nlcr_gradient_ratio = 0.1\n")
    argv = ["study", str(tmp_path / "small.toml"), "--runs-folder", str(tmp_path / "runs"), "--parallel-runs", "4"]
    assert main([*argv, "--device", "cpu", "--compile-workers", "3"]) == 0
    ((options, specs),) = calls
    assert options.compile_workers == 3
    assert [(spec.method, spec.lcr_weight, spec.lcr_gradient_ratio) for spec in dict.fromkeys(specs)] == [
        ("irnet", 0.0, 0.0),
        ("xnor", 0.0, 0.0),
        ("irnet", 1.0, 0.0),  # weight-1 and d have the same step
    ]
    assert main([*argv, "--device", "cpu", "--compile-workers", "-1"]) == 2


def test_shards_contain_each_variant_once(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, PLAN_TEXT + "[variants.c]\nlcr_gradient_ratio = 0.1\n")
    shards = [[run.variant for run in plan.list_runs(StudyPart.parse(f"{i}/2"))] for i in (1, 2)]
    assert shards == [["none", "none", "c", "c"], ["weight-1", "weight-1"]]
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2, StudyPart.parse("2/2"))
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["weight-1"]


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3"])
def test_invalid_shard_is_rejected(text: str) -> None:
    with pytest.raises(InputError, match="a shard must be I/N with I from 1 to N, such as 1/4; got"):
        StudyPart.parse(text)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "paper" / "studies").glob("*.toml")), ids=lambda p: p.stem
)
def test_committed_plans_can_be_built(path: Path) -> None:
    plan = read_plan(path)
    assert len(plan.description) > 40
    for spec in plan.variants.values():
        if not spec.teacher and not spec.init_from and "distance=ratio-below-1" not in spec.lcr_options:  # retired
            build_training_parts(spec, torch.device("cpu"))


def test_changed_plan_does_not_accept_old_results(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 4)
    changed_plan = write_plan(tmp_path, PLAN_TEXT.replace("epochs = 1", "epochs = 2"))
    with pytest.raises(InputError, match="has epochs 1, and now it is 2"):
        run_plan(changed_plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 4)
    with pytest.raises(InputError, match=r"seed-0\.json was made with epochs 1 and the plan has 2"):
        render_study_table(changed_plan, tmp_path / "records")


def test_progress_lines_name_their_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(write_plan(tmp_path), tmp_path / "runs", tmp_path / "records", OPTIONS, 3)
    error_text = capsys.readouterr().err
    assert all(f"{variant}/seed-{seed}  epoch 1/1" in error_text for variant in ("none", "weight-1") for seed in (0, 3))


DIVERGING_PLAN_TEXT = PLAN_TEXT.replace(
    "[variants.weight-1]", "[variants.broken]\nlr = 1e30\n[variants.weight-1]"
).replace("[0, 3]", "[0]")


def test_failed_run_does_not_affect_other_runs(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, DIVERGING_PLAN_TEXT)
    finished_variants: list[str] = []
    runs = plan.list_runs()
    with pytest.raises(RunFailed, match=r"^broken/seed-0: non-finite values at step 1 "):
        run_study_runs(
            runs,
            tmp_path / "runs",
            tmp_path / "records",
            OPTIONS,
            1,
            lambda finished_run, path: finished_variants.append(finished_run.variant),
        )
    assert finished_variants == ["none", "weight-1"]
    assert sorted(p.parent.name for p in (tmp_path / "records").rglob("*.json")) == ["none", "weight-1"]


def test_study_trains_only_the_selected_seeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path)
    argv = ["study", str(tmp_path / "small.toml"), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main([*argv, "--runs-folder", str(tmp_path / "runs"), "--seeds", "3", "--checkpoint-interval", "100"]) == 0
    record_names = sorted(str(p.relative_to(tmp_path / "records")) for p in (tmp_path / "records").rglob("*.json"))
    assert record_names == ["none/seed-3.json", "weight-1/seed-3.json"]
    capsys.readouterr()
    assert main([*argv, "--runs-folder", str(tmp_path / "runs"), "--seeds", "3,5"]) == 2
    assert capsys.readouterr().err == "lcrbnn: there is no run of seed 5: the seeds are 0, 3\n"
