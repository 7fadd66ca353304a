"""robustness, attack, analyze and cost take zoo:NAME: the committed network is measured as a run's is."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
import torch

from lcrbnn.analyze.cost import count
from lcrbnn.cli import main
from lcrbnn.data.digits import TOP, read_digits
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.record import read_record
from lcrbnn.train import Spec
from lcrbnn.train.build import build_network, load_network
from lcrbnn.train.options import Options
from lcrbnn.zoo import index, load, members
from lcrbnn.zoo.file import read_small, write_small
from lcrbnn.zoo.index import Member, write_index
from lcrbnn.zoo.measure import read_test
from tests.corrupt.helpers import NAME, know_digits, put_photos
from tests.train.helpers import small_run

SMALL = "digits-resnet8-irnet"
ANALYZE = ("--images", "20", "--device", "cpu")
ATTACK = ("--images", "12", "--steps", "2", "--restarts", "1", "--queries", "4", "--eps", "8/255", "--device", "cpu")
FEW = ("--corruptions", "contrast", "fog", "--device", "cpu")


def listed(name: str, spec: Spec, folder: Path) -> Member:
    """A file of the zoo in this folder, of a network at its start, and its line in the list."""
    path = folder / "files" / f"{name}.safetensors"
    write_small(path, spec, build_network(spec), "0" * 64)
    content = path.read_bytes()
    what = {"network": spec.model, "method": spec.method, "data": spec.data, "retention": "none"}
    how = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest(), "recipe": "", "record": ""}
    return Member(name=name, top1=10.0, images=60, seed=0, **what, **how)  # type: ignore[arg-type]  # two kinds of values


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of two networks for enlarged digits; one was trained in bfloat16. Their data folder is beside it."""
    know_digits(monkeypatch)
    put_photos(tmp_path / "data" / "frost")
    monkeypatch.setattr(index, "FOLDER", tmp_path / "zoo")
    monkeypatch.chdir(tmp_path)
    spec = Spec(data=NAME, images="all", model="resnet8-double", augment="none")
    found = [listed("one", spec.but(precision="bfloat16"), tmp_path / "zoo"), listed("two", spec, tmp_path / "zoo")]
    write_index({member.name: member for member in found})
    return tmp_path / "zoo"


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_analyze_measures_a_member_and_records_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["analyze", f"zoo:{SMALL}", f"again=zoo:{SMALL}", *ANALYZE, "--layers", "-o", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split()[:2] == [SMALL, "again"]
    assert "operator norms, batch norm folded in, lower ends" in shown.out
    records = {p.relative_to(tmp_path).as_posix(): read_record(p) for p in tmp_path.rglob("*.json")}
    assert set(records) == {f"{SMALL}/seed-0.json", "again/seed-0.json"}
    one = records[f"{SMALL}/seed-0.json"]
    assert one["settings"]["zoo"] == SMALL
    assert one["settings"]["checkpoint_sha256"] == members()[SMALL].sha256  # of the file, not of the run it came from
    assert one["settings"]["run"] == read_small(members()[SMALL].path).spec.stored()
    assert one["figures"] == records["again/seed-0.json"]["figures"]
    assert set(one["figures"]["ratios"]) > {"layer1.0.conv1"}
    assert main(words) == 0
    again = capsys.readouterr()
    assert (again.out, "has a record" in again.err) == (shown.out, True)


def test_attack_asks_the_committed_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a run: what is right on clean images is what the file itself gets right."""
    small_run(tmp_path / "run", Spec(epochs=1, batch=300))
    assert main(["attack", f"run={tmp_path / 'run'}", f"zoo:{SMALL}", *ATTACK, "-o", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["run", SMALL]
    test = read_digits().test
    from lcrbnn.data import DATASETS

    row = DATASETS["digits"]
    images = (torch.from_numpy(test.images[:12]).float() / TOP - row.mean[0]) / row.std[0]
    with torch.no_grad():
        right = load(SMALL)(images).argmax(1) == torch.from_numpy(test.labels[:12])
    found = read_record(tmp_path / "r" / SMALL / "seed-0.json")
    assert found["figures"]["8/255"]["clean"] == pytest.approx(100 * right.double().mean().item())
    assert found["settings"]["zoo"] == SMALL
    assert "zoo" not in read_record(tmp_path / "r" / "run" / "seed-0.json")["settings"]


def test_robustness_prints_and_leaves_nothing_unless_a_folder_is_said(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(tmp_path)
    assert main(["robustness", "zoo:one", "zoo:two", *FEW, "--data-folder", "data"]) == 0
    shown = capsys.readouterr().out
    assert files(tmp_path) == before
    assert "zoo:one, as trained: error in %" in shown
    assert "zoo:two, as trained: error in %" in shown
    assert shown.splitlines()[-1] == "records: none of networks of the zoo; --records FOLDER writes them"
    assert main(["robustness", "zoo:one", "zoo:two", *FEW, "--data-folder", "data", "--records", "r"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == shown.splitlines()[:-1]
    assert set(files(tmp_path)) - set(before) == {"r/one.json", "r/two.json"}
    one = read_record(tmp_path / "r" / "one.json")
    assert one["settings"]["zoo"] == "one"
    assert one["settings"]["precision"] == "float32"
    assert one["settings"]["run"]["precision"] == "bfloat16"  # as it was trained
    read = read_test(read_small(members()["one"].path), Options("cpu", tmp_path / "data"))
    assert one["figures"]["clean"]["as trained"] == pytest.approx(100 - read.top1, abs=1e-4)  # the listed figure's twin
    assert main(["robustness", "zoo:one", *FEW, "--data-folder", "data", "--records", "r", "--images", "9"]) == 2
    assert "one.json is a record of something else, or of other settings" in capsys.readouterr().err


def test_robustness_reads_runs_and_members_together(
    zoo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run", Spec(data=NAME, images="all", model="resnet8-double", epochs=1, batch=95))
    assert main(["robustness", str(run), "zoo:two", *FEW, "--data-folder", "data", "--refit"]) == 0
    shown = capsys.readouterr().out
    assert f"{run}, refit on clean: error in %" in shown
    assert "zoo:two, refit on corrupted: error in %" in shown
    assert shown.splitlines()[-1].startswith("records: robustness.json in the folder of each run; none of networks of")
    assert (run / "robustness.json").exists()
    folder = shutil.copytree(run, tmp_path / "two")
    (folder / "robustness.json").unlink()
    assert main(["robustness", str(folder), "zoo:two", *FEW, "--data-folder", "data", "--records", "r"]) == 2
    assert "two of the networks would leave the same record, r/two.json" in capsys.readouterr().err


def test_a_member_of_digits_is_too_small_for_corruptions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["robustness", f"zoo:{SMALL}"]) == 2
    assert "and digits has images of 1 x 8 x 8" in capsys.readouterr().err


def test_cost_counts_members(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", f"zoo:{SMALL}", "-o", str(tmp_path / "cost.json")]) == 0
    out = capsys.readouterr().out
    figures = read_record(tmp_path / "cost.json")["figures"]
    plain = count(build_network(read_small(members()[SMALL].path).spec), (1, 8, 8))
    assert out.startswith(f"zoo:{SMALL}, resnet8-double irnet, an image of 1 x 8 x 8")
    assert (figures["binary_macs"], figures["stored_bits"]) == (plain.binary_macs, plain.stored_bits)
    assert main(["cost", "zoo:resnet20-irnet", "resnet20", f"zoo:{SMALL}"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [title.split(",")[0] for title in titles] == ["zoo:resnet20-irnet", "resnet20 irnet", f"zoo:{SMALL}"]


def test_a_run_is_counted_as_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small_run(tmp_path / "run", Spec(epochs=1, batch=300))
    assert main(["cost", str(tmp_path / "run")]) == 0
    cost = count(load_network(RunFolder(tmp_path / "run"))[1], (1, 8, 8))
    assert f"{cost.stored_bits:,}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cost", f"zoo:{SMALL}", "--method", "bnn"], "a run has its method, bits, image and classes, and so has a"),
        (["cost", f"zoo:{SMALL}", "resnet20", "-o", "a.json"], "a record is of one network; got 2"),
        (["analyze", f"zoo:{SMALL}", f"zoo:{SMALL}"], f"two runs of the group '{SMALL}' have seed 0"),
        (["analyze", f"../x=zoo:{SMALL}"], "the name of a group is one of a folder, without a slash; got '../x=zoo:"),
        (
            ["layers", f"a=zoo:{SMALL}", "-o", "x"],
            "layers takes runs, for files of the zoo have no latent weights; zoo",
        ),
        (
            ["report", f"zoo:{SMALL}", "-o", "x.md"],
            "report takes runs, for the zoo keeps no log of training; zoo:NAME ",
        ),
        (["plot", f"zoo:{SMALL}", "-o", "x.svg"], "plot takes records, for the zoo keeps no log of training; zoo:NAME"),
        *(
            ([command, "zoo:digit"], "no network of the zoo is called 'digit'; there are digits-resnet8-irnet")
            for command in ("robustness", "attack", "analyze", "cost")
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert len(shown.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["robustness", "attack", "analyze", "cost", "eval", "export"])
def test_help_says_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert "zoo:NAME" in capsys.readouterr().out


def test_the_commands_that_take_a_member_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    document = (Path(__file__).parents[2] / "docs" / "zoo.md").read_text()
    for command in ("predict", "eval", "export", "inspect", "bench", "robustness", "attack", "analyze", "cost"):
        assert command in last
        assert f"lcrbnn {command} zoo:" in document
