"""Committed records belong to the runs that they describe, and they support the statements of the documents."""

from __future__ import annotations

import json
import re
import statistics
from typing import Any

import pytest

from lcrbnn.evaluation.analysis.analyze import SUMMARY_TITLES
from lcrbnn.evaluation.analysis.convolution_norm import CONVERGED_RESIDUAL
from lcrbnn.evaluation.paired_difference import PairedDifference, compare_paired
from paper.figures import analysis, corruptions, screening_of_variants, small_studies
from paper.figures.corruptions import HEADS, STUDIES, RobustnessStudy
from paper.figures.log_entries import index_of_largest, list_literal_runs
from paper.figures.record_values import (
    BENCH_RECORDS,
    RESULTS,
    read_bench_metrics,
    read_cached_record,
    read_last_epoch,
    read_metrics,
    read_runs,
    read_test_accuracy,
)


def compare_summaries(measure: str) -> PairedDifference:
    summaries = analysis.read_summaries()
    without, with_lcr = ([s[measure] for s in summaries[variant].values()] for variant in analysis.VARIANTS)
    return compare_paired(without, with_lcr)


def test_records_name_the_commit_that_made_them() -> None:
    for path in RESULTS.rglob("*.json"):
        record = json.loads(path.read_text())
        assert re.fullmatch(r"[0-9a-f]{12}", record["environment"]["commit"]), path.name


def test_analysis_records_belong_to_the_runs_of_the_study() -> None:
    for variant, records in analysis.read_analysis_records().items():
        trained_runs = read_runs(f"cifar10-double/{variant}", analysis.NUM_SEEDS)
        for record, trained in zip(records, trained_runs, strict=True):
            assert "+" not in record["environment"]["commit"]
            assert record["settings"]["checkpoint_sha256"] == trained["figures"]["checkpoint_sha256"]
            assert record["settings"]["spec"] == trained["settings"]


def test_lcr_reduces_sign_flips_and_no_bound() -> None:
    for noise in ("0.04", "0.08", "0.12"):
        assert compare_summaries(f"flips_{noise}").high < 0
        assert not compare_summaries(f"flips_over_pairs_{noise}").is_significant
    assert compare_summaries("flips_pairs").high < 0
    assert compare_summaries("cosine").low > 0
    assert not compare_summaries("surrogate_log10").is_significant
    assert not compare_summaries("eq5_log10").is_significant
    measures = [name for name in SUMMARY_TITLES if name.startswith(("sens", "over"))]
    assert [m for m in measures if compare_summaries(m).is_significant] == ["sensitivity_1", "over_pairs_1"]


@pytest.mark.parametrize(("radius", "change"), [(0.01, "3.2"), (0.1, "3.6"), (4, "12")])
def test_logits_change_equally_far_with_and_without_lcr(radius: float, change: str) -> None:
    decimals = len(change.partition(".")[2])
    for summaries in analysis.read_summaries().values():
        mean = statistics.fmean(summary[f"sensitivity_{radius:g}"] for summary in summaries.values())
        assert f"{radius * mean:.{decimals}f}" == change


def test_spectral_norms_of_convolutions_converged() -> None:
    for records in analysis.read_analysis_records().values():
        for record in records:
            assert all(n["residual"] <= CONVERGED_RESIDUAL for n in record["figures"]["norms"].values() if n["steps"])


def test_attack_records_are_complete() -> None:
    variants = dict.fromkeys(analysis.VARIANTS, analysis.NUM_SEEDS) | {"teacher": 1}
    for variant, num_seeds in variants.items():
        for record in read_runs(f"attack/cifar10-double/{variant}", num_seeds):
            assert record["settings"]["images"] == 1000
            assert len(record["settings"]["attacks"]) == 5 or variant == "teacher"
            assert (record["settings"]["spec"]["method"] == "real") == (variant == "teacher")


def test_no_network_survives_strong_attacks() -> None:
    metrics = {variant: analysis.read_attack_metrics(variant) for variant in analysis.VARIANTS}
    for runs in metrics.values():
        assert all(run[eps]["worst"] == 0 for run in runs.values() for eps in ("2/255", "8/255"))
    masked = [
        (v, s, eps) for v, runs in metrics.items() for s, run in runs.items() for eps in run if run[eps]["masked"]
    ]
    assert masked == [("default", 4, "0.5/255")]
    teacher = read_metrics(RESULTS / "attack" / "cifar10-double" / "teacher" / "seed-0.json")
    assert teacher["8/255"]["worst"] < 5


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_corruption_records_are_complete_and_belong_to_the_runs_of_the_study(study: RobustnessStudy) -> None:
    for variant, records in study.records.items():
        for record, trained in zip(records, read_runs(variant, len(records)), strict=True):
            assert record["figures"]["complete"]
            assert record["settings"]["images"] == 10_000
            assert record["settings"]["checkpoint_sha256"] == trained["figures"]["checkpoint_sha256"]


def list_significant_errors(study: RobustnessStudy) -> list[tuple[str, str]]:
    titles = [(head, title) for head in study.heads for title in study.compute_errors(study.variants[0], head)]
    return [title for title in titles if study.compare_errors(*title).is_significant]


def test_corruption_errors_of_cifar10_differ_under_two_corruptions_only() -> None:
    assert list_significant_errors(corruptions.CIFAR) == []
    assert corruptions.CIFAR.find_significant_corruptions() == ["snow", "frost"]


