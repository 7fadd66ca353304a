from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from bench.photos import photo_zip
from lcrbnn.cli import main
from lcrbnn.errors import Failed, InputError
from lcrbnn.study import plan as planning
from lcrbnn.study.plan import Part, Plan, read_plan, run_jobs, run_plan, table
from lcrbnn.train import Spec
from lcrbnn.train.build import build
from lcrbnn.train.options import Options
from tests.runs.helpers import write_without_digest

TEXT = """# Does it help?
# Decides nothing.
recipe = "digits"
seeds = [0, 3]
control = "none"
[settings]
epochs = 1
batch = 300
[arms.none]
[arms.weight-1]
weight = 1
"""
OPTIONS = Options(device="cpu")


def plan_of(folder: Path, text: str = TEXT) -> Plan:
    path = folder / "small.toml"
    path.write_text(text)
    return read_plan(path)


def test_a_plan_is_its_arms_with_all_their_seeds(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert (plan.name, plan.about, plan.control) == ("small", "Does it help? Decides nothing.", "none")
    assert [job.place for job in plan.jobs()] == [
        "none/seed-0",
        "none/seed-3",
        "weight-1/seed-0",
        "weight-1/seed-3",
    ]
    specs = {job.place: job.spec for job in plan.jobs()}
    assert (specs["none/seed-3"].seed, specs["none/seed-3"].epochs, specs["none/seed-3"].weight) == (3, 1, 0)
    assert specs["weight-1/seed-0"] == specs["none/seed-0"].but(weight=1.0)


def test_a_study_runs_keeps_records_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_of(tmp_path)
    words = ["study", str(tmp_path / "small.toml"), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main(words) == 0
    assert capsys.readouterr().out.count("not run") == 2
    assert main([*words, "--run", str(tmp_path / "runs"), "--side-by-side", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    values = {}
    for arm in ("none", "weight-1"):
        for seed in (0, 3):
            record = json.loads((tmp_path / "records" / arm / f"seed-{seed}.json").read_text())
            assert record["settings"]["seed"] == seed
            values[arm, seed] = record["figures"]["last"]["valid"]
    assert lines[1].split()[:3] == ["none", "2", f"{(values['none', 0] + values['none', 3]) / 2:.2f}"]
    difference = sum(values["weight-1", s] - values["none", s] for s in (0, 3)) / 2
    assert f"{difference:+.2f} [" in lines[2]
    assert " [" not in lines[1]


def test_the_difference_under_noise_is_shown_where_all_records_have_it(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TEXT.replace("[0, 3]", "[0, 3, 4]"))
    records = tmp_path / "records"
    run_plan(plan, tmp_path / "runs", records, OPTIONS, 6)

    def change(arm: str, seed: int, noise: dict[str, float] | None) -> None:
        path = records / arm / f"seed-{seed}.json"
        record = json.loads(path.read_text())
        record["figures"].pop("noise", None)
        record["figures"] |= {} if noise is None else {"noise": noise}
        write_without_digest(path, record)

    for seed in (0, 3, 4):
        change("none", seed, {"0.04": 60.0, "0.08": 50.0, "0.12": 40.0 + seed})
        change("weight-1", seed, {"0.04": 63.0 + seed, "0.08": 53.0, "0.12": 40.0 + seed})
    title, control, arm = table(plan, records).splitlines()
    at = title.index("noisy %")
    assert control[at:].startswith("50.78 ± 0.69  ")
    assert arm[at:].startswith("53.56 ± 1.39    +2.78 [+1.05, +4.50] *  ")
    assert arm[title.index("share") :].split()[0] != "*"
    assert arm.count(" [") == 2
    change("none", 3, None)  # an older record
    title, control, arm = table(plan, records).splitlines()
    assert control[at:].startswith("50.67 ± 0.94  ")
    assert arm[at : title.index("share")].strip() == "53.56 ± 1.39"
    assert arm.count(" [") == 1


def test_an_arm_without_validation_images_is_not_compared(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TEXT.replace("[arms.none]", '[arms.none]\nimages = "all"'))
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2)
    _, control, arm = table(plan, tmp_path / "records").splitlines()
    assert control.split()[:4] == ["none", "2", "-", "-"]
    assert "±" in arm
    assert " [" not in arm


def test_an_interrupted_study_goes_on_and_makes_nothing_twice(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2)
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("record.json")}
    assert len(before) == 4
    lost = tmp_path / "runs" / "weight-1" / "seed-3" / "record.json"
    lost.unlink()
    (tmp_path / "records" / "none" / "seed-0.json").unlink()
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2)
    after = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("record.json")}
    assert [p for p in before if before[p] != after[p]] == [lost]
    assert len(list((tmp_path / "records").rglob("*.json"))) == 4


