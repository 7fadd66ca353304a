from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from lcrbnn.train.schedule import FALLS, learning_rate, retention_weight
from lcrbnn.train.seeds import derive, generator
from lcrbnn.train.spec import SCHEDULES, Spec

EPOCHS, STEPS = 20, 8


def spec_of(**changes: object) -> Spec:
    milestones = [10, 15.5] if changes.get("schedule") == "step" else []
    return Spec().but(**{"epochs": EPOCHS, "lr": 0.3, "milestones": milestones, "gamma": 0.2, **changes})


def rates(spec: Spec) -> list[float]:
    """The learning rate of every step."""
    return [learning_rate(spec, epoch, step, STEPS) for epoch in range(spec.epochs) for step in range(STEPS)]


# what is left of the learning rate at a place in epochs, where nothing warms up
SHARES: dict[str, Callable[[float], float]] = {
    "cosine": lambda at: math.cos(math.pi * at / EPOCHS / 2) ** 2,
    "linear": lambda at: (EPOCHS - at) / EPOCHS,
    "linear-ahead": lambda at: max(0.0, (EPOCHS - 1 - at) / EPOCHS),
    "step": lambda at: 1.0 if at < 10 else 0.2 if at < 15.5 else 0.04,
    "constant": lambda at: 1.0,
}


def test_every_schedule_of_a_spec_is_there_and_tried() -> None:
    assert set(FALLS) == set(SCHEDULES) == set(SHARES)


@pytest.mark.parametrize("schedule", SHARES)
def test_by_epoch_the_learning_rate_is_that_of_its_formula_and_constant_inside(schedule: str) -> None:
    expected = [0.3 * SHARES[schedule](epoch) for epoch in range(EPOCHS) for _ in range(STEPS)]
    assert rates(spec_of(schedule=schedule, pace="epoch")) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("schedule", SHARES)
def test_by_step_the_learning_rate_is_that_of_its_formula(schedule: str) -> None:
    expected = [0.3 * SHARES[schedule](place / STEPS) for place in range(EPOCHS * STEPS)]
    assert rates(spec_of(schedule=schedule, pace="step")) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("schedule", "pace", "last"),
    [
        ("cosine", "epoch", 0.3 * math.sin(math.pi / 40) ** 2),
        ("cosine", "step", 0.3 * math.sin(math.pi / 320) ** 2),
        ("linear", "epoch", 0.3 / 20),
        ("linear", "step", 0.3 / 160),
        ("step", "epoch", 0.3 * 0.04),
        ("constant", "epoch", 0.3),
    ],
)
def test_the_last_step_still_learns(schedule: str, pace: str, last: float) -> None:
    assert rates(spec_of(schedule=schedule, pace=pace))[-1] == pytest.approx(last, rel=1e-9)


# ---------------------------------------------------------------------------------------------------------------
# Warm-up.
def test_the_warm_up_by_epoch_is_that_of_rbnn() -> None:
    seen = rates(spec_of(schedule="cosine", pace="epoch", warmup=5, epochs=1000))[::STEPS]
    # its code: lr (e + 1) / 5 for five epochs; CosineAnnealingLR of E - 4 epochs, first stepped after the fifth
    warm = [0.3 * (epoch + 1) / 5 for epoch in range(5)]
    cosine = [0.3 * (1 + math.cos(math.pi * (epoch - 4) / 996)) / 2 for epoch in range(5, 1000)]
    assert seen == pytest.approx(warm + cosine, rel=1e-9)


def test_the_fall_after_a_warm_up_by_epoch_is_that_of_the_scheduler_of_torch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS - 4)
    expected = []
    for _ in range(4, EPOCHS):  # from the last epoch of the warm-up
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    seen = rates(spec_of(schedule="cosine", pace="epoch", warmup=5))[4 * STEPS :: STEPS]
    assert seen == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("pace", ["epoch", "step"])
