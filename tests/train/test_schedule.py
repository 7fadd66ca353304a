from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from lcrbnn.device import derive_seed, make_generator
from lcrbnn.train.schedule import LR_SCHEDULES, compute_lcr_weight, compute_learning_rate
from lcrbnn.train.setup.spec import LR_SCHEDULE_CHOICES, TrainSpec

EPOCHS, STEPS = 20, 8


def make_spec(**changes: object) -> TrainSpec:
    milestones = [10, 15.5] if changes.get("lr_schedule") == "multistep" else []
    return TrainSpec().replace(**{"epochs": EPOCHS, "lr": 0.3, "lr_milestones": milestones, "lr_gamma": 0.2, **changes})


def compute_learning_rates(spec: TrainSpec) -> list[float]:
    """Return the learning rate of every step."""
    return [compute_learning_rate(spec, epoch, step, STEPS) for epoch in range(spec.epochs) for step in range(STEPS)]


# the factor of the learning rate at a time in epochs, without warm-up
SHARES: dict[str, Callable[[float], float]] = {
    "cosine": lambda at: math.cos(math.pi * at / EPOCHS / 2) ** 2,
    "linear": lambda at: (EPOCHS - at) / EPOCHS,
    "linear-last-epoch-zero": lambda at: max(0.0, (EPOCHS - 1 - at) / EPOCHS),
    "multistep": lambda at: 1.0 if at < 10 else 0.2 if at < 15.5 else 0.04,
    "constant": lambda at: 1.0,
}


def test_every_schedule_of_the_spec_is_implemented_and_tested() -> None:
    assert set(LR_SCHEDULE_CHOICES) == set(LR_SCHEDULES) == set(SHARES)


@pytest.mark.parametrize("schedule", SHARES)
def test_per_epoch_the_learning_rate_follows_its_formula_and_is_constant_within_an_epoch(schedule: str) -> None:
    expected = [0.3 * SHARES[schedule](epoch) for epoch in range(EPOCHS) for _ in range(STEPS)]
    assert compute_learning_rates(make_spec(lr_schedule=schedule, lr_update_interval="epoch")) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("schedule", SHARES)
def test_per_step_the_learning_rate_follows_its_formula(schedule: str) -> None:
    expected = [0.3 * SHARES[schedule](place / STEPS) for place in range(EPOCHS * STEPS)]
    assert compute_learning_rates(make_spec(lr_schedule=schedule, lr_update_interval="step")) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(
    ("schedule", "pace", "last"),
    [
        ("cosine", "epoch", 0.3 * math.sin(math.pi / 40) ** 2),
        ("cosine", "step", 0.3 * math.sin(math.pi / 320) ** 2),
        ("linear", "epoch", 0.3 / 20),
        ("linear", "step", 0.3 / 160),
        ("multistep", "epoch", 0.3 * 0.04),
        ("constant", "epoch", 0.3),
    ],
)
def test_the_last_step_has_a_positive_learning_rate(schedule: str, pace: str, last: float) -> None:
    assert compute_learning_rates(make_spec(lr_schedule=schedule, lr_update_interval=pace))[-1] == pytest.approx(
        last, rel=1e-9
    )


# ---------------------------------------------------------------------------------------------------------------
# Warm-up.
def test_the_warm_up_per_epoch_equals_that_of_rbnn() -> None:
    actual = compute_learning_rates(
        make_spec(lr_schedule="cosine", lr_update_interval="epoch", lr_warmup_epochs=5, epochs=1000)
    )[::STEPS]
    # RBNN's code: lr (e + 1) / 5 for five epochs, then CosineAnnealingLR over E - 4 epochs, first stepped after epoch 5
    warm = [0.3 * (epoch + 1) / 5 for epoch in range(5)]
    cosine = [0.3 * (1 + math.cos(math.pi * (epoch - 4) / 996)) / 2 for epoch in range(5, 1000)]
    assert actual == pytest.approx(warm + cosine, rel=1e-9)


def test_the_decay_after_a_warm_up_per_epoch_equals_that_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS - 4)
    expected = []
    for _ in range(4, EPOCHS):  # from the last epoch of the warm-up
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    actual = compute_learning_rates(make_spec(lr_schedule="cosine", lr_update_interval="epoch", lr_warmup_epochs=5))[
        4 * STEPS :: STEPS
    ]
    assert actual == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("pace", ["epoch", "step"])
