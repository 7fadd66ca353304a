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

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.report.figures import training_curves as trajectory
from lcrbnn.report.figures.figure import COLORS
from lcrbnn.report.figures.training_curves import draw_training_curves, read_curve_groups
from lcrbnn.runs.record import write_record
from lcrbnn.train.setup.spec import TrainSpec
from tests.runs.helpers import write_without_digest
from tests.train.helpers import SMALL, train_small_run

ROOT = Path(__file__).parents[3]
LOGGED_EPOCHS = (1, 5, 10)


def write_run_record(
    folder: Path, name: str, num_ratios: int | None = 2, has_validation: bool = True, **settings: Any
) -> Path:
    """Write a run record with recognisable numbers: ratio k of seed s at epoch e is k + s / 10 + e / 100."""
    path = folder / f"{name}.json"
    spec = TrainSpec(**settings)
    lines = [
        {
            "epoch": e,
            "train_loss": 1.0,
            "train_top1": 50.0 + e + spec.seed,
            "valid_top1": 40.0 + e + spec.seed if has_validation else None,
            "lcr_gradient_ratio": None,
            "sigma_ratios": None
            if num_ratios is None
            else [k + spec.seed / 10 + e / 100 for k in range(1, num_ratios + 1)],
        }
        for e in LOGGED_EPOCHS
    ]
    write_record(path, "train", spec.to_dict(), {"history": lines})
    return path


