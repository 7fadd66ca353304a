"""Training results, objective, measurements and the parts of a run."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.data.loading.batches import Batch, InMemoryBatches
from lcrbnn.data.split import ImageArrays
from lcrbnn.errors import InputError
from lcrbnn.nn.methods.annealing import anneal_temperature
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.train import loop
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.objective import compute_gradients, compute_objective, compute_task_loss
from lcrbnn.train.schedule import is_measured_epoch
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.validation import LcrMeasurement
from tests.train.helpers import SAVE_EVERY_STEP, SMALL, read_log_without_times, read_newest_arrays, train_small_run

CPU = torch.device("cpu")


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_sixty_four_images_can_be_overfitted(weight: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = read_digits()
    few = replace(
        DATASETS["digits"],
        load=lambda folder: ImageArrays(digits.train.take(np.arange(64)), digits.test),
    )
    monkeypatch.setitem(DATASETS, "digits", few)
    spec = TrainSpec(train_split="train+valid", epochs=60, batch_size=32, lcr_weight=weight)
    train_small_run(tmp_path / "run", spec, replace(SAVE_EVERY_STEP, checkpoint_interval_s=100.0))
    assert read_log_without_times(tmp_path / "run")[-1]["train_top1"] == 100
    assert read_log_without_times(tmp_path / "run")[-1]["train_loss"] < 0.1


def test_a_run_folder_contains_the_documented_files(tmp_path: Path) -> None:
    train_small_run(
        tmp_path / "run",
        SMALL.replace(lcr_weight=2.0, lcr_warmup_epochs=1.0),
        replace(SAVE_EVERY_STEP, tensorboard=True),
    )
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {"spec.json", "log.jsonl", "checkpoints", "record.json", "lock", "tensorboard"}
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["settings"] == json.loads((tmp_path / "run" / "spec.json").read_text())
    assert record["figures"]["num_images"] == {"train": 1000, "valid": 297}
    lines = read_log_without_times(tmp_path / "run")
    assert [line["epoch"] for line in lines] == [1, 2]
    assert [line["lcr_weight"] for line in lines] == [
        pytest.approx(1.5),
        2.0,
    ]  # the last step of the warm-up of lambda, and after it
    assert all(line["lcr_loss"] > 0 and len(line["sigma_ratios"]) == 3 for line in lines)
    assert record["figures"]["last_epoch"]["valid_top1"] == lines[-1]["valid_top1"]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(name))  # the state of the caller's generator has no effect
        torch.rand(7)
        train_small_run(tmp_path / name, SMALL.replace(seed=seed))
    assert (
        read_log_without_times(tmp_path / "a")
        == read_log_without_times(tmp_path / "b")
        != read_log_without_times(tmp_path / "c")
    )


def test_seeds_are_paired_and_lambda_0_is_bit_equal_to_training_without_lcr(tmp_path: Path) -> None:
    """Initial weights and image order are the same with and without LCR; at lambda 0 the variant changes nothing."""
    lcr_model, baseline = build_network(SMALL.replace(lcr_weight=4.0)), build_network(SMALL)
    assert all(
        torch.equal(a, b) for a, b in zip(lcr_model.state_dict().values(), baseline.state_dict().values(), strict=True)
    )
    train_small_run(tmp_path / "a", SMALL)
    train_small_run(tmp_path / "b", SMALL.replace(lcr_variant="paper"))
    first_arrays, second_arrays = read_newest_arrays(tmp_path / "a"), read_newest_arrays(tmp_path / "b")
    assert all(np.array_equal(first_arrays[n], second_arrays[n]) for n in first_arrays)


def test_the_log_contains_means_over_all_images(tmp_path: Path) -> None:
    """At learning rate 0 the network does not change, so one pass in training mode gives the same means."""
    spec = SMALL.replace(epochs=1, lr=0.0)
    train_small_run(tmp_path / "run", spec)
    model = build_network(spec)
    split, _ = read_digits().split_validation(297)
    batches = InMemoryBatches(split, DATASETS["digits"], CPU)
    loss = correct = 0.0
    for batch in batches.train_batches(0, 0, 300, "none", 0, 4):
        logits = model(batch.images)
        loss += F.cross_entropy(logits, batch.labels, reduction="sum").item()
        correct += (logits.argmax(1) == batch.labels).sum().item()
    line = read_log_without_times(tmp_path / "run")[0]
    assert line["train_loss"] == pytest.approx(loss / 1000, rel=1e-6)
    assert line["train_top1"] == pytest.approx(100 * correct / 1000)


def test_full_precision_trains_without_sigma_ratios(tmp_path: Path) -> None:
    train_small_run(tmp_path / "weights", SMALL.replace(model="resnet20-relu", bits="1/32", epochs=1))
    assert read_log_without_times(tmp_path / "weights")[0]["sigma_ratios"] is None
    train_small_run(tmp_path / "real", SMALL.replace(method="real"))
    assert read_log_without_times(tmp_path / "real")[-1]["valid_top1"] > 50
    assert read_log_without_times(tmp_path / "real")[0]["sigma_ratios"] is None


def test_weight_decay_applies_to_the_parameters_of_the_spec() -> None:
    def find_decaying_parameters(**changes: str) -> set[str]:
        parts = build_training_parts(SMALL.replace(weight_decay=0.5, **changes), CPU)
        groups = {g["weight_decay"]: g["params"] for g in parts.optimizer.param_groups}
        assert sum(len(g["params"]) for g in parts.optimizer.param_groups) == len(parts.parameter_names)
        return {parts.parameter_names[p].removeprefix("model/") for p in groups[0.5]}

    model = build_network(SMALL)
    every = {n for n, _ in model.named_parameters()}
    latent = {f"{n}.weight" for n, _ in iter_binary_layers(model)}
    layers = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert find_decaying_parameters(weight_decay_parameters="all") == every
    assert find_decaying_parameters(weight_decay_parameters="non-latent") == every - latent
    assert find_decaying_parameters(weight_decay_parameters="conv-linear-weights") == layers
    assert latent < layers < every


def test_batch_norms_start_with_the_gamma_of_the_spec() -> None:
    norms = [m for m in build_network(SMALL.replace(bn_gamma_init=1e-8)).modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all((n.weight == 1e-8).all() for n in norms)


def test_a_step_trains_the_learnable_scales(tmp_path: Path) -> None:
    """The variant official has one learnable scale per feature map, in the optimizer and in checkpoints."""
    train_small_run(tmp_path / "teacher", SMALL.replace(method="real", epochs=1))
    spec = SMALL.replace(lcr_variant="official", lcr_weight=1e4, epochs=1, teacher=str(tmp_path / "teacher"))
    train_small_run(tmp_path / "run", spec)
    factors = read_newest_arrays(tmp_path / "run")["retention/factors"]
    assert not np.allclose(factors, 1)
    assert "optimizer/retention/factors/momentum_buffer" in read_newest_arrays(tmp_path / "run")


def test_the_distillation_loss_is_the_divergence_from_the_teacher(tmp_path: Path) -> None:
    train_small_run(tmp_path / "teacher", SMALL.replace(method="real", epochs=1))
    spec = SMALL.replace(distillation_alpha=0.75, distillation_temperature=2.0, teacher=str(tmp_path / "teacher"))
    parts = build_training_parts(spec, CPU)
    assert parts.teacher is not None
    assert not any(m.training for m in parts.teacher.modules())
    batches = InMemoryBatches(read_digits().train, DATASETS["digits"], CPU)
    batch = next(batches.evaluation_batches(50))
    logits = torch.randn(50, 10)
    with torch.no_grad():
        teacher_probabilities = (parts.teacher(batch.images) / 2).softmax(1)
    divergence = (teacher_probabilities * (teacher_probabilities.log() - (logits / 2).log_softmax(1))).sum(1).mean()
    expected = 0.25 * F.cross_entropy(logits, batch.labels) + 0.75 * 4 * divergence
    assert compute_task_loss(spec, parts, batch.images, batch.labels, logits).item() == pytest.approx(
        expected.item(), rel=1e-5
    )
    before = {n: p.clone() for n, p in parts.teacher.state_dict().items()}
    EagerStep(spec, parts, batches).update_weights(batch, 0.1, 0.0)
    assert all(torch.equal(before[n], p) for n, p in parts.teacher.state_dict().items())


@pytest.mark.parametrize("largest", [1e-3, 1e3])
def test_gradients_are_clipped_as_torch_clips_them(largest: float) -> None:
    batch = Batch(torch.rand(8, 1, 8, 8), torch.arange(8), torch.arange(8))
    batches = InMemoryBatches(read_digits().train, DATASETS["digits"], CPU)
    plain, clipped = (build_training_parts(SMALL, CPU) for _ in range(2))
    EagerStep(SMALL, plain, batches).update_weights(batch, 0.0, 0.0)
    EagerStep(SMALL.replace(max_gradient_norm=largest), clipped, batches).update_weights(batch, 0.0, 0.0)
    torch.nn.utils.clip_grad_norm_(plain.parameter_names, largest)
    norm = torch.nn.utils.get_total_norm([p.grad for p in clipped.parameter_names if p.grad is not None])
    assert norm.item() == pytest.approx(1e-3, rel=1e-4) if largest < 1 else norm > 1e-2
    for parameter, torch_parameter in zip(clipped.parameter_names, plain.parameter_names, strict=True):
        assert (parameter.grad is None) == (torch_parameter.grad is None)
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, torch_parameter.grad)


def test_a_step_sets_the_learning_rate_and_projects() -> None:
    parts = build_training_parts(SMALL.replace(method="xnor"), CPU)
    batch = Batch(torch.rand(8, 1, 8, 8), torch.arange(8), torch.arange(8))
    before = parts.model.stem[0].weight.detach().clone()
    step = EagerStep(SMALL, parts, InMemoryBatches(read_digits().train, DATASETS["digits"], CPU))
    step.update_weights(batch, 0.0, 0.0)
    assert torch.equal(parts.model.stem[0].weight, before)
    step.update_weights(batch, 100.0, 0.0)
    assert not torch.equal(parts.model.stem[0].weight, before)
    assert all(layer.weight.abs().max() <= 1 for _, layer in iter_binary_layers(parts.model))  # xnor clamps its weights


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"teacher": "nowhere"}, r"a teacher is a finished run, and /.*nowhere has no record\.json"),
        ({"lcr_variant": "official", "lcr_weight": 1.0}, "reference 'teacher' needs the argument teacher"),
        ({"lcr_variant": "papr"}, "no variant of the LCR loss is called 'papr'"),
        ({"lcr_options": ("weight=2",)}, "lcr_options cannot set weight"),
        (
            {"lcr_options": ("matrx=batch",)},
            r"no setting of the LCR loss is called 'matrx'.*matrix",
        ),
        ({"method_options": ("t_mim=1",)}, "no option of irnet is called 't_mim'"),
        ({"method": "real", "lcr_weight": 1.0}, "a full-precision network has no binary layers for the LCR loss"),
        ({"method": "real", "bits": "1/1"}, "full precision has neither bits nor method_options"),
        ({"method_options": ("bits=1/1",)}, "no option of irnet is called 'bits'"),
        ({"lcr_options": ("self=1",)}, "no setting of the LCR loss is called 'self'"),
        ({"model": "resnet21"}, "no network is called 'resnet21'"),
        ({"method": "irnett"}, "no binarization method is called 'irnett'"),
        ({"bits": "2/2"}, "irnet has no bit width '2/2'"),
        ({"dataset": "cifar11"}, "no data set is called 'cifar11'"),
        ({"dataset": "cifar10"}, "CIFAR-10 was not found in"),
        ({"batch_size": 999}, "batches of 999 leave one of 1,000 images"),
        ({"batch_size": 2000, "drop_last": True}, "a batch of 2000 is larger than the 1,000 training images"),
    ],
)
def test_an_invalid_spec_is_rejected_before_anything_is_written(changes: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        train_small_run(tmp_path / "run", SMALL.replace(**changes), replace(SAVE_EVERY_STEP, data_folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_teacher_must_be_used_and_trained_on_the_same_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_small_run(tmp_path / "teacher", SMALL.replace(epochs=1))
    taught = SMALL.replace(teacher=str(tmp_path / "teacher"))
    with pytest.raises(InputError, match="a teacher is given and nothing uses it"):
        train_small_run(tmp_path / "run", taught)
    monkeypatch.setitem(DATASETS, "other", replace(DATASETS["digits"], name="other"))
    with pytest.raises(InputError, match=r"the teacher in .* was trained on digits, and this run trains on other"):
        train_small_run(tmp_path / "run", taught.replace(dataset="other", distillation_alpha=0.5))


def test_a_run_resumes_only_with_the_same_teacher(tmp_path: Path) -> None:
    train_small_run(tmp_path / "teacher", SMALL.replace(epochs=1))
    spec = SMALL.replace(teacher=str(tmp_path / "teacher"), distillation_alpha=0.5)
    train_small_run(tmp_path / "run", spec)
    (tmp_path / "run" / "record.json").unlink()
    for path in (tmp_path / "teacher").rglob("*"):
        path.unlink() if path.is_file() else None
    (tmp_path / "teacher" / "checkpoints").rmdir()
    train_small_run(tmp_path / "teacher", SMALL.replace(epochs=1, seed=1))
    with pytest.raises(InputError, match="was trained with another teacher than the one now in"):
        train_small_run(tmp_path / "run", spec, resume=True)


def test_a_run_restores_the_global_state_of_torch(tmp_path: Path) -> None:
    def state() -> tuple:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.get_rng_state().tolist(),
            signal.getsignal(signal.SIGTERM),
            signal.getsignal(signal.SIGINT),
        )

    before = state()
    train_small_run(tmp_path / "run", SMALL.replace(epochs=1))
    assert state() == before


def test_the_quantization_loss_alone_trains_and_logs_no_lcr_loss(tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SMALL.replace(lcr_options=("quantization_error_weight=1e-6",), epochs=1))
    assert read_log_without_times(tmp_path / "run")[0]["lcr_loss"] is None
    train_small_run(tmp_path / "none", SMALL.replace(epochs=1))
    assert (
        read_log_without_times(tmp_path / "run")[0]["train_loss"]
        > read_log_without_times(tmp_path / "none")[0]["train_loss"]
    )


def test_methods_get_the_training_progress(tmp_path: Path) -> None:
    train_small_run(tmp_path / "run")
    t, k = anneal_temperature(1 / 2, 1e-3, 1e1)  # the second of two epochs
    final_arrays = read_newest_arrays(tmp_path / "run")
    assert final_arrays["model/layer1.0.conv1.weight_binarizer.annealing.t"] == pytest.approx(t)
    assert final_arrays["model/layer1.0.conv1.input_binarizer.annealing.k"] == pytest.approx(k)


def test_the_lcr_gradient_ratio_equals_that_of_two_backward_passes(tmp_path: Path) -> None:
    spec = SMALL.replace(lcr_weight=3.0, lr=0.0, epochs=1)
    train_small_run(tmp_path / "run", spec)
    parts = build_training_parts(spec, CPU)
    split, _ = read_digits().split_validation(297)
    batch = next(InMemoryBatches(split, DATASETS["digits"], CPU).evaluation_batches(300))

    def length(with_task: bool, with_retention: bool) -> float:
        parts.model.zero_grad()
        loss = F.cross_entropy(parts.model(batch.images), batch.labels)
        lcr_loss = parts.retention.loss()
        (loss * with_task + lcr_loss * with_retention).backward()
        return torch.cat([p.grad.flatten() for p in parts.model.parameters()]).norm().item()

    expected = length(False, True) / length(True, False)
    assert read_log_without_times(tmp_path / "run")[0]["lcr_gradient_ratio"] == pytest.approx(expected, rel=1e-4)
    train_small_run(tmp_path / "none", SMALL.replace(epochs=1))
    assert read_log_without_times(tmp_path / "none")[0]["lcr_gradient_ratio"] is None


def test_a_gradient_ratio_sets_lambda(tmp_path: Path) -> None:
    """At learning rate 0 the weights stay the same, so the ratio at the end of an epoch is the requested one."""
    train_small_run(tmp_path / "run", SMALL.replace(lcr_gradient_ratio=0.2, lr=0.0, epochs=1, weight_decay=0.0))
    line = read_log_without_times(tmp_path / "run")[0]
    assert line["lcr_gradient_ratio"] == pytest.approx(0.2, rel=1e-4)
    assert line["lcr_weight"] > 0
    assert line["lcr_loss"] > 0
    with pytest.raises(InputError, match="give lcr_weight \\(a fixed λ\\) or lcr_gradient_ratio"):
        SMALL.replace(lcr_gradient_ratio=0.2, lcr_weight=1.0)


def test_a_gradient_ratio_of_rounding_size_sets_lambda_to_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SMALL.replace(lcr_gradient_ratio=0.2, lr=0.0, epochs=1, weight_decay=0.0)
    for share, expected in ((5e-7, 0.0), (0.0, 0.0), (None, 0.0), (2e-6, 1e5)):
        monkeypatch.setattr(loop, "measure_lcr", lambda *args, share=share: LcrMeasurement([1.0], share))
        path = train_small_run(tmp_path / str(share), spec, replace(SAVE_EVERY_STEP, checkpoint_interval_s=1000.0))
        assert read_log_without_times(path)[0]["lcr_weight"] == pytest.approx(expected)


def test_a_run_is_measured_about_forty_times_more_often_early_and_in_its_last_epoch() -> None:
    assert all(is_measured_epoch(TrainSpec(epochs=15), epoch) for epoch in range(15))
    measured_epochs = [epoch for epoch in range(400) if is_measured_epoch(TrainSpec(epochs=400), epoch)]
    assert measured_epochs == [0, 1, 2, 4, 8, *range(10, 400, 10), 399]


def test_num_last_matrices_restricts_lcr_to_the_last_blocks(tmp_path: Path) -> None:
    train_small_run(tmp_path / "run", SMALL.replace(lcr_weight=1.0, lcr_options=("num_last_matrices=2",), epochs=1))
    assert len(read_log_without_times(tmp_path / "run")[0]["sigma_ratios"]) == 2


def test_the_seed_determines_the_initial_weights() -> None:
    first_weight, same, other_weight = (build_network(SMALL.replace(seed=seed)).stem[0].weight for seed in (0, 0, 1))
    assert torch.equal(first_weight, same)
    assert not torch.equal(first_weight, other_weight)


def test_a_batch_counts_in_proportion_to_its_images() -> None:
    spec = SMALL.replace(lcr_weight=3.0)
    parts = build_training_parts(spec, CPU)
    step_loss = compute_objective(spec, parts, torch.randn(6, 1, 8, 8), torch.arange(6), 3.0)
    assert parts.retention.lcr_loss > 0
    loss, lip, correct, num_images = step_loss.sums.tolist()
    assert (loss, lip) == pytest.approx((6 * step_loss.loss.item(), 6 * parts.retention.lcr_loss.item()), rel=1e-6)
    assert 0 <= correct <= num_images == 6


def test_labels_are_smoothed_as_the_spec_says() -> None:
    spec = SMALL.replace(label_smoothing=0.2)
    parts = build_training_parts(spec, CPU)
    logits, labels = torch.randn(6, 10), torch.arange(6)
    smoothed_labels = torch.full((6, 10), 0.02)
    smoothed_labels[torch.arange(6), labels] += 0.8
    expected = -(smoothed_labels * logits.log_softmax(1)).sum(1).mean()
    loss = compute_task_loss(spec, parts, torch.zeros(6, 1, 8, 8), labels, logits)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layers_compute_in_the_precision_of_the_spec(dtype: torch.dtype) -> None:
    precision = str(dtype).removeprefix("torch.")
    parts = build_training_parts(SMALL.replace(precision=precision), CPU)
    dtypes: list[torch.dtype] = []
    parts.model.stem[0].register_forward_hook(lambda module, inputs, output: dtypes.append(output.dtype))
    compute_objective(SMALL.replace(precision=precision), parts, torch.rand(4, 1, 8, 8), torch.arange(4), 0.0)
    assert dtypes == [dtype]


def test_small_gradients_survive_float16() -> None:
    p = torch.ones(3, requires_grad=True)
    [gradient] = compute_gradients(SMALL.replace(precision="float16"), (p.half().float() * 1e-8).sum(), [p])
    assert gradient is p.grad
    assert gradient.tolist() == pytest.approx([1e-8] * 3, rel=1e-2)