def test_a_study_of_pictures_of_ones_own_goes_on_and_has_a_table(tmp_path: Path) -> None:
    """How many classes they have is found by the first run, and not said in the plan."""
    settings = 'epochs = 1\nbatch = 8\ndata = "folder"\nside = 16\naugment = "crop-flip"\nmodel = "resnet8-double"'
    plan = plan_of(tmp_path, TEXT.replace("epochs = 1\nbatch = 300", settings))
    photos = photo_zip(tmp_path / "photos.zip", [(16, 16)] * 64, classes=4)
    options = Options(device="cpu", data_folder=photos, workers=1)
    for _ in range(2):
        run_plan(plan, tmp_path / "runs", tmp_path / "records", options, 2)
        lines = table(plan, tmp_path / "records").splitlines()
        assert [line.split()[:2] for line in lines[1:]] == [["none", "2"], ["weight-1", "2"]]
    made = Spec.of(json.loads((tmp_path / "records/none/seed-0.json").read_text())["settings"])
    assert made.classes == 4
    assert made.difference(made.but(classes=0)) is None
    assert made.difference(made.but(classes=3)) == ("classes", "4", "3")


def test_a_table_of_some_runs_says_which_are_missing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 4)
    for seed in (0, 3):
        (tmp_path / "records" / "weight-1" / f"seed-{seed}.json").unlink()
    (tmp_path / "records" / "none" / "seed-3.json").unlink()
    lines = table(plan, tmp_path / "records").splitlines()
    assert lines[1].split()[1] == "1"
    assert "±" not in lines[1]
    assert lines[2].split() == ["weight-1", "not", "run"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('recipe = "digits"\n', "", "it lacks recipe"),
        ('"digits"', '"nope"', "no recipe is called 'nope'"),
        ('"digits"', "3", "recipe is a name, settings and arms are tables"),
        ("[0, 3]", "[]", "seeds are a list of whole numbers; got []"),
        ("[0, 3]", "[0, true]", "seeds are a list of whole numbers; got [0, True]"),
        ("[0, 3]", "[3, 3]", "seeds name a seed twice; got [3, 3]"),
        ('control = "none"', 'control = "non"', "the control 'non' is none of its arms: none, weight-1"),
        ("batch = 300", "batchs = 300", "no setting of a run is called 'batchs'"),
        ("weight = 1", "weight = -1", "arm weight-1: weight must be a number of at least 0.0; got -1"),
        ("weight = 1", "seed = 1", "seeds are the plan's, not an arm's"),
        ("[arms.weight-1]", "[arms.Weight]", "an arm is a table with a name of small letters"),
        ("[settings]", "[setings]", "no part of a plan is called 'setings'"),
        ("[settings]", "[settings", "is no TOML"),
    ],
)
def test_a_plan_that_is_wrong_is_refused_by_name(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in TEXT
    with pytest.raises(InputError) as refusal:
        plan_of(tmp_path, TEXT.replace(old, new))
    assert str(refusal.value).startswith(f"the plan {tmp_path / 'small.toml'}")
    assert sentence in str(refusal.value)


def refused(text: str, folder: Path) -> Path:
    """A plan of this text that a study does not begin with."""
    path = folder / "small.toml"
    path.write_text(text)
    words = ["--run", str(folder / "runs"), "--records", str(folder / "records"), "--device", "cpu"]
    assert main(["study", str(path), *words]) == 2
    return path


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('method = "nope"', "no binarisation method is called 'nope'; there are "),
        ('model = "nope"', "no network is called 'nope'; there are "),
        ('data = "nope"', "no data set is called 'nope'; there are "),
        ('bits = "3/3"', "irnet "),
        ('method_options = ["nope=1"]', "no option of irnet is called 'nope'; there are "),
        ('method_options = ["t_min"]', "method_options are written name=value; got 't_min'"),
        ('form = "nope"', "no preset of the retention loss is called 'nope'; there are "),
        ('form_options = ["nope=1"]', "no setting of the retention loss is called 'nope'; there are "),
        ("side = 32", "side is for images that are read from files; digits has its own"),
        ('method = "real"\nweight = 1', "a full-precision network has nothing to retain: weight and share go with "),
        ('method = "real"\nregularizer = "spectral"', "a full-precision network has no binary layers for a regular"),
        ('teacher = "t"', "a teacher is given and nothing uses it: say distill, or form_options reference=teacher"),
        ('weight = "x"', "weight must be a number of at least 0.0; got 'x'"),
    ],
)
def test_what_is_wrong_with_an_arm_is_said_with_plan_and_arm_before_any_work(
    line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = refused(f"{TEXT}[arms.a]\n{line}\n", tmp_path)
    assert capsys.readouterr().err.startswith(f"lcrbnn: the plan {path}: arm a: {sentence}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('method = "bnn"\nmethod_options = ["limit=-1"]', "the limit of latent weights must be a number"),
        ('bits = "1/32"\nweight = 1', "reference 'latent' compares activations with their signs"),
    ],
)
def test_what_only_the_network_shows_to_be_wrong_is_said_with_its_run(
    line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(TEXT.replace("[arms.none]", f"[arms.none]\n{line}"), tmp_path)
    assert capsys.readouterr().err.startswith(f"lcrbnn: none/seed-0: {sentence}")


def test_a_plan_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "no.toml"
    assert main(["study", str(path)]) == 2
    assert capsys.readouterr().err == f"lcrbnn: the plan {path} cannot be read: No such file or directory\n"


def test_steps_are_compiled_ahead_in_the_order_in_which_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[Options, list[Spec]]] = []

    def note(specs: list[Spec], options: Options) -> nullcontext[None]:
        asked.append((options, specs))
        return nullcontext()

    monkeypatch.setattr(planning, "compiled_ahead", note)
    monkeypatch.setattr(planning, "train_together", lambda *given, **named: None)
    plan_of(tmp_path, TEXT + "[arms.c]\nmethod = 'xnor'\n[arms.d]\nshare = 0.1\n")
    words = ["study", str(tmp_path / "small.toml"), "--run", str(tmp_path / "runs"), "--side-by-side", "4"]
    assert main([*words, "--device", "cpu", "--ahead", "3"]) == 0
    ((options, specs),) = asked
    assert options.ahead == 3
    assert [(s.method, s.weight, s.share) for s in dict.fromkeys(specs)] == [
        ("irnet", 0.0, 0.0),
        ("xnor", 0.0, 0.0),
        ("irnet", 1.0, 0.0),  # weight-1 and d: one step for both
    ]
    assert main([*words, "--device", "cpu", "--ahead", "-1"]) == 2


