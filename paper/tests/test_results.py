"""Tables rendered from made-up records, paper/docs/results.md from the committed records, and committed weights."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from lcrbnn.cli.main import main
from lcrbnn.errors import InputError
from lcrbnn.study.validate_record import validate_record
from paper.tables.gpu_minutes import estimate_gpu_minutes
from paper.tables.layer_tables import rank_correlation, render_activation_table, render_weight_table
from paper.tables.render_tables import count_finished, render_document, render_table
from paper.tables.table_spec import PaperTables, TableVariant, read_table_spec

ROOT = Path(__file__).parents[2]
STUDY = """# Two variants
recipe = "digits"
seeds = [0]
baseline = "none"
[settings]
[variants.none]
[variants.kept]
lcr_weight = 1
"""
PLAN = """plans_folder = "."
[tables.a]
title = "A"
source = "Table 0"
per_layer = true
rows = [
    { title = "without", variant = "one/none", num_seeds = 3, paper_value = 80.0 },
    { title = "with", variant = "one/kept", num_seeds = 3, paper_value = 80.6 },
]
[tables.b]
title = "B"
source = "Table 0"
rows = [
    { title = "more", variant = "one/kept", minus_gain_of = "two/kept", num_seeds = 2, paper_value = 0.2 },
    { title = "single", variant = "two/kept", num_seeds = 1, paper_value = 70.0 },
]
"""


def write_run_record(
    paper_tables: PaperTables,
    variant_name: str,
    seed: int,
    top1: float | None,
    gradient_ratio: float | None = None,
    **parts: Any,
) -> None:
    variant = TableVariant(*variant_name.split("/"))
    spec = paper_tables.get_plan(variant.study).variants[variant.name].replace(seed=seed)
    last_epoch = {"train_top1": 70.0, "valid_top1": None, "lcr_gradient_ratio": gradient_ratio, "sigma_ratios": None}
    record = {"schema": 2, "kind": "train", "settings": spec.to_dict(), "figures": {"last_epoch": last_epoch}, **parts}
    if top1 is not None:
        record["test_results"] = [{"split": "test", "top1": value, "images": 500} for value in (top1, 1.0)]
    path = paper_tables.records / variant.study / variant.name / f"seed-{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


@pytest.fixture
def paper_tables(tmp_path: Path) -> PaperTables:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(STUDY)
    (tmp_path / "plan.toml").write_text(PLAN)
    return read_table_spec(tmp_path / "plan.toml")


def split_cells(paper_tables: PaperTables, table: str) -> list[list[str]]:
    lines = render_table(paper_tables, paper_tables.tables[table]).splitlines()[2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_a_table_can_show_top5(tmp_path: Path, paper_tables: PaperTables) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace("per_layer = true", "show_top5 = true"))
    paper_tables = read_table_spec(tmp_path / "plan.toml")
    for seed, top5 in enumerate((90.0, 92.0)):
        pairs = ((80.0, top5), (1.0, 2.0))
        test_results = [{"split": "test", "top1": a, "top5": b, "images": 500} for a, b in pairs]
        write_run_record(paper_tables, "one/none", seed, None, test_results=test_results)
    assert (
        render_table(paper_tables, paper_tables.tables["a"])
        .splitlines()[0]
        .endswith("| gradient ratio | top-5 (sd)   |")
    )
    assert [row[-1] for row in split_cells(paper_tables, "a")] == ["91.00 (1.41)", ""]
    assert "top-5" not in render_table(paper_tables, paper_tables.tables["b"])


def test_accuracies_intervals_and_gains_match_hand_computed_values(paper_tables: PaperTables) -> None:
    for seed, (a, b) in enumerate([(80.0, 80.5), (81.0, 81.1), (82.0, 82.6)]):
        write_run_record(paper_tables, "one/none", seed, a)
        write_run_record(paper_tables, "one/kept", seed, b, gradient_ratio=0.02)
    # Student's t with 2 degrees of freedom: 4.3027 at 97.5 %; deviations 1 and 0.2646 over the root of 3
    assert split_cells(paper_tables, "a") == [
        ["without", "3", "80.0", "81.00 (1.00)", "[78.52, 83.48]", "+1.00", "", "", "", "", ""],
        [
            "with",
            "3",
            "80.6",
            "81.40 (1.08)",
            "[78.71, 84.09]",
            "+0.80",
            "+0.40",
            "[−0.26, +1.06]",
            "0.86",
            "+0.6",
            ".0200",
        ],
    ]
    assert count_finished(paper_tables, paper_tables.tables["a"]) == (2, 2, 6, 6)


def test_one_run_has_no_interval_and_missing_runs_are_counted(paper_tables: PaperTables) -> None:
    write_run_record(paper_tables, "one/none", 1, 79.0)
    write_run_record(paper_tables, "one/kept", 1, 80.0, gradient_ratio=0.004)
    write_run_record(paper_tables, "one/kept", 2, None)  # finished, not read yet: no figure
    without, with_lcr = split_cells(paper_tables, "a")
    assert without == ["without", "1 of 3", "80.0", "79.00 (–)", "–", "−1.00", "", "", "", "", ""]
    assert with_lcr == ["with", "1 of 3", "80.6", "80.00 (–)", "–", "−0.60", "+1.00", "–", "–", "+0.6", ".0040"]
    assert split_cells(paper_tables, "b")[1][:3] == ["single", "not run", "70.0"]
    assert count_finished(paper_tables, paper_tables.tables["a"]) == (0, 2, 2, 6)


def test_an_interval_of_a_percentage_is_clipped_to_0_and_100(paper_tables: PaperTables) -> None:
    for seed, (a, b) in enumerate([(99.0, 0.5), (99.8, 1.0), (99.9, 3.0)]):
        write_run_record(paper_tables, "one/none", seed, a)
        write_run_record(paper_tables, "one/kept", seed, b)
    # deviations 0.493 and 1.323 over the root of 3, times 4.3027: the means lie 1.23 and 3.29 from each end
    assert [row[4] for row in split_cells(paper_tables, "a")] == ["[98.34, 100.00]", "[0.00, 4.79]"]


def test_a_row_without_a_baseline_run_has_no_gain(paper_tables: PaperTables) -> None:
    write_run_record(paper_tables, "one/kept", 0, 80.0, gradient_ratio=0.02)
    assert split_cells(paper_tables, "a")[1][3:] == ["80.00 (–)", "–", "−0.60", "–", "–", "–", "+0.6", ".0200"]


def test_gains_of_two_variants_are_paired_by_seed(paper_tables: PaperTables) -> None:
    values = {"one": [(80.0, 81.0), (80.0, 80.6)], "two": [(70.0, 70.5), (71.0, 71.3)]}
    for study, pairs in values.items():
        for seed, (a, b) in enumerate(pairs):
            write_run_record(paper_tables, f"{study}/none", seed, a)
            write_run_record(paper_tables, f"{study}/kept", seed, b)
    difference_row, single = split_cells(paper_tables, "b")
    assert difference_row[:6] == ["more", "2", "+0.2", "+0.40 (0.14)", "[−0.87, +1.67]", "+0.20"]
    assert difference_row[6:] == [""] * 5
    assert single[3:10] == ["70.50 (–)", "–", "+0.50", "+0.50", "–", "–", "–"]


def test_a_record_with_other_settings_is_rejected(paper_tables: PaperTables) -> None:
    write_run_record(paper_tables, "one/none", 0, 80.0)
    path = paper_tables.records / "one" / "none" / "seed-0.json"
    path.write_text(path.read_text().replace('"epochs": 15', '"epochs": 3'))
    with pytest.raises(InputError, match="was made with epochs 3 and the plan has 15"):
        render_document(paper_tables)


def make_layers(std: float, correlations: list[float]) -> dict[str, Any]:
    activations = {
        f"c{i}": {"size": 100, "chance": 0.08, "real": {"correlation": r, "cosine": r / 2, "signed": r}}
        for i, r in enumerate(correlations)
    }
    return {"weights": {"c0": {"size": 9, "std": std, "kurtosis": -1.0}}, "activations": activations}


def test_layers_are_paired_by_seed(paper_tables: PaperTables) -> None:
    for seed in (0, 1):
        write_run_record(paper_tables, "one/none", seed, 80.0, layers=make_layers(1.0 + seed, [0.5, 0.4, 0.3]))
        write_run_record(
            paper_tables, "one/kept", seed, 80.0, layers=make_layers(0.75 + seed, [0.1, 0.2, 0.4 + seed / 2])
        )
    widths = render_weight_table(paper_tables, paper_tables.tables["a"]).splitlines()[2:]
    assert re.sub(" +", " ", widths[0]) == "| `c0` | 9 | 1.500 | 1.250 | −0.250 [−0.250, −0.250] |"
    assert re.sub(" +", " ", widths[-1]) == "| kurtosis | | −1.000 | −1.000 | +0.000 [+0.000, +0.000] |"
    maps = [
        re.sub(" +", " ", line)
        for line in render_activation_table(paper_tables, paper_tables.tables["a"]).splitlines()[2:]
    ]
    assert maps[2] == "| `c2` | 100 | 0.080 | 0.300 (0.150) | | 0.650 (0.325) | |"
    assert maps[-1] == "| rank correlation | | | −1.00 | | +1.00 | |"


def test_rank_correlation_with_ties() -> None:
    assert rank_correlation([3.0, 1.0, 2.0]) == pytest.approx(-0.5)
    assert rank_correlation([1.0, 1.0, 2.0, 0.0]) == pytest.approx(-1.5 / (4.5 * 5) ** 0.5)
    assert rank_correlation([1.0, 1.0]) == 0.0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "attack"}, "is a record of kind 'attack', not of a training run"),
        ({"figures": {}}, "has no figures of the last epoch"),
        ({"test_results": [5]}, "has a test result that is not of test images: 5"),
        (
            {"test_results": [{"split": "valid", "top1": 80.0, "images": 500}]},
            "has a test result that is not of test images",
        ),
        ({"test_results": [{"split": "test", "images": 500}]}, "top1 of a test result must be a percentage; got None"),
        (
            {"test_results": [{"split": "test", "top1": float("nan"), "images": 500}]},
            "top1 of a test result must be a percentage; got nan",
        ),
        (
            {"test_results": [{"split": "test", "top1": 985.0, "images": 500}]},
            "top1 of a test result must be a percentage; got 985.0",
        ),
        (
            {"test_results": [{"split": "test", "top1": "80", "images": 500}]},
            "top1 of a test result must be a percentage; got '80'",
        ),
        (
            {"test_results": [{"split": "test", "top1": 80.0, "images": 10}]},
            "a test result is of 10 images; digits has 500",
        ),
        (
            {"figures": {"last_epoch": {"train_top1": 7.0, "lcr_gradient_ratio": "much"}}},
            "lcr_gradient_ratio of the last epoch must be a number; got 'much'",
        ),
        (
            {"figures": {"last_epoch": {"train_top1": 7.0, "valid_top1": float("nan")}}},
            "valid_top1 of the last epoch must be a percentage; got nan",
        ),
        (
            {"figures": {"last_epoch": {"train_top1": 7.0, "sigma_ratios": ["a"]}}},
            "sigma_ratios of the last epoch must be a list of numbers",
        ),
        (
            {"figures": {"last_epoch": {"train_top1": 7.0}, "noise_top1": {"0.1": "a"}}},
            "the accuracies under noise must be numbers",
        ),
    ],
)
def test_an_invalid_record_is_rejected_with_one_sentence(
    paper_tables: PaperTables, change: dict[str, Any], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run_record(paper_tables, "one/none", 0, 80.0)
    write_run_record(
        paper_tables,
        "one/none",
        1,
        None,
        **{"test_results": [{"split": "test", "top1": 81.0, "images": 500}], **change},
    )
    place = ["--table-spec", str(paper_tables.path), "--records", str(paper_tables.records)]
    assert main(["reproduce", "a", "--from-records", *place]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_a_reading_of_no_image_is_refused_for_data_of_any_size() -> None:
    test_result = {"split": "test", "top1": 80.0, "images": 0}
    record = {
        "kind": "train",
        "settings": {"dataset": "tree"},
        "figures": {"last_epoch": {"train_top1": 7.0}},
        "test_results": [test_result],
    }
    with pytest.raises(InputError, match=r"a test result is of 0 images$"):
        validate_record(record, Path("a.json"))


def test_tables_without_a_finished_run_come_last_with_their_minutes(paper_tables: PaperTables) -> None:
    write_run_record(paper_tables, "two/none", 0, 70.0)
    write_run_record(paper_tables, "two/kept", 0, 70.0)
    titles = re.findall("^## (.*)", render_document(paper_tables), re.MULTILINE)
    assert titles[:2] == ["B", "A"]
    assert "None of its 6 runs is finished: their duration is not known." in render_document(paper_tables)


def test_gpu_minutes_are_images_divided_by_the_recorded_speed() -> None:
    committed = read_table_spec(ROOT / "paper" / "tables.toml")
    record = json.loads((ROOT / "bench" / "records" / "gpu-steps-resnet18-three-lean.json").read_text())
    minutes = 3 * 200 * 50_000 / record["figures"]["images_per_second"] / 60  # per variant of three runs
    table = committed.tables["resnet18-rbnn"]
    assert count_finished(committed, table).finished_runs in (0, 6)
    num_missing_variants = 2 if count_finished(committed, table).finished_runs == 0 else 0
    assert estimate_gpu_minutes(committed, table) == pytest.approx(num_missing_variants * minutes)