def test_corruption_errors_of_reactnet_differ_under_three_corruptions_only() -> None:
    study = corruptions.REACT
    assert list_significant_errors(study) == []
    titles = list(study.compute_errors(study.variants[0], HEADS[0]))
    for title in titles[1:]:
        difference = study.compare_errors(HEADS[0], title)
        assert max(abs(difference.low), abs(difference.high)) < 0.3
    assert study.find_significant_corruptions() == ["glass_blur", "zoom_blur", "speckle_noise"]
    assert corruptions.count_differing_images(study) == 6


def test_all_corruption_errors_of_irnet_on_tiny_imagenet_differ() -> None:
    study = corruptions.TINY
    assert len(list_significant_errors(study)) == len(study.compute_errors(study.variants[0], HEADS[0]))
    assert study.compare_added_errors().is_significant
    assert corruptions.count_differing_images(study) == 5


def test_corrupted_images_are_equal_on_gpu_and_cpu() -> None:
    assert {measurement["largest"] for measurement in read_bench_metrics("corruptions-h200")["each"].values()} == {0}


def test_the_first_runs_were_evaluated_once() -> None:
    for seed in (0, 1):
        path = BENCH_RECORDS / "train" / "cifar10-resnet20-double-irnet" / f"seed-{seed}.json"
        record = read_cached_record(path)
        assert (record["settings"]["epochs"], record["settings"]["lcr_weight"]) == (400, 0)
        assert [(result["split"], result["images"]) for result in record["test_results"]] == [("test", 10_000)]


def test_killed_runs_ended_like_the_uninterrupted_run() -> None:
    metrics = read_bench_metrics("kill/cpu")
    assert metrics["different"] == []
    assert len(metrics["kills"]) >= 20
    assert metrics["inside"] >= 5


def test_the_eager_and_compiled_means_were_measured_on_an_h200() -> None:
    assert "H200" in read_cached_record(BENCH_RECORDS / "twin-means-h200.json")["environment"]["gpu"]


@pytest.mark.parametrize("plan", ["cifar10-paper", "cifar10-paper-plain"])
def test_the_smallest_lambda_of_the_paper_variant_is_the_best(plan: str) -> None:
    means = {k: statistics.fmean(read_last_epoch(f"{plan}/paper-1e-{k}", "valid_top1")) for k in (5, 4, 3)}
    assert max(means, key=means.__getitem__) == 5


def test_seed_0_of_default_is_the_best_of_eight() -> None:
    assert index_of_largest(read_test_accuracy("cifar10-double/default", 8)) == 0


def test_logs_of_the_paper_variant_end_like_their_records() -> None:
    first_logs, logs = (read_metrics(RESULTS / f"{name}.json") for name in ("logs-paper-first", "logs-paper"))
    lcr_loss = {seed: first_logs[f"cifar10-plain/paper/seed-{seed}"]["lip"] for seed in (2, 4)}
    largest = {seed: (max(values), index_of_largest(values) + 1) for seed, values in lcr_loss.items()}
    assert largest == {2: (17300, 189), 4: (862, 336)}
    for run in list_literal_runs().values():
        line = read_runs(run.rpartition("/")[0], int(run[-1]) + 1)[-1]["figures"]["last_epoch"]
        assert f"{logs[run]['train'][-1]:.2f}" == f"{line['train_top1']:.2f}"


def test_logs_with_real_activations_end_like_their_records() -> None:
    metrics = read_metrics(RESULTS / "logs-weights.json")
    logs = [metrics[f"cifar10-weights/paper/seed-{seed}"]["train"] for seed in range(3)]
    last_values = [f"{train_top1[-1]:.2f}" for train_top1 in logs]
    assert last_values == [f"{value:.2f}" for value in read_last_epoch("cifar10-weights/paper", "train_top1")]
    assert logs[0][357] < logs[0][356] / 2


def test_memory_traffic_falls_by_3_to_14_percent() -> None:
    for versions in read_bench_metrics("launches").values():
        assert list(versions) == ["wordy", "norms", "together", "lean"]
    for case in read_bench_metrics("launches-clips").values():
        assert 0.86 < case["lean"]["megabytes"] / case["unclipped"]["megabytes"] < 0.97


def test_recu_is_the_best_of_the_first_round() -> None:
    plan = RESULTS / "cifar10-resnet18-diagnosis"
    top1: dict[str, Any] = {
        path.name: read_last_epoch(f"{plan.name}/{path.name}", "valid_top1", 1)[0] for path in plan.iterdir()
    }
    assert max(top1, key=top1.__getitem__) == "recu"
    assert not (RESULTS / "cifar10-resnet18-fourth" / "matrices-small").exists()


def test_screening_of_variants() -> None:
    uniform_weights = screening_of_variants.last_values("eq9-share-10-beta-1", "sigma_ratios")
    assert max(abs(ratio - 1) for ratios in uniform_weights for ratio in ratios) < 0.05
    assert all(ratio > 0.9995 for ratio in screening_of_variants.last_values("eq9-share-30", "sigma_ratios")[1])
    baseline = screening_of_variants.noise_accuracy("none")
    for variant in screening_of_variants.VARIANTS[1:]:
        assert not compare_paired(baseline, screening_of_variants.noise_accuracy(variant)).is_significant, variant


def test_no_gain_of_the_small_studies_is_significant() -> None:
    for variant in small_studies.REGULARIZERS:
        assert not small_studies.compute_gain("small-regularizers", variant).is_significant, variant
    without, below = (small_studies.read_valid_top1("small-below", variant) for variant in ("none", "below"))
    assert sum(a > b for a, b in zip(without, below, strict=True)) == 6
