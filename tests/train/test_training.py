"""What a run learns, and from what parts it is made."""

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

from lcrbnn.data import DATASETS, Images
from lcrbnn.data.digits import read_digits
from lcrbnn.errors import InputError
from lcrbnn.layers import binary_layers
from lcrbnn.methods.annealing import temperature
from lcrbnn.train import Spec, loop
from lcrbnn.train.batches import Batch, Batches
from lcrbnn.train.build import build, build_network
from lcrbnn.train.evaluate import Look
from lcrbnn.train.objective import go_back, objective, task_loss
from lcrbnn.train.schedule import looked_at
from lcrbnn.train.step_eager import EagerStep
from tests.train.helpers import OFTEN, SMALL, arrays, log, small_run

CPU = torch.device("cpu")


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_sixty_four_images_are_learned_by_heart(weight: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = read_digits()
    few = replace(
        DATASETS["digits"],
        load=lambda folder: Images(digits.train.take(np.arange(64)), digits.test),
    )
    monkeypatch.setitem(DATASETS, "digits", few)
    spec = Spec(images="all", epochs=60, batch=32, weight=weight)
    small_run(tmp_path / "run", spec, replace(OFTEN, save_seconds=100.0))
    assert log(tmp_path / "run")[-1]["train"] == 100
    assert log(tmp_path / "run")[-1]["loss"] < 0.1


def test_a_run_leaves_what_the_documents_promise(tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(weight=2.0, ramp=1.0), replace(OFTEN, tensorboard=True))
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {"spec.json", "log.jsonl", "checkpoints", "record.json", "lock", "tensorboard"}
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["settings"] == json.loads((tmp_path / "run" / "spec.json").read_text())
    assert record["figures"]["images"] == {"train": 1000, "valid": 297}
    lines = log(tmp_path / "run")
    assert [line["epoch"] for line in lines] == [1, 2]
    assert [line["weight"] for line in lines] == [pytest.approx(1.5), 2.0]  # the last step of the ramp, and after it
    assert all(line["lip"] > 0 and len(line["ratios"]) == 3 for line in lines)
    assert record["figures"]["last"]["valid"] == lines[-1]["valid"]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(name))  # what the caller's generator holds plays no part
        torch.rand(7)
        small_run(tmp_path / name, SMALL.but(seed=seed))
    assert log(tmp_path / "a") == log(tmp_path / "b") != log(tmp_path / "c")


def test_seeds_are_paired_and_no_retention_is_bit_equal_to_none_at_all(tmp_path: Path) -> None:
    """Same start and order with and without; at lambda 0 the form changes nothing."""
    one, other = build_network(SMALL.but(weight=4.0)), build_network(SMALL)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))
    small_run(tmp_path / "a", SMALL)
    small_run(tmp_path / "b", SMALL.but(form="paper"))
    mine, theirs = arrays(tmp_path / "a"), arrays(tmp_path / "b")
    assert all(np.array_equal(mine[n], theirs[n]) for n in mine)


def test_the_log_holds_the_means_over_all_images(tmp_path: Path) -> None:
    """One epoch at learning rate 0: the network stays as it was, and a plain pass in training mode agrees."""
    spec = SMALL.but(epochs=1, lr=0.0)
    small_run(tmp_path / "run", spec)
    model = build_network(spec)
    split, _ = read_digits().divided(297)
    batches = Batches(split, DATASETS["digits"], CPU)
    loss = correct = 0.0
    for batch in batches.epoch(0, 0, 300, "none", 0, 4):
        logits = model(batch.images)
        loss += F.cross_entropy(logits, batch.labels, reduction="sum").item()
        correct += (logits.argmax(1) == batch.labels).sum().item()
    line = log(tmp_path / "run")[0]
    assert line["loss"] == pytest.approx(loss / 1000, rel=1e-6)
    assert line["train"] == pytest.approx(100 * correct / 1000)


def test_full_precision_trains_and_its_ratios_are_not_invented(tmp_path: Path) -> None:
    small_run(tmp_path / "weights", SMALL.but(model="resnet20-relu", bits="1/32", epochs=1))
    assert log(tmp_path / "weights")[0]["ratios"] is None
    small_run(tmp_path / "real", SMALL.but(method="real"))
    assert log(tmp_path / "real")[-1]["valid"] > 50
    assert log(tmp_path / "real")[0]["ratios"] is None