@pytest.fixture
def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Collect figures in a list instead of writing files."""
    figures: list[Figure] = []

    @contextmanager
    def fake_draw_figure(path: Path, rows: int, columns: int, width: float, height: float) -> Iterator[tuple[Any, Any]]:
        figures.append(Figure(figsize=(width, height), layout="constrained"))
        yield figures[-1], figures[-1].subplots(rows, columns, squeeze=False)

    monkeypatch.setattr(trajectory, "draw_figure", fake_draw_figure)
    return figures


def find_curves(axis: Any, color: str, is_thick: bool, style: str = "-") -> list[list[float]]:
    return [
        [float(y) for y in line.get_ydata()]
        for line in axis.lines
        if line.get_color() == color and (line.get_linewidth() > 1) == is_thick and line.get_linestyle() == style
    ]


def panels_by_title(figure: Figure) -> dict[str, Any]:
    return {axis.get_title(): axis for axis in figure.axes}


def legend_labels(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_thin_line_per_seed_and_a_thick_line_for_the_mean(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    paths = [
        write_run_record(tmp_path, f"plan/{group}/seed-{seed}", seed=seed, lcr_weight=w)
        for group, w in (("none", 0.0), ("lcr", 2.0))
        for seed in (0, 1)
    ]
    groups = read_curve_groups(paths)
    assert [(group.name, len(group.logs)) for group in groups] == [("none", 2), ("lcr", 2)]
    draw_training_curves(groups, tmp_path / "a.svg")
    panels = panels_by_title(drawn_figures[0])
    accuracy_axis = panels["training (dashed) and validation images"]
    assert list(panels) == ["block 1", "block 2", "training (dashed) and validation images"]
    assert legend_labels(drawn_figures[0]) == ["none", "lcr"]
    for color in COLORS[:2]:
        assert find_curves(accuracy_axis, color, False, "--") == [[51, 55, 60], [52, 56, 61]]
        assert find_curves(accuracy_axis, color, True, "--") == [[51.5, 55.5, 60.5]]
        assert find_curves(accuracy_axis, color, False) == [[41, 45, 50], [42, 46, 51]]
        assert [c for c in find_curves(accuracy_axis, color, True) if c] == [[41.5, 45.5, 50.5]]
        for k in (1, 2):
            assert find_curves(panels[f"block {k}"], color, True) == [pytest.approx([k + 0.06, k + 0.1, k + 0.15])]
            assert len(find_curves(panels[f"block {k}"], color, False)) == 2
    for k in (1, 2):
        assert panels[f"block {k}"].lines[0].get_ydata() == [1, 1]  # line at the ideal ratio
    assert list(accuracy_axis.lines[0].get_xdata()) == list(LOGGED_EPOCHS)


def test_ratios_of_the_last_blocks_are_drawn_in_the_last_panels(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    write_run_record(tmp_path, "none/seed-0", 9)
    write_run_record(tmp_path, "last/seed-0", 2, lcr_gradient_ratio=0.1, lcr_options=("num_last_matrices=2",))
    write_run_record(tmp_path, "real/seed-0", None, method="real")
    draw_training_curves(
        read_curve_groups([tmp_path / group for group in ("none", "last", "real")]), tmp_path / "a.svg"
    )
    panels = panels_by_title(drawn_figures[0])
    assert len(panels) == 10
    for k in range(1, 10):
        axis = panels[f"block {k}"]
        assert find_curves(axis, COLORS[0], True) == [pytest.approx([k + 0.01, k + 0.05, k + 0.1])]
        assert len(find_curves(axis, COLORS[1], True)) == (k > 7)
        assert find_curves(axis, COLORS[2], True) == []
    assert find_curves(panels["block 8"], COLORS[1], True) == [pytest.approx([1.01, 1.05, 1.1])]


def test_ratios_far_from_one_have_a_logarithmic_axis(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    for count, scale in ((9, "linear"), (10, "log")):  # ratio k is slightly above k
        draw_training_curves(
            read_curve_groups([write_run_record(tmp_path, f"of-{count}/seed-0", count)]), tmp_path / "a.svg"
        )
        panels = panels_by_title(drawn_figures[-1])
        assert {panels[f"block {k}"].get_yscale() for k in range(1, count + 1)} == {scale}
        assert panels["training (dashed) and validation images"].get_yscale() == "linear"


def test_runs_without_validation_or_ratios_have_one_panel(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    draw_training_curves(
        read_curve_groups([write_run_record(tmp_path, "a/seed-0", None, has_validation=False)]), tmp_path / "a.svg"
    )
    assert list(panels_by_title(drawn_figures[0])) == ["training images (dashed)"]


def test_the_legend_names_differing_ratio_settings(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    write_run_record(tmp_path, "none/seed-0")
    write_run_record(tmp_path, "eq8/seed-0", lcr_gradient_ratio=0.1, lcr_options=("matrix=cross-gram", "beta=1"))
    draw_training_curves(read_curve_groups([tmp_path / "none", tmp_path / "eq8"]), tmp_path / "a.svg")
    assert legend_labels(drawn_figures[0]) == ["none", "eq8 (ratios: matrix=cross-gram)"]


@pytest.mark.parametrize(("num_ratios", "shape"), [(1, (1, 3)), (3, (1, 5)), (4, (2, 4)), (9, (3, 5)), (18, (4, 7))])
def test_there_is_one_panel_per_block(
    num_ratios: int, shape: tuple[int, int], tmp_path: Path, drawn_figures: list[Figure]
) -> None:
    draw_training_curves(read_curve_groups([write_run_record(tmp_path, "a/seed-0", num_ratios)]), tmp_path / "a.svg")
    assert len(drawn_figures[0].axes) == num_ratios + 1
    assert drawn_figures[0].axes[0].get_gridspec().get_geometry() == shape


def test_variants_with_equal_names_get_the_plan_name(tmp_path: Path) -> None:
    paths = [write_run_record(tmp_path, f"{plan}/none/seed-0") for plan in ("first", "second")]
    assert [group.name for group in read_curve_groups([*paths, paths[0]])] == ["first/none", "second/none"]
    assert [len(group.logs) for group in read_curve_groups([*paths, paths[0]])] == [1, 1]


def test_the_mean_covers_only_epochs_of_all_runs(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    paths = [write_run_record(tmp_path, f"a/seed-{seed}", seed=seed) for seed in (0, 1)]
    short = json.loads(paths[1].read_text())
    del short["figures"]["history"][-1]
    write_without_digest(paths[1], short)
    draw_training_curves(read_curve_groups(paths), tmp_path / "a.svg")
    assert find_curves(drawn_figures[0].axes[-1], COLORS[0], True, "--") == [[51.5, 55.5]]


def test_the_command_draws_runs_and_records_reproducibly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for group, weight in (("none", 0.0), ("lcr", 8.0)):
        for seed in (0, 1):
            train_small_run(tmp_path / group / f"seed-{seed}", SMALL.replace(lcr_weight=weight, seed=seed))
    copied_record = tmp_path / "results" / "lcr" / "seed-0.json"
    copied_record.parent.mkdir(parents=True)
    shutil.copy(tmp_path / "lcr" / "seed-0" / "record.json", copied_record)
    (tmp_path / "none" / "seed-1" / "record.json").unlink()  # a run that is not finished yet
    monkeypatch.chdir(tmp_path)
    for out in ("a.svg", "b.svg"):
        assert main(["plot", "none", "results/lcr/seed-0.json", "-o", out]) == 0
    assert capsys.readouterr().out == "a.svg\nb.svg\n"
    text = Path("a.svg").read_text()
    assert text == Path("b.svg").read_text()
    assert all(f"<!-- {label} -->" in text for label in ("none", "lcr", "block 1", "block 3", "epoch"))
    from_log, from_record = (
        read_curve_groups([Path(path)])[0].logs[0] for path in ("lcr/seed-0", "results/lcr/seed-0.json")
    )
    assert from_log == from_record
    assert read_curve_groups([Path("lcr/seed-0/record.json")])[0].name == "lcr"
    train_small_run(tmp_path / "mine", SMALL.replace(epochs=1))
    assert [read_curve_groups([Path(path)])[0].name for path in ("mine", "mine/record.json")] == ["mine", "mine"]


def replace_history(path: Path, lines: Any) -> None:
    record = json.loads(path.read_text())
    record["figures"]["history"] = lines
    write_without_digest(path, record)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        {},
        7,
        [7],
        [{"epoch": 1}],
        [{"epoch": 1, "train_top1": "x", "valid_top1": None, "sigma_ratios": None}],
        [{"epoch": 1, "train_top1": 1.0, "valid_top1": None, "sigma_ratios": 3}],
        [{"epoch": 1, "train_top1": 1.0, "valid_top1": None, "sigma_ratios": [None]}],
        [{"epoch": None, "train_top1": 1.0, "valid_top1": None, "sigma_ratios": []}],
    ],
)
def test_a_damaged_record_is_rejected(lines: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run_record(tmp_path, "a/seed-0")
    replace_history(path, lines)
    assert main(["plot", str(path), "-o", str(tmp_path / "a.svg")]) == 2
    assert capsys.readouterr().err == f"lcrbnn: {path} is not a valid record: its history is damaged\n"
    assert not (tmp_path / "a.svg").exists()


def test_ratios_that_are_missing_in_some_lines_are_left_out(tmp_path: Path, drawn_figures: list[Figure]) -> None:
    path = write_run_record(tmp_path, "a/seed-0")
    lines = json.loads(path.read_text())["figures"]["history"]
    lines[1]["sigma_ratios"] = lines[1]["sigma_ratios"][1:]
    replace_history(path, lines)
    draw_training_curves(read_curve_groups([path]), tmp_path / "a.svg")
    panels = panels_by_title(drawn_figures[0])
    assert [len(find_curves(panels[f"block {k}"], COLORS[0], True)[0]) for k in (1, 2)] == [2, 3]


def test_old_records_without_history_are_rejected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = ROOT / "bench" / "records" / "train" / "cifar10-resnet20-double-irnet" / "seed-0.json"
    assert "over_training" not in json.loads(old.read_text())["figures"]
    assert main(["plot", str(old), "-o", str(tmp_path / "a.svg")]) == 2
    assert capsys.readouterr().err == (
        f"lcrbnn: {old} has no history: it is not the record of a run, or an older one; draw the run folder\n"
    )


def test_incomparable_groups_are_rejected(tmp_path: Path) -> None:
    def read_error(*paths: Path) -> str:
        with pytest.raises(InputError) as error:
            draw_training_curves(read_curve_groups(paths), tmp_path / "a.svg")
        return str(error.value)

    none = write_run_record(tmp_path, "none/seed-0")
    layers = write_run_record(tmp_path, "layers/seed-0", lcr_options=("granularity=layers",))
    wide_model = write_run_record(tmp_path, "wide/seed-0", model="resnet20")
    other_weight = write_run_record(tmp_path, "none/seed-1", seed=1, lcr_weight=2.0)
    assert (
        read_error(none, layers)
        == "groups of one figure must have the same ratios; got none of blocks and layers of layers"
    )
    assert (
        read_error(none, wide_model)
        == "groups of one figure must have the same model; got none resnet8-double and wide resnet20"
    )
    assert read_error(none, other_weight) == "the runs of group none must have equal settings; lcr_weight is 0 and 2"
    many = [write_run_record(tmp_path, f"group-{i}/seed-0") for i in range(8)]
    assert read_error(*many).startswith("a figure shows at most 7 groups; got 8: group-0, group-1")
    assert "there is no run in" in read_error(tmp_path)
    assert "cannot be read: No such file or directory" in read_error(tmp_path / "no.json")
    unknown = json.loads(none.read_text())
    unknown["settings"]["nope"] = math.pi
    write_without_digest(none, unknown)
    assert read_error(none).startswith(f"{none}: no setting of a run is called 'nope'")


def test_a_run_without_a_finished_epoch_is_rejected(tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SMALL.replace(epochs=1))
    (tmp_path / "run" / "log.jsonl").write_text("")
    (tmp_path / "run" / "record.json").unlink()
    with pytest.raises(InputError, match="has not finished an epoch yet"):
        read_curve_groups([tmp_path / "run"])