@pytest.mark.parametrize("schedule", [s for s in SHARES if s != "linear-ahead"])  # which has fallen when it begins
@pytest.mark.parametrize("warmup", [0.5, 1, 2.5, 5, 20])
def test_the_learning_rate_rises_to_the_full_one_and_falls_from_there(warmup: float, schedule: str, pace: str) -> None:
    seen = rates(spec_of(schedule=schedule, pace=pace, warmup=warmup))
    top = seen.index(max(seen))
    assert max(seen) == pytest.approx(0.3, rel=1e-12)
    assert seen[: top + 1] == sorted(seen[: top + 1])
    assert seen[top:] == sorted(seen[top:], reverse=True)
    assert min(seen) > 0


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 2, 2.5])
def test_by_step_the_learning_rate_makes_no_jump(warmup: float, schedule: str) -> None:
    spec = spec_of(schedule=schedule, pace="step", warmup=warmup)
    seen = rates(spec)
    count = round(warmup * STEPS)
    assert seen[:count] == pytest.approx([0.3 * (place + 1) / count for place in range(count)], rel=1e-12)
    assert seen[count] == pytest.approx(0.3, rel=1e-12)  # the fall begins with the full one
    steepest = {"cosine": math.pi / 2, "linear": 1.0}[schedule] * 0.3 / (EPOCHS * STEPS - count)
    falls = [before - after for before, after in zip(seen[count:], seen[count + 1 :], strict=False)]
    assert min(falls) > 0
    assert max(falls) <= steepest * (1 + 1e-9)
    assert seen[-1] <= steepest * (1 + 1e-9)  # as though 0 came next


def test_milestones_are_counted_from_the_start_of_training() -> None:
    seen = rates(spec_of(schedule="step", pace="epoch", warmup=5))[::STEPS]
    assert seen[4:] == pytest.approx([0.3] * 6 + [0.06] * 6 + [0.012] * 4, rel=1e-12)


# ---------------------------------------------------------------------------------------------------------------
# Lambda.
def weights(spec: Spec) -> list[float]:
    return [
        retention_weight(spec, spec.weight, epoch, step, STEPS) for epoch in range(spec.epochs) for step in range(STEPS)
    ]


@pytest.mark.parametrize("pace", ["epoch", "step"])
@pytest.mark.parametrize("ramp", [0.5, 1, 2.5, 20])
def test_lambda_rises_in_a_straight_line_and_stays(ramp: float, pace: str) -> None:
    count = round(ramp * STEPS)
    expected = [2.0 * place / count for place in range(count)] + [2.0] * (EPOCHS * STEPS - count)
    assert weights(spec_of(weight=2.0, ramp=ramp, pace=pace)) == pytest.approx(expected, rel=1e-12)


def test_lambda_without_a_ramp_is_the_weight_from_the_first_step() -> None:
    assert set(weights(spec_of(weight=2.0, ramp=0))) == {2.0}


# ---------------------------------------------------------------------------------------------------------------
# Seeds.
def test_different_places_have_different_seeds() -> None:
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
    assert len({derive(seed, *place) for seed, place in places}) == len(places)
    many = {derive(seed, use, at) for seed in range(20) for use in ("order", "augment") for at in range(50)}
    assert len(many) == 2000


def test_derived_seeds_never_change() -> None:
    assert derive(0, "order", 3) == 5172884068272721061  # or no finished run could be repeated


def test_derived_seeds_are_whole_numbers_of_63_bits() -> None:
    seeds = [derive(0, "order", at) for at in range(1000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


def test_a_generator_gives_the_same_draws_for_the_same_place() -> None:
    first = torch.rand(10, generator=generator(4, "order", 1))
    torch.manual_seed(99)
    assert torch.equal(torch.rand(10, generator=generator(4, "order", 1)), first)
    assert not torch.equal(torch.rand(10, generator=generator(4, "order", 2)), first)


def test_a_generator_is_one_of_its_own_on_the_cpu() -> None:
    before = torch.get_rng_state()
    source = generator(4, "order", 1)
    torch.rand(10, generator=source)
    assert source.device.type == "cpu"
    assert source.initial_seed() == derive(4, "order", 1)
    assert torch.equal(torch.get_rng_state(), before)
