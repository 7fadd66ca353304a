"""The commands robustness, attack, analyze and cost accept zoo:NAME in place of a run."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.data.digits import MAX_PIXEL_VALUE, read_digits
from lcrbnn.evaluation.analysis.cost import count_cost
from lcrbnn.runs.record import read_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.load import load_network
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.zoo import load
from lcrbnn.zoo import zoo_index as index
from lcrbnn.zoo.zoo_file import read_zoo_file, write_zoo_file
from lcrbnn.zoo.zoo_index import ZooMember, list_members, write_index
from lcrbnn.zoo.zoo_model import evaluate_zoo_file
from tests.evaluation.corruptions.helpers import DATASET_NAME, register_enlarged_digits, write_frost_photos
from tests.train.helpers import train_small_run

SMALL_MEMBER = "digits-resnet8-irnet"
ANALYZE_OPTIONS = ("--num-images", "20", "--device", "cpu")
ATTACK_OPTIONS = ("--num-images=12", "--steps=2", "--restarts=1", "--queries=4", "--eps=8/255", "--device=cpu")
ROBUSTNESS_OPTIONS = ("--corruptions", "contrast", "fog", "--device", "cpu")


def write_member(name: str, spec: TrainSpec, folder: Path) -> ZooMember:
    """Write a zoo file of an untrained network to a folder and return its index entry."""
    path = folder / "files" / f"{name}.safetensors"
    write_zoo_file(path, spec, build_network(spec), "0" * 64)
    content = path.read_bytes()
    network_fields = {"model": spec.model, "method": spec.method, "dataset": spec.dataset, "lcr": "none"}
    file_fields = {
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "train_command": "",
        "record": "",
    }
    return ZooMember(name=name, top1=10.0, images=60, seed=0, **network_fields, **file_fields)  # type: ignore[arg-type]  # two kinds of values


@pytest.fixture
def zoo_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of two zoo networks for enlarged digits, one trained in bfloat16; `data` next to it is the data folder."""
    register_enlarged_digits(monkeypatch)
    write_frost_photos(tmp_path / "data" / "frost")
    monkeypatch.setattr(index, "ZOO_FOLDER", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    spec = TrainSpec(dataset=DATASET_NAME, train_split="train+valid", model="resnet8-double", augmentation="none")
    members = [
        write_member("one", spec.replace(precision="bfloat16"), tmp_path / "zoo"),
        write_member("two", spec, tmp_path / "zoo"),
    ]
    write_index({member.name: member for member in members})
    return tmp_path / "zoo"


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_analyze_measures_and_records_a_member(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "analyze",
        f"zoo:{SMALL_MEMBER}",
        f"again=zoo:{SMALL_MEMBER}",
        *ANALYZE_OPTIONS,
        "--per-layer",
        "-o",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    output = capsys.readouterr()
    assert output.out.splitlines()[0].split()[:2] == [SMALL_MEMBER, "again"]
    assert "operator norms with folded batch norm, lower bounds" in output.out
    records = {p.relative_to(tmp_path).as_posix(): read_record(p) for p in tmp_path.rglob("*.json")}
    assert set(records) == {f"{SMALL_MEMBER}/seed-0.json", "again/seed-0.json"}
    record = records[f"{SMALL_MEMBER}/seed-0.json"]
    assert record["settings"]["zoo"] == SMALL_MEMBER
    assert (
        record["settings"]["checkpoint_sha256"] == list_members()[SMALL_MEMBER].sha256
    )  # of the file, not of the run it came from
    assert record["settings"]["spec"] == read_zoo_file(list_members()[SMALL_MEMBER].path).spec.to_dict()
    assert record["figures"] == records["again/seed-0.json"]["figures"]
    assert set(record["figures"]["ratios"]) > {"layer1.0.conv1"}
    assert main(arguments) == 0
    second_output = capsys.readouterr()
    assert (second_output.out, "has a record" in second_output.err) == (output.out, True)


def test_attack_evaluates_the_weights_of_the_zoo_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The clean accuracy in the record of a member equals that of its file; a run is attacked together with it."""
    train_small_run(tmp_path / "run", TrainSpec(epochs=1, batch_size=300))
    assert (
        main(["attack", f"run={tmp_path / 'run'}", f"zoo:{SMALL_MEMBER}", *ATTACK_OPTIONS, "-o", str(tmp_path / "r")])
        == 0
    )
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["run", SMALL_MEMBER]
    test = read_digits().test
    from lcrbnn.data.datasets import DATASETS

    dataset = DATASETS["digits"]
    images = (torch.from_numpy(test.images[:12]).float() / MAX_PIXEL_VALUE - dataset.mean[0]) / dataset.std[0]
    with torch.no_grad():
        is_correct = load(SMALL_MEMBER)(images).argmax(1) == torch.from_numpy(test.labels[:12])
    record = read_record(tmp_path / "r" / SMALL_MEMBER / "seed-0.json")
    assert record["figures"]["8/255"]["clean"] == pytest.approx(100 * is_correct.double().mean().item())
    assert record["settings"]["zoo"] == SMALL_MEMBER
    assert "zoo" not in read_record(tmp_path / "r" / "run" / "seed-0.json")["settings"]


def test_robustness_writes_records_of_members_only_with_a_records_folder(
    zoo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files_before = read_files(tmp_path)
    assert main(["robustness", "zoo:one", "zoo:two", *ROBUSTNESS_OPTIONS, "--data-folder", "data"]) == 0
    output = capsys.readouterr().out
    assert read_files(tmp_path) == files_before
    assert "zoo:one, as trained: error in %" in output
    assert "zoo:two, as trained: error in %" in output
    assert output.splitlines()[-1] == "records: none for networks of the zoo (use --records FOLDER)"
    assert (
        main(["robustness", "zoo:one", "zoo:two", *ROBUSTNESS_OPTIONS, "--data-folder", "data", "--records", "r"]) == 0
    )
    assert capsys.readouterr().out.splitlines()[:-1] == output.splitlines()[:-1]
    assert set(read_files(tmp_path)) - set(files_before) == {"r/one.json", "r/two.json"}
    record = read_record(tmp_path / "r" / "one.json")
    assert record["settings"]["zoo"] == "one"
    assert record["settings"]["precision"] == "float32"
    assert record["settings"]["spec"]["precision"] == "bfloat16"  # precision of training
    accuracy = evaluate_zoo_file(read_zoo_file(list_members()["one"].path), RunOptions("cpu", tmp_path / "data"))
    assert record["figures"]["clean"]["as trained"] == pytest.approx(
        100 - accuracy.top1, abs=1e-4
    )  # the listed figure's twin
    assert (
        main(
            [
                "robustness",
                "zoo:one",
                *ROBUSTNESS_OPTIONS,
                "--data-folder",
                "data",
                "--records",
                "r",
                "--num-images",
                "9",
            ]
        )
        == 2
    )
    assert "one.json is a record with other settings" in capsys.readouterr().err


def test_robustness_measures_runs_and_members_together(
    zoo_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_small_run(
        tmp_path / "run",
        TrainSpec(dataset=DATASET_NAME, train_split="train+valid", model="resnet8-double", epochs=1, batch_size=95),
    )
    assert main(["robustness", str(run), "zoo:two", *ROBUSTNESS_OPTIONS, "--data-folder", "data", "--refit-head"]) == 0
    output = capsys.readouterr().out
    assert f"{run}, refit on clean: error in %" in output
    assert "zoo:two, refit on corrupted: error in %" in output
    assert output.splitlines()[-1].startswith(
        "records: robustness.json in the folder of each run; none for networks of"
    )
    assert (run / "robustness.json").exists()
    run_copy = shutil.copytree(run, tmp_path / "two")
    (run_copy / "robustness.json").unlink()
    assert (
        main(["robustness", str(run_copy), "zoo:two", *ROBUSTNESS_OPTIONS, "--data-folder", "data", "--records", "r"])
        == 2
    )
    assert "two of the networks would have the same record file, r/two.json" in capsys.readouterr().err


def test_a_member_of_digits_is_too_small_for_corruptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robustness", f"zoo:{SMALL_MEMBER}"]) == 2
    assert "and digits has images of 1 x 8 x 8" in capsys.readouterr().err


def test_cost_counts_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", f"zoo:{SMALL_MEMBER}", "-o", str(tmp_path / "cost.json")]) == 0
    output = capsys.readouterr().out
    figures = read_record(tmp_path / "cost.json")["figures"]
    expected = count_cost(build_network(read_zoo_file(list_members()[SMALL_MEMBER].path).spec), (1, 8, 8))
    assert output.startswith(f"zoo:{SMALL_MEMBER}, resnet8-double irnet, image size 1 x 8 x 8")
    assert (figures["binary_macs"], figures["stored_bits"]) == (expected.binary_macs, expected.stored_bits)
    assert main(["cost", "zoo:resnet20-irnet", "resnet20", f"zoo:{SMALL_MEMBER}"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [title.split(",")[0] for title in titles] == ["zoo:resnet20-irnet", "resnet20 irnet", f"zoo:{SMALL_MEMBER}"]


def test_cost_counts_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small_run(tmp_path / "run", TrainSpec(epochs=1, batch_size=300))
    assert main(["cost", str(tmp_path / "run")]) == 0
    cost = count_cost(load_network(RunFolder(tmp_path / "run"))[1], (1, 8, 8))
    assert f"{cost.stored_bits:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["cost", f"zoo:{SMALL_MEMBER}", "--method", "bnn"],
            "--method, --bits, --image-size and --num-classes are fixed for a run",
        ),
        (["cost", f"zoo:{SMALL_MEMBER}", "resnet20", "-o", "a.json"], "-o writes the record of one network; got 2"),
        (
            ["analyze", f"zoo:{SMALL_MEMBER}", f"zoo:{SMALL_MEMBER}"],
            f"two runs of the group '{SMALL_MEMBER}' have seed 0",
        ),
        (
            ["analyze", f"../x=zoo:{SMALL_MEMBER}"],
            "a group name must be a valid folder name without a slash; got '../x=zoo:",
        ),
        (
            ["layers", f"a=zoo:{SMALL_MEMBER}", "-o", "x"],
            "layers needs runs, because files of the zoo have no latent weights; zoo",
        ),
        (
            ["report", f"zoo:{SMALL_MEMBER}", "-o", "x.md"],
            "report needs runs, because the zoo has no training logs; zoo:NAME ",
        ),
        (
            ["plot", f"zoo:{SMALL_MEMBER}", "-o", "x.svg"],
            "plot needs records of training, and the zoo has none; zoo:NAME",
        ),
        *(
            ([command, "zoo:digit"], "no network of the zoo is called 'digit'")
            for command in ("robustness", "attack", "analyze", "cost")
        ),
    ],
)
def test_invalid_arguments_give_one_line_and_exit_code_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert len(output.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["robustness", "attack", "analyze", "cost", "eval", "export"])
def test_help_mentions_zoo_names(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "zoo:NAME" in capsys.readouterr().out


def test_the_commands_that_take_a_member_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    document = (Path(__file__).parents[2] / "docs" / "zoo.md").read_text()
    for command in ("predict", "eval", "export", "inspect", "bench", "robustness", "attack", "analyze", "cost"):
        assert command in last_line
        assert f"lcrbnn {command} zoo:" in document