@pytest.mark.parametrize(
    "schedule", [s for s in SHARES if s != "linear-last-epoch-zero"]
)  # a step that is lower from its first epoch on
@pytest.mark.parametrize("warmup", [0.5, 1, 2.5, 5, 20])
def test_the_learning_rate_rises_to_its_maximum_and_then_decays(warmup: float, schedule: str, pace: str) -> None:
    actual = compute_learning_rates(make_spec(lr_schedule=schedule, lr_update_interval=pace, lr_warmup_epochs=warmup))
    top = actual.index(max(actual))
    assert max(actual) == pytest.approx(0.3, rel=1e-12)
    assert actual[: top + 1] == sorted(actual[: top + 1])
    assert actual[top:] == sorted(actual[top:], reverse=True)
    assert min(actual) > 0


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 2, 2.5])
def test_per_step_the_learning_rate_is_continuous(warmup: float, schedule: str) -> None:
    spec = make_spec(lr_schedule=schedule, lr_update_interval="step", lr_warmup_epochs=warmup)
    actual = compute_learning_rates(spec)
    count = round(warmup * STEPS)
    assert actual[:count] == pytest.approx([0.3 * (place + 1) / count for place in range(count)], rel=1e-12)
    assert actual[count] == pytest.approx(0.3, rel=1e-12)  # the decay begins with the full rate
    steepest = {"cosine": math.pi / 2, "linear": 1.0}[schedule] * 0.3 / (EPOCHS * STEPS - count)
    falls = [before - after for before, after in zip(actual[count:], actual[count + 1 :], strict=False)]
    assert min(falls) > 0
    assert max(falls) <= steepest * (1 + 1e-9)
    assert actual[-1] <= steepest * (1 + 1e-9)  # as if the next rate were 0


def test_milestones_are_counted_from_the_start_of_training() -> None:
    actual = compute_learning_rates(make_spec(lr_schedule="multistep", lr_update_interval="epoch", lr_warmup_epochs=5))[
        ::STEPS
    ]
    assert actual[4:] == pytest.approx([0.3] * 6 + [0.06] * 6 + [0.012] * 4, rel=1e-12)


# ---------------------------------------------------------------------------------------------------------------
# Lambda.
def compute_lcr_weights(spec: TrainSpec) -> list[float]:
    return [
        compute_lcr_weight(spec, spec.lcr_weight, epoch, step, STEPS)
        for epoch in range(spec.epochs)
        for step in range(STEPS)
    ]


@pytest.mark.parametrize("pace", ["epoch", "step"])
@pytest.mark.parametrize("ramp", [0.5, 1, 2.5, 20])
def test_lambda_rises_linearly_and_then_stays_constant(ramp: float, pace: str) -> None:
    count = round(ramp * STEPS)
    expected = [2.0 * place / count for place in range(count)] + [2.0] * (EPOCHS * STEPS - count)
    assert compute_lcr_weights(
        make_spec(lcr_weight=2.0, lcr_warmup_epochs=ramp, lr_update_interval=pace)
    ) == pytest.approx(expected, rel=1e-12)


def test_lambda_without_warm_up_is_constant() -> None:
    assert set(compute_lcr_weights(make_spec(lcr_weight=2.0, lcr_warmup_epochs=0))) == {2.0}


# ---------------------------------------------------------------------------------------------------------------
# Seeds.
def test_different_purposes_have_different_seeds() -> None:
    places: list[tuple[int, tuple[str | int, ...]]] = [
        (1, ("a", 2)),
        (12, ("a",)),
        (1, ("a2",)),
        (1, ("a",)),
        (1, ("a", 2, 0)),
        (1, (2, "a")),
        (2, ("a", 1)),
        (1, ("b", 2)),
        (1, ("a", 12)),
        (11, ("a", 2)),
        (1, ()),
        (1, ("",)),
    ]
    assert len({derive_seed(seed, *place) for seed, place in places}) == len(places)
    many = {derive_seed(seed, use, at) for seed in range(20) for use in ("order", "augment") for at in range(50)}
    assert len(many) == 2000


def test_derived_seeds_never_change() -> None:
    assert derive_seed(0, "order", 3) == 5172884068272721061  # otherwise no finished run could be reproduced


def test_derived_seeds_are_whole_numbers_of_63_bits() -> None:
    seeds = [derive_seed(0, "order", at) for at in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_a_generator_gives_the_same_draws_for_the_same_purpose() -> None:
    first = torch.rand(10, generator=make_generator(4, "order", 1))
    torch.manual_seed(99)
    assert torch.equal(torch.rand(10, generator=make_generator(4, "order", 1)), first)
    assert not torch.equal(torch.rand(10, generator=make_generator(4, "order", 2)), first)


def test_generators_are_on_the_cpu_and_independent_of_the_global_one() -> None:
    before = torch.get_rng_state()
    source = make_generator(4, "order", 1)
    torch.rand(10, generator=source)
    assert source.device.type == "cpu"
    assert source.initial_seed() == derive_seed(4, "order", 1)
    assert torch.equal(torch.get_rng_state(), before)
