from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn.attack.apgd import _look, _start, checkpoints
from lcrbnn.attack.ball import Ball
from lcrbnn.attack.losses import cross_entropy, dlr, margin, tempered
from lcrbnn.attack.run import figures
from lcrbnn.attack.square import square_side
from lcrbnn.attack.suite import attack_all, judge
from lcrbnn.attack.table import ATTACKS, Attack
from lcrbnn.attack.target import target_of
from lcrbnn.data import DATASETS
from lcrbnn.errors import InputError

ROW = replace(DATASETS["digits"], mean=(0.3,), std=(0.5,))
SMALL = {"steps": 12, "restarts": 2, "queries": 40}
every_attack = pytest.mark.parametrize("name", ATTACKS)


def small(name: str) -> Attack:
    row = ATTACKS[name]
    return replace(row, settings={k: SMALL[k] for k in row.settings})


def binary_net() -> nn.Module:
    torch.manual_seed(0)
    net = lcrbnn.network("resnet8-double", "irnet", in_channels=1, image=8)
    lcrbnn.advance(net, 1.0)
    for _ in range(5):
        net(torch.randn(32, 1, 8, 8))
    return net


def linear_net(classes: int = 3, size: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    with torch.no_grad():
        net[1].weight.mul_(size)
    return net


def shown(net: nn.Module, n: int = 40) -> tuple[Tensor, Tensor]:
    """Images in the middle of the range, labelled by the network itself: all are right."""
    images = 0.4 + 0.2 * torch.rand(n, 1, 8, 8).to(next(net.parameters()).dtype)
    with target_of(net, ROW) as target:
        return images, target.ask(images).argmax(1)


def ball_of(images: Tensor, labels: Tensor, eps: float) -> Ball:
    return Ball(images, labels, tuple(range(len(images))), eps, 0)


@every_attack
@pytest.mark.parametrize("eps", [0.05, 0.7])
def test_an_attack_stays_in_the_ball_and_in_the_range_of_images(name: str, eps: float) -> None:
    net = binary_net()
    images = torch.rand(12, 1, 8, 8).round(decimals=1)  # some pixels on the edge of the range
    labels = torch.randint(0, 10, (12,))
    with target_of(net, ROW) as target:
        found = small(name)(target, ball_of(images, labels, eps))
    assert found.shape == images.shape
    assert (found - images).abs().max() <= eps + 1e-6
    assert (found >= (images - eps).clamp_min(0)).all()
    assert (found <= (images + eps).clamp_max(1)).all()


@every_attack
def test_an_attack_leaves_the_network_as_it_was(name: str) -> None:
    net = binary_net()
    net.layer2.eval()
    net.stem.requires_grad_(False)
    net.head.zero_grad()
    net(torch.randn(4, 1, 8, 8)).sum().backward()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    modes = [m.training for m in net.modules()]
    asks = [p.requires_grad for p in net.parameters()]
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    images, labels = shown(net, 6)
    attack_all_with(net, images, labels, [name], 0.3)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert [m.training for m in net.modules()] == modes
    assert [p.requires_grad for p in net.parameters()] == asks
    for p, g in zip(net.parameters(), gradients, strict=True):
        assert (p.grad is None) if g is None else torch.equal(p.grad, g)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_the_network_is_as_it_was_even_after_a_failure() -> None:
    net = binary_net()

    def fails(name: str) -> None:
        raise KeyboardInterrupt

    images, labels = shown(net, 4)
    with pytest.raises(KeyboardInterrupt), target_of(net, ROW) as target:
        attack_all(target, images, labels, {"fgsm": small("fgsm")}, 0.1, between=fails)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())


