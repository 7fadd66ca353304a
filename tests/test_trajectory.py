from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from lcrbnn.cli import main
from lcrbnn.errors import InputError
from lcrbnn.runs.record import write_record
from lcrbnn.study import trajectory
from lcrbnn.study.figure import COLORS
from lcrbnn.study.trajectory import draw_trajectories, read_arms
from lcrbnn.train import Spec
from tests.runs.helpers import write_without_digest
from tests.train.helpers import SMALL, small_run

ROOT = Path(__file__).parents[1]
EPOCHS = (1, 5, 10)


def record(folder: Path, place: str, matrices: int | None = 2, valid: bool = True, **settings: Any) -> Path:
    """The record of a run whose numbers say what they are: ratio k of seed s at epoch e is k + s / 10 + e / 100."""
    path = folder / f"{place}.json"
    spec = Spec(**settings)
    lines = [
        {
            "epoch": e,
            "loss": 1.0,
            "train": 50.0 + e + spec.seed,
            "valid": 40.0 + e + spec.seed if valid else None,
            "share": None,
            "ratios": None if matrices is None else [k + spec.seed / 10 + e / 100 for k in range(1, matrices + 1)],
        }
        for e in EPOCHS
    ]
    write_record(path, "train", spec.stored(), {"over_training": lines})
    return path


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were drawn, instead of files."""
    figures: list[Figure] = []

    @contextmanager
    def drawing(path: Path, rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Any, Any]]:
        figures.append(Figure(figsize=(width, height), layout="constrained"))
        yield figures[-1], figures[-1].subplots(rows, columns, squeeze=False)

    monkeypatch.setattr(trajectory, "drawing", drawing)
    return figures


def curves(axis: Any, color: str, thick: bool, style: str = "-") -> list[list[float]]:
    return [
        [float(y) for y in line.get_ydata()]
        for line in axis.lines
        if line.get_color() == color and (line.get_linewidth() > 1) == thick and line.get_linestyle() == style
    ]


def panels(figure: Figure) -> dict[str, Any]:
    return {axis.get_title(): axis for axis in figure.axes}


def names(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_records_are_grouped_by_their_folder_a_thin_line_a_seed_and_the_mean_thick(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    paths = [
        record(tmp_path, f"plan/{arm}/seed-{seed}", seed=seed, weight=w)
        for arm, w in (("none", 0.0), ("lcr", 2.0))
        for seed in (0, 1)
    ]
    arms = read_arms(paths)
    assert [(arm.name, len(arm.runs)) for arm in arms] == [("none", 2), ("lcr", 2)]
    draw_trajectories(arms, tmp_path / "a.svg")
    found = panels(drawn[0])
    left = found["training (dashed) and validation images"]
    assert list(found) == ["block 1", "block 2", "training (dashed) and validation images"]
    assert names(drawn[0]) == ["none", "lcr"]
    for color in COLORS[:2]:
        assert curves(left, color, False, "--") == [[51, 55, 60], [52, 56, 61]]
        assert curves(left, color, True, "--") == [[51.5, 55.5, 60.5]]
        assert curves(left, color, False) == [[41, 45, 50], [42, 46, 51]]
        assert [c for c in curves(left, color, True) if c] == [[41.5, 45.5, 50.5]]
        for k in (1, 2):
            assert curves(found[f"block {k}"], color, True) == [pytest.approx([k + 0.06, k + 0.1, k + 0.15])]
            assert len(curves(found[f"block {k}"], color, False)) == 2
    for k in (1, 2):
        assert found[f"block {k}"].lines[0].get_ydata() == [1, 1]  # where a ratio should be
    assert list(left.lines[0].get_xdata()) == list(EPOCHS)


def test_an_arm_that_watches_only_the_last_blocks_is_drawn_there(tmp_path: Path, drawn: list[Figure]) -> None:
    record(tmp_path, "none/seed-0", 9)
    record(tmp_path, "last/seed-0", 2, share=0.1, form_options=("last=2",))
    record(tmp_path, "real/seed-0", None, method="real")
    draw_trajectories(read_arms([tmp_path / arm for arm in ("none", "last", "real")]), tmp_path / "a.svg")
    found = panels(drawn[0])
    assert len(found) == 10
    for k in range(1, 10):
        axis = found[f"block {k}"]
        assert curves(axis, COLORS[0], True) == [pytest.approx([k + 0.01, k + 0.05, k + 0.1])]
        assert len(curves(axis, COLORS[1], True)) == (k > 7)
        assert curves(axis, COLORS[2], True) == []
    assert curves(found["block 8"], COLORS[1], True) == [pytest.approx([1.01, 1.05, 1.1])]


def test_ratios_far_from_one_have_a_logarithmic_axis(tmp_path: Path, drawn: list[Figure]) -> None:
    for count, scale in ((9, "linear"), (10, "log")):  # ratio k is a little more than k
        draw_trajectories(read_arms([record(tmp_path, f"of-{count}/seed-0", count)]), tmp_path / "a.svg")
        found = panels(drawn[-1])
        assert {found[f"block {k}"].get_yscale() for k in range(1, count + 1)} == {scale}
        assert found["training (dashed) and validation images"].get_yscale() == "linear"


def test_runs_without_validation_images_or_ratios_have_neither(tmp_path: Path, drawn: list[Figure]) -> None:
    draw_trajectories(read_arms([record(tmp_path, "a/seed-0", None, valid=False)]), tmp_path / "a.svg")
    assert list(panels(drawn[0])) == ["training images (dashed)"]


def test_ratios_of_another_kind_are_called_that(tmp_path: Path, drawn: list[Figure]) -> None:
    record(tmp_path, "none/seed-0")
    record(tmp_path, "eq8/seed-0", share=0.1, form_options=("matrix=batch", "beta=1"))
    draw_trajectories(read_arms([tmp_path / "none", tmp_path / "eq8"]), tmp_path / "a.svg")
    assert names(drawn[0]) == ["none", "eq8 (ratios: matrix=batch)"]


@pytest.mark.parametrize(("matrices", "shape"), [(1, (1, 3)), (3, (1, 5)), (4, (2, 4)), (9, (3, 5)), (18, (4, 7))])
def test_there_is_a_panel_a_block(matrices: int, shape: tuple[int, int], tmp_path: Path, drawn: list[Figure]) -> None:
    draw_trajectories(read_arms([record(tmp_path, "a/seed-0", matrices)]), tmp_path / "a.svg")
    assert len(drawn[0].axes) == matrices + 1
    assert drawn[0].axes[0].get_gridspec().get_geometry() == shape


def test_arms_of_the_same_name_in_two_plans_are_told_apart(tmp_path: Path) -> None:
    paths = [record(tmp_path, f"{plan}/none/seed-0") for plan in ("first", "second")]
    assert [arm.name for arm in read_arms([*paths, paths[0]])] == ["first/none", "second/none"]
    assert [len(arm.runs) for arm in read_arms([*paths, paths[0]])] == [1, 1]


def test_runs_that_are_one_epoch_apart_have_the_mean_of_what_both_reached(tmp_path: Path, drawn: list[Figure]) -> None:
    paths = [record(tmp_path, f"a/seed-{seed}", seed=seed) for seed in (0, 1)]
    short = json.loads(paths[1].read_text())
    del short["figures"]["over_training"][-1]
    write_without_digest(paths[1], short)
    draw_trajectories(read_arms(paths), tmp_path / "a.svg")
    assert curves(drawn[0].axes[-1], COLORS[0], True, "--") == [[51.5, 55.5]]


def test_the_command_draws_runs_and_records_and_the_same_file_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arm, weight in (("none", 0.0), ("lcr", 8.0)):
        for seed in (0, 1):
            small_run(tmp_path / arm / f"seed-{seed}", SMALL.but(weight=weight, seed=seed))
    kept = tmp_path / "results" / "lcr" / "seed-0.json"
    kept.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "lcr" / "seed-0" / "record.json", kept)
    (tmp_path / "none" / "seed-1" / "record.json").unlink()  # a run that is not finished yet
    monkeypatch.chdir(tmp_path)
    for out in ("a.svg", "b.svg"):
        assert main(["plot", "none", "results/lcr/seed-0.json", "-o", out]) == 0
    assert capsys.readouterr().out == "a.svg\nb.svg\n"
    text = Path("a.svg").read_text()
    assert text == Path("b.svg").read_text()
    assert all(f"<!-- {label} -->" in text for label in ("none", "lcr", "block 1", "block 3", "epoch"))
    from_log, from_record = (read_arms([Path(path)])[0].runs[0] for path in ("lcr/seed-0", "results/lcr/seed-0.json"))
    assert from_log == from_record
    assert read_arms([Path("lcr/seed-0/record.json")])[0].name == "lcr"
    small_run(tmp_path / "mine", SMALL.but(epochs=1))
    assert [read_arms([Path(path)])[0].name for path in ("mine", "mine/record.json")] == ["mine", "mine"]


def damage(path: Path, lines: Any) -> None:
    found = json.loads(path.read_text())
    found["figures"]["over_training"] = lines
    write_without_digest(path, found)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        {},
        7,
        [7],
        [{"epoch": 1}],
        [{"epoch": 1, "train": "x", "valid": None, "ratios": None}],
        [{"epoch": 1, "train": 1.0, "valid": None, "ratios": 3}],
        [{"epoch": 1, "train": 1.0, "valid": None, "ratios": [None]}],
        [{"epoch": None, "train": 1.0, "valid": None, "ratios": []}],
    ],
)
def test_a_damaged_record_is_one_sentence(lines: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path, "a/seed-0")
    damage(path, lines)
    assert main(["plot", str(path), "-o", str(tmp_path / "a.svg")]) == 2
    assert capsys.readouterr().err == f"lcrbnn: {path} is no record: its figures over training are damaged\n"
    assert not (tmp_path / "a.svg").exists()


def test_ratios_that_are_missing_in_some_lines_are_left_out(tmp_path: Path, drawn: list[Figure]) -> None:
    path = record(tmp_path, "a/seed-0")
    lines = json.loads(path.read_text())["figures"]["over_training"]
    lines[1]["ratios"] = lines[1]["ratios"][1:]
    damage(path, lines)
    draw_trajectories(read_arms([path]), tmp_path / "a.svg")
    found = panels(drawn[0])
    assert [len(curves(found[f"block {k}"], COLORS[0], True)[0]) for k in (1, 2)] == [2, 3]


def test_old_records_are_read_and_answered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = ROOT / "results" / "train" / "cifar10-resnet20-double-irnet" / "seed-0.json"
    assert "over_training" not in json.loads(old.read_text())["figures"]
    assert main(["plot", str(old), "-o", str(tmp_path / "a.svg")]) == 2
    assert capsys.readouterr().err == (
        f"lcrbnn: {old} has no figures over training: it is not of a run, or of an older one, "
        "whose folder can be drawn\n"
    )


def test_what_does_not_fit_one_figure_is_refused(tmp_path: Path) -> None:
    def refused(*places: Path) -> str:
        with pytest.raises(InputError) as refusal:
            draw_trajectories(read_arms(places), tmp_path / "a.svg")
        return str(refusal.value)

    none = record(tmp_path, "none/seed-0")
    layers = record(tmp_path, "layers/seed-0", form_options=("spans=layers",))
    wide = record(tmp_path, "wide/seed-0", model="resnet20")
    other = record(tmp_path, "none/seed-1", seed=1, weight=2.0)
    assert refused(none, layers) == "arms of one figure share ratios; got none of blocks and layers of layers"
    assert refused(none, wide) == "arms of one figure share model; got none resnet8-double and wide resnet20"
    assert refused(none, other) == "the runs of none are not of one arm: weight is 0 and 2"
    many = [record(tmp_path, f"arm-{i}/seed-0") for i in range(8)]
    assert refused(*many).startswith("a figure shows at most 7 arms; got 8: arm-0, arm-1")
    assert "there is no run in" in refused(tmp_path)
    assert "cannot be read: No such file or directory" in refused(tmp_path / "no.json")
    unknown = json.loads(none.read_text())
    unknown["settings"]["nope"] = math.pi
    write_without_digest(none, unknown)
    assert refused(none).startswith(f"{none}: no setting of a run is called 'nope'")


def test_a_run_that_has_not_finished_an_epoch_is_one_sentence(tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(epochs=1))
    (tmp_path / "run" / "log.jsonl").write_text("")
    (tmp_path / "run" / "record.json").unlink()
    with pytest.raises(InputError, match="has not finished an epoch yet"):
        read_arms([tmp_path / "run"])