def test_parts_are_every_arm_once(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TEXT + "[arms.c]\nshare = 0.1\n")
    parts = [[job.arm for job in plan.jobs(Part.of(f"{i}/2"))] for i in (1, 2)]
    assert parts == [["none", "none", "c", "c"], ["weight-1", "weight-1"]]
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 2, Part.of("2/2"))
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["weight-1"]


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3"])
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(InputError, match="a part is written number/total, such as 1/4; got"):
        Part.of(text)


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[1] / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_the_committed_plans_can_be_run(path: Path) -> None:
    plan = read_plan(path)
    assert len(plan.about) > 40
    for spec in plan.arms.values():
        if not spec.teacher:
            build(spec, torch.device("cpu"))


def test_a_plan_that_was_changed_is_not_answered_with_old_results(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    run_plan(plan, tmp_path / "runs", tmp_path / "records", OPTIONS, 4)
    changed = plan_of(tmp_path, TEXT.replace("epochs = 1", "epochs = 2"))
    with pytest.raises(InputError, match="has epochs 1 and now it is 2"):
        run_plan(changed, tmp_path / "runs", tmp_path / "records", OPTIONS, 4)
    with pytest.raises(InputError, match=r"seed-0\.json was made with epochs 1 and the plan says 2"):
        table(changed, tmp_path / "records")


def test_lines_about_a_run_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(plan_of(tmp_path), tmp_path / "runs", tmp_path / "records", OPTIONS, 3)
    said = capsys.readouterr().err
    assert all(f"{arm}/seed-{seed}  epoch 1/1" in said for arm in ("none", "weight-1") for seed in (0, 3))


BROKEN = TEXT.replace("[arms.weight-1]", "[arms.broken]\nlr = 1e30\n[arms.weight-1]").replace("[0, 3]", "[0]")


def test_a_run_that_fails_leaves_the_others_of_its_study_alone(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, BROKEN)
    seen: list[str] = []
    jobs = plan.jobs()
    with pytest.raises(Failed, match=r"^broken/seed-0: bad numbers at step 1 "):
        run_jobs(jobs, tmp_path / "runs", tmp_path / "records", OPTIONS, 1, lambda job, run: seen.append(job.arm))
    assert seen == ["none", "weight-1"]
    assert sorted(p.parent.name for p in (tmp_path / "records").rglob("*.json")) == ["none", "weight-1"]


def test_some_seeds_of_a_study_can_be_made_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_of(tmp_path)
    words = ["study", str(tmp_path / "small.toml"), "--records", str(tmp_path / "records"), "--device", "cpu"]
    assert main([*words, "--run", str(tmp_path / "runs"), "--seeds", "3", "--save-seconds", "100"]) == 0
    made = sorted(str(p.relative_to(tmp_path / "records")) for p in (tmp_path / "records").rglob("*.json"))
    assert made == ["none/seed-3.json", "weight-1/seed-3.json"]
    capsys.readouterr()
    assert main([*words, "--run", str(tmp_path / "runs"), "--seeds", "3,5"]) == 2
    assert capsys.readouterr().err == "lcrbnn: there is no run of seed 5: the seeds are 0, 3\n"