class Counts(nn.Module):
    """Changes a buffer with every image it sees, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear_net()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.inner(x)


def test_buffers_that_a_pass_changes_are_put_back() -> None:
    net = Counts()
    images, labels = shown(net, 4)
    attack_all_with(net, images, labels, ["fgsm"], 0.1)
    assert net.seen == 0
    net(images)
    assert net.seen == 4


def attack_all_with(net: nn.Module, images: Tensor, labels: Tensor, names: list[str], eps: float, **more):
    with target_of(net, ROW) as target:
        return attack_all(target, images, labels, {n: small(n) for n in names}, eps, **more)


def exact(net: nn.Module, images: Tensor, labels: Tensor, eps: float) -> list[bool]:
    """Who stays right under the worst change of a linear classifier, class by class."""
    weight = net[1].weight.detach() / 0.5
    with torch.no_grad():
        logits = net((images - 0.3) / 0.5)
    gap = logits.gather(1, labels[:, None]) - logits
    reach = eps * (weight[labels][:, None] - weight[None]).abs().sum(2)
    safe = (gap > reach).scatter(1, labels[:, None], True)
    return safe.all(1).tolist()


@pytest.mark.parametrize(("name", "classes"), [("pgd", 2), ("apgd-ce", 2), ("apgd-dlr", 3)])
def test_a_linear_classifier_falls_exactly_where_it_must(name: str, classes: int) -> None:
    net = linear_net(classes)
    images, labels = shown(net, 60)
    for eps in (0.002, 0.005, 0.01, 0.02):
        found = attack_all_with(net, images, labels, [name], eps).survived[name]
        true = exact(net, images, labels, eps)
        assert all(f or not t for f, t in zip(found, true, strict=True)), "an attack cannot beat the exact answer"
        missed = sum(f and not t for f, t in zip(found, true, strict=True))
        assert missed <= (0 if classes == 2 else 1)  # of 60: the weaker of two other classes may be pursued
    assert 0 < sum(exact(net, images, labels, 0.005)) < 60


def test_one_step_is_enough_for_two_classes() -> None:
    net = linear_net(2)
    images, labels = shown(net, 60)
    for eps in (0.002, 0.01):
        assert attack_all_with(net, images, labels, ["fgsm"], eps).survived["fgsm"] == exact(net, images, labels, eps)


def test_squares_break_a_linear_classifier_without_its_gradients() -> None:
    net = linear_net()
    images, labels = shown(net, 40)
    square = replace(ATTACKS["square"], settings={"queries": 1500})
    with target_of(net, ROW) as target:
        left = attack_all(target, images, labels, {"square": square}, 0.03).survived["square"]
    true = exact(net, images, labels, 0.03)
    assert sum(true) <= sum(left) <= sum(true) + 4


class Steps(nn.Module):
    """A linear classifier behind rounding: its gradient is 0 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.round(40 * x) / 40)


def test_a_network_that_hides_its_gradients_is_found_out() -> None:
    net = Steps()
    images, labels = shown(net, 30)
    found = attack_all_with(net, images, labels, ["fgsm", "apgd-ce", "square"], 0.1)
    assert found.accuracy["fgsm"] == 100
    assert found.accuracy["square"] < 50
    assert found.masked
    assert found.black_box_only > 0
    assert found.worst <= found.accuracy["square"]
    honest = attack_all_with(linear_net(), images, labels, ["fgsm", "apgd-ce", "square"], 0.1)
    assert not honest.masked