def test_decay_goes_where_the_spec_says() -> None:
    def decayed(**changes: str) -> set[str]:
        parts = build(SMALL.but(weight_decay=0.5, **changes), CPU)
        groups = {g["weight_decay"]: g["params"] for g in parts.optimizer.param_groups}
        assert sum(len(g["params"]) for g in parts.optimizer.param_groups) == len(parts.names)
        return {parts.names[p].removeprefix("model/") for p in groups[0.5]}

    model = build_network(SMALL)
    every = {n for n, _ in model.named_parameters()}
    latent = {f"{n}.weight" for n, _ in binary_layers(model)}
    layers = {f"{n}.weight" for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert decayed(decay="all") == every
    assert decayed(decay="real") == every - latent
    assert decayed(decay="matrices") == layers
    assert latent < layers < every


def test_batch_norms_start_where_the_spec_says() -> None:
    norms = [m for m in build_network(SMALL.but(norm_start=1e-8)).modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms
    assert all((n.weight == 1e-8).all() for n in norms)


def test_a_step_with_learned_factors_moves_them(tmp_path: Path) -> None:
    """The official form has a factor a map; it belongs to the optimiser and to the checkpoint."""
    small_run(tmp_path / "teacher", SMALL.but(method="real", epochs=1))
    spec = SMALL.but(form="official", weight=1e4, epochs=1, teacher=str(tmp_path / "teacher"))
    small_run(tmp_path / "run", spec)
    factors = arrays(tmp_path / "run")["retention/factors"]
    assert not np.allclose(factors, 1)
    assert "optimizer/retention/factors/momentum_buffer" in arrays(tmp_path / "run")


def test_distillation_is_the_divergence_from_the_teacher(tmp_path: Path) -> None:
    small_run(tmp_path / "teacher", SMALL.but(method="real", epochs=1))
    spec = SMALL.but(distill=0.75, temperature=2.0, teacher=str(tmp_path / "teacher"))
    parts = build(spec, CPU)
    assert parts.teacher is not None
    assert not any(m.training for m in parts.teacher.modules())
    batches = Batches(read_digits().train, DATASETS["digits"], CPU)
    batch = next(batches.plain(50))
    logits = torch.randn(50, 10)
    with torch.no_grad():
        wanted = (parts.teacher(batch.images) / 2).softmax(1)
    apart = (wanted * (wanted.log() - (logits / 2).log_softmax(1))).sum(1).mean()
    expected = 0.25 * F.cross_entropy(logits, batch.labels) + 0.75 * 4 * apart
    assert task_loss(spec, parts, batch.images, batch.labels, logits).item() == pytest.approx(expected.item(), rel=1e-5)
    before = {n: p.clone() for n, p in parts.teacher.state_dict().items()}
    EagerStep(spec, parts, batches).update(batch, 0.1, 0.0)
    assert all(torch.equal(before[n], p) for n, p in parts.teacher.state_dict().items())


@pytest.mark.parametrize("largest", [1e-3, 1e3])
def test_gradients_are_clipped_as_torch_clips_them(largest: float) -> None:
    batch = Batch(torch.rand(8, 1, 8, 8), torch.arange(8), torch.arange(8))
    batches = Batches(read_digits().train, DATASETS["digits"], CPU)
    plain, clipped = (build(SMALL, CPU) for _ in range(2))
    EagerStep(SMALL, plain, batches).update(batch, 0.0, 0.0)
    EagerStep(SMALL.but(max_gradient_norm=largest), clipped, batches).update(batch, 0.0, 0.0)
    torch.nn.utils.clip_grad_norm_(plain.names, largest)
    norm = torch.nn.utils.get_total_norm([p.grad for p in clipped.names if p.grad is not None])
    assert norm.item() == pytest.approx(1e-3, rel=1e-4) if largest < 1 else norm > 1e-2
    for ours, theirs in zip(clipped.names, plain.names, strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)


def test_a_step_sets_the_learning_rate_and_projects() -> None:
    parts = build(SMALL.but(method="xnor"), CPU)
    batch = Batch(torch.rand(8, 1, 8, 8), torch.arange(8), torch.arange(8))
    before = parts.model.stem[0].weight.detach().clone()
    step = EagerStep(SMALL, parts, Batches(read_digits().train, DATASETS["digits"], CPU))
    step.update(batch, 0.0, 0.0)
    assert torch.equal(parts.model.stem[0].weight, before)
    step.update(batch, 100.0, 0.0)
    assert not torch.equal(parts.model.stem[0].weight, before)
    assert all(layer.weight.abs().max() <= 1 for _, layer in binary_layers(parts.model))  # xnor clamps


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"teacher": "nowhere"}, r"a teacher is a finished run, and /.*nowhere has no record\.json"),
        ({"form": "official", "weight": 1.0}, "reference 'teacher' needs a teacher"),
        ({"form": "papr"}, "no preset of the retention loss is called 'papr'"),
        ({"form_options": ("weight=2",)}, "lambda is a setting of its own"),
        (
            {"form_options": ("matrx=batch",)},
            r"no setting of the retention loss is called 'matrx'.*did you mean 'matrix'",
        ),
        ({"method_options": ("t_mim=1",)}, "no option of irnet is called 't_mim'"),
        ({"method": "real", "weight": 1.0}, "a full-precision network has nothing to retain"),
        ({"method": "real", "bits": "1/1"}, "full precision has neither bits nor method_options"),
        ({"method_options": ("bits=1/1",)}, "no option of irnet is called 'bits'"),
        ({"form_options": ("self=1",)}, "no setting of the retention loss is called 'self'"),
        ({"model": "resnet21"}, "no network is called 'resnet21'"),
        ({"method": "irnett"}, "no binarisation method is called 'irnett'"),
        ({"bits": "2/2"}, "irnet has no bit width '2/2'"),
        ({"data": "cifar11"}, "no data set is called 'cifar11'"),
        ({"data": "cifar10"}, "CIFAR-10 is not in"),
        ({"batch": 999}, "batches of 999 leave one image of 1,000"),
        ({"batch": 2000, "drop_last": True}, "a batch of 2000 does not fit the 1,000 training images"),
    ],
)
def test_what_a_spec_gets_wrong_is_refused_before_anything_is_written(
    changes: dict, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence):
        small_run(tmp_path / "run", SMALL.but(**changes), replace(OFTEN, data_folder=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_teacher_must_be_used_and_know_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_run(tmp_path / "teacher", SMALL.but(epochs=1))
    taught = SMALL.but(teacher=str(tmp_path / "teacher"))
    with pytest.raises(InputError, match="a teacher is given and nothing uses it"):
        small_run(tmp_path / "run", taught)
    monkeypatch.setitem(DATASETS, "other", replace(DATASETS["digits"], name="other"))
    with pytest.raises(InputError, match=r"the teacher in .* learned digits, and this run is to learn other"):
        small_run(tmp_path / "run", taught.but(data="other", distill=0.5))


def test_a_run_goes_on_only_with_the_same_teacher(tmp_path: Path) -> None:
    small_run(tmp_path / "teacher", SMALL.but(epochs=1))
    spec = SMALL.but(teacher=str(tmp_path / "teacher"), distill=0.5)
    small_run(tmp_path / "run", spec)
    (tmp_path / "run" / "record.json").unlink()
    for path in (tmp_path / "teacher").rglob("*"):
        path.unlink() if path.is_file() else None
    (tmp_path / "teacher" / "checkpoints").rmdir()
    small_run(tmp_path / "teacher", SMALL.but(epochs=1, seed=1))
    with pytest.raises(InputError, match="was made with another teacher than the one now in"):
        small_run(tmp_path / "run", spec, resume=True)


def test_nothing_of_a_run_stays_behind_in_torch(tmp_path: Path) -> None:
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
    small_run(tmp_path / "run", SMALL.but(epochs=1))
    assert state() == before


def test_the_quantisation_loss_alone_trains_and_logs_no_retention(tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(form_options=("quantization=1e-6",), epochs=1))
    assert log(tmp_path / "run")[0]["lip"] is None
    small_run(tmp_path / "none", SMALL.but(epochs=1))
    assert log(tmp_path / "run")[0]["loss"] > log(tmp_path / "none")[0]["loss"]


def test_methods_hear_how_far_training_is(tmp_path: Path) -> None:
    small_run(tmp_path / "run")
    t, k = temperature(1 / 2, 1e-3, 1e1)  # the second of two epochs
    kept = arrays(tmp_path / "run")
    assert kept["model/layer1.0.conv1.weight_binarizer.annealing.t"] == pytest.approx(t)
    assert kept["model/layer1.0.conv1.input_binarizer.annealing.k"] == pytest.approx(k)


def test_the_share_of_retention_in_the_gradient_is_that_of_two_backward_passes(tmp_path: Path) -> None:
    spec = SMALL.but(weight=3.0, lr=0.0, epochs=1)
    small_run(tmp_path / "run", spec)
    parts = build(spec, CPU)
    split, _ = read_digits().divided(297)
    batch = next(Batches(split, DATASETS["digits"], CPU).plain(300))

    def length(with_task: bool, with_retention: bool) -> float:
        parts.model.zero_grad()
        loss = F.cross_entropy(parts.model(batch.images), batch.labels)
        kept = parts.retention.loss()
        (loss * with_task + kept * with_retention).backward()
        return torch.cat([p.grad.flatten() for p in parts.model.parameters()]).norm().item()

    expected = length(False, True) / length(True, False)
    assert log(tmp_path / "run")[0]["share"] == pytest.approx(expected, rel=1e-4)
    small_run(tmp_path / "none", SMALL.but(epochs=1))
    assert log(tmp_path / "none")[0]["share"] is None


def test_a_share_sets_lambda(tmp_path: Path) -> None:
    """At learning rate 0 nothing moves, so what was asked for is exactly what is measured at the end of the epoch."""
    small_run(tmp_path / "run", SMALL.but(share=0.2, lr=0.0, epochs=1, weight_decay=0.0))
    line = log(tmp_path / "run")[0]
    assert line["share"] == pytest.approx(0.2, rel=1e-4)
    assert line["weight"] > 0
    assert line["lip"] > 0
    with pytest.raises(InputError, match="say weight, a fixed lambda, or share"):
        SMALL.but(share=0.2, weight=1.0)


def test_a_share_of_rounding_sets_no_lambda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SMALL.but(share=0.2, lr=0.0, epochs=1, weight_decay=0.0)
    for share, wanted in ((5e-7, 0.0), (0.0, 0.0), (None, 0.0), (2e-6, 1e5)):
        monkeypatch.setattr(loop, "look", lambda *args, share=share: Look([1.0], share))
        path = small_run(tmp_path / str(share), spec, replace(OFTEN, save_seconds=1000.0))
        assert log(path)[0]["weight"] == pytest.approx(wanted)


def test_a_run_is_looked_at_forty_times_often_early_and_at_its_end() -> None:
    assert all(looked_at(Spec(epochs=15), epoch) for epoch in range(15))
    seen = [epoch for epoch in range(400) if looked_at(Spec(epochs=400), epoch)]
    assert seen == [0, 1, 2, 4, 8, *range(10, 400, 10), 399]


def test_only_the_last_blocks_are_retained_if_the_form_says_so(tmp_path: Path) -> None:
    small_run(tmp_path / "run", SMALL.but(weight=1.0, form_options=("last=2",), epochs=1))
    assert len(log(tmp_path / "run")[0]["ratios"]) == 2


def test_another_seed_starts_from_other_weights_and_the_same_seed_from_the_same() -> None:
    one, same, other = (build_network(SMALL.but(seed=seed)).stem[0].weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_batch_counts_as_often_as_it_has_images() -> None:
    spec = SMALL.but(weight=3.0)
    parts = build(spec, CPU)
    found = objective(spec, parts, torch.randn(6, 1, 8, 8), torch.arange(6), 3.0)
    assert parts.retention.lip > 0
    loss, lip, correct, seen = found.sums.tolist()
    assert (loss, lip) == pytest.approx((6 * found.loss.item(), 6 * parts.retention.lip.item()), rel=1e-6)
    assert 0 <= correct <= seen == 6


def test_labels_are_smoothed_as_the_spec_says() -> None:
    spec = SMALL.but(label_smoothing=0.2)
    parts = build(spec, CPU)
    logits, labels = torch.randn(6, 10), torch.arange(6)
    wanted = torch.full((6, 10), 0.02)
    wanted[torch.arange(6), labels] += 0.8
    expected = -(wanted * logits.log_softmax(1)).sum(1).mean()
    found = task_loss(spec, parts, torch.zeros(6, 1, 8, 8), labels, logits)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_computed_in_the_precision_of_the_spec(dtype: torch.dtype) -> None:
    precision = str(dtype).removeprefix("torch.")
    parts = build(SMALL.but(precision=precision), CPU)
    seen: list[torch.dtype] = []
    parts.model.stem[0].register_forward_hook(lambda module, given, output: seen.append(output.dtype))
    objective(SMALL.but(precision=precision), parts, torch.rand(4, 1, 8, 8), torch.arange(4), 0.0)
    assert seen == [dtype]


def test_small_gradients_survive_float16() -> None:
    p = torch.ones(3, requires_grad=True)
    [gradient] = go_back(SMALL.but(precision="float16"), (p.half().float() * 1e-8).sum(), [p])
    assert gradient is p.grad
    assert gradient.tolist() == pytest.approx([1e-8] * 3, rel=1e-2)