@every_attack
def test_what_is_found_does_not_depend_on_the_batch_nor_on_the_other_images(name: str) -> None:
    net = binary_net().double()  # rounding must not decide
    images, labels = shown(net, 15)
    whole = ball_of(images, labels, 0.02)
    with target_of(net, ROW) as target:
        found = small(name)(target, whole)
        for rows in (torch.arange(3, 10), torch.tensor([14]), torch.arange(14, -1, -1)):
            assert torch.allclose(small(name)(target, whole.take(rows)), found[rows], rtol=0, atol=1e-12)
    survived = [attack_all_with(net, images, labels, [name], 0.02, batch=batch).survived[name] for batch in (1, 4, 15)]
    assert survived[0] == survived[1] == survived[2]


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "apgd-dlr", "square"])
def test_a_seed_decides_the_draws(name: str) -> None:
    net = binary_net()
    images, labels = shown(net, 4)
    with target_of(net, ROW) as target:
        found = [small(name)(target, replace(ball_of(images, labels, 0.05), seed=seed)) for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_large_logits_hide_the_gradient_from_pgd_and_not_from_a_temperature() -> None:
    net = linear_net(size=3000.0)
    images, labels = shown(net, 30)
    found = attack_all_with(net, images, labels, ["pgd", "apgd-ce", "apgd-dlr"], 0.05).accuracy
    assert found["pgd"] > 50
    assert found["apgd-ce"] == found["apgd-dlr"] == 0


def test_losses_by_hand() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, -4.0], [0.0, 5.0, 1.0, 2.0]])
    labels = torch.tensor([0, 2])
    assert margin(logits, labels).tolist() == [-1, 4]
    assert dlr(logits, labels).tolist() == pytest.approx([-1 / 2, 4 / 4])
    assert dlr(7 * logits + 3, labels).tolist() == pytest.approx(dlr(logits, labels).tolist())
    hot = tempered(torch.tensor([2.0, 4.0]))(logits, labels)
    cold = cross_entropy(logits / torch.tensor([[2.0], [4.0]]), labels)
    assert hot.tolist() == cold.tolist()
    with pytest.raises(InputError, match="needs three classes"):
        dlr(logits[:, :2], labels[:1])


def test_looks_and_sides_are_those_of_the_papers() -> None:
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert [square_side(q, 5000, 32) for q in (1, 5, 6, 25, 26, 101, 501, 4001)] == [29, 29, 20, 20, 14, 10, 7, 2]
    assert square_side(4999, 5000, 8) == 1


def test_a_step_is_halved_where_the_search_stands_still() -> None:
    x = torch.zeros(4, 1, 1, 1)
    state = _start(torch.arange(4), x, torch.zeros(4), x + 1, 0.1)
    state = replace(
        state,
        x=x + 5,
        best=x + 3,
        rises=torch.tensor([8.0, 7.0, 8.0, 8.0]),
        best_loss=torch.tensor([1.0, 1.0, 0.0, 0.0]),
        halved=torch.tensor([False, False, False, True]),
    )
    after = _look(state, 10)  # 7.5 rises are enough
    assert after.halved.tolist() == [False, True, True, False]
    assert after.step.tolist() == pytest.approx([0.2, 0.1, 0.1, 0.2])
    assert after.x.flatten().tolist() == [5, 3, 3, 5]
    assert after.rises.tolist() == [0] * 4
    assert after.looked_loss.tolist() == [1, 1, 0, 0]


def test_the_worst_case_is_image_by_image() -> None:
    right = [True, True, True, False]
    survived = {
        "fgsm": [True, False, True, False],
        "pgd": [False, True, True, False],
        "square": [True, True, False, False],
    }
    found = judge(right, survived, ATTACKS)
    assert found.clean == 75
    assert found.accuracy == {"fgsm": 50, "pgd": 50, "square": 50}
    assert found.worst == 0
    assert found.gradients == 25
    assert found.black_box_only == 1
    assert not found.masked  # it adds an image, and beats none of them
    assert judge(right, {"fgsm": survived["fgsm"]}, ATTACKS).masked is False


def test_a_network_that_is_always_wrong_needs_no_attack() -> None:
    net = binary_net()
    images, labels = shown(net, 5)
    found = attack_all_with(net, images, (labels + 1) % 10, list(ATTACKS), 0.1)
    assert (found.clean, found.worst, found.masked) == (0, 0, False)


def test_a_record_keeps_who_survived_the_first_image_first() -> None:
    entries = [True, False, False, False, True, True]
    assert figures(judge([True] * 6, {"fgsm": entries}, ATTACKS))["survived"] == {"fgsm": "8c"}


def test_an_attack_that_leaves_its_ball_is_not_believed() -> None:
    net = linear_net()
    images, labels = shown(net, 5)
    cheat = replace(ATTACKS["fgsm"], run=lambda target, ball: ball.images + 0.2)
    with pytest.raises(AssertionError, match="left its ball"), target_of(net, ROW) as target:
        attack_all(target, images, labels, {"fgsm": cheat}, 0.1)
