from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn.data.datasets import DATASETS
from lcrbnn.errors import InputError
from lcrbnn.evaluation.attacks.apgd import _adapt_step_size, _initialize_state, checkpoint_steps
from lcrbnn.evaluation.attacks.attack_losses import cross_entropy, dlr_loss, logit_margin, scaled_cross_entropy
from lcrbnn.evaluation.attacks.attack_registry import ATTACKS, Attack
from lcrbnn.evaluation.attacks.attack_suite import compute_robust_accuracy, run_all_attacks
from lcrbnn.evaluation.attacks.run_attacks import build_attack_figures
from lcrbnn.evaluation.attacks.square import square_side
from lcrbnn.evaluation.attacks.threat_model import LinfBall, wrap_model

DATASET = replace(DATASETS["digits"], mean=(0.3,), std=(0.5,))
REDUCED_SETTINGS = {"steps": 12, "restarts": 2, "queries": 40}
parametrize_attacks = pytest.mark.parametrize("name", ATTACKS)


def reduced_attack(name: str) -> Attack:
    attack = ATTACKS[name]
    return replace(attack, settings={k: REDUCED_SETTINGS[k] for k in attack.settings})


def make_binary_net() -> nn.Module:
    torch.manual_seed(0)
    net = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1, image_size=8)
    lcrbnn.set_progress(net, 1.0)
    for _ in range(5):
        net(torch.randn(32, 1, 8, 8))
    return net


def make_linear_net(classes: int = 3, weight_scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
    with torch.no_grad():
        net[1].weight.mul_(weight_scale)
    return net


def make_labeled_images(net: nn.Module, count: int = 40) -> tuple[Tensor, Tensor]:
    """Return images in the middle of the pixel range, labelled by the network itself, so that all are correct."""
    images = 0.4 + 0.2 * torch.rand(count, 1, 8, 8).to(next(net.parameters()).dtype)
    with wrap_model(net, DATASET) as model:
        return images, model.query(images).argmax(1)


def make_ball(images: Tensor, labels: Tensor, eps: float) -> LinfBall:
    return LinfBall(images, labels, tuple(range(len(images))), eps, 0)


@parametrize_attacks
@pytest.mark.parametrize("eps", [0.05, 0.7])
def test_an_attack_stays_in_the_ball_and_in_the_range_of_images(name: str, eps: float) -> None:
    net = make_binary_net()
    images = torch.rand(12, 1, 8, 8).round(decimals=1)  # some pixels are exactly 0 or 1
    labels = torch.randint(0, 10, (12,))
    with wrap_model(net, DATASET) as model:
        adversarial = reduced_attack(name)(model, make_ball(images, labels, eps))
    assert adversarial.shape == images.shape
    assert (adversarial - images).abs().max() <= eps + 1e-6
    assert (adversarial >= (images - eps).clamp_min(0)).all()
    assert (adversarial <= (images + eps).clamp_max(1)).all()


@parametrize_attacks
def test_an_attack_does_not_change_the_network(name: str) -> None:
    net = make_binary_net()
    net.layer2.eval()
    net.stem.requires_grad_(False)
    net.head.zero_grad()
    net(torch.randn(4, 1, 8, 8)).sum().backward()
    state_before = {k: v.clone() for k, v in net.state_dict().items()}
    training_modes = [m.training for m in net.modules()]
    requires_grad = [p.requires_grad for p in net.parameters()]
    gradients = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    images, labels = make_labeled_images(net, 6)
    run_reduced_attacks(net, images, labels, [name], 0.3)
    assert all(torch.equal(v, state_before[k]) for k, v in net.state_dict().items())
    assert [m.training for m in net.modules()] == training_modes
    assert [p.requires_grad for p in net.parameters()] == requires_grad
    for p, g in zip(net.parameters(), gradients, strict=True):
        assert (p.grad is None) if g is None else torch.equal(p.grad, g)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_the_network_is_restored_after_an_exception() -> None:
    net = make_binary_net()

    def interrupt(name: str) -> None:
        raise KeyboardInterrupt

    images, labels = make_labeled_images(net, 4)
    with pytest.raises(KeyboardInterrupt), wrap_model(net, DATASET) as model:
        run_all_attacks(model, images, labels, {"fgsm": reduced_attack("fgsm")}, 0.1, report_progress=interrupt)
    assert net.training
    assert all(p.requires_grad for p in net.parameters())


class ImageCounter(nn.Module):
    """A network that changes a buffer in every forward pass, also in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_linear_net()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.inner(x)


def test_buffers_that_a_forward_pass_changes_are_restored() -> None:
    net = ImageCounter()
    images, labels = make_labeled_images(net, 4)
    run_reduced_attacks(net, images, labels, ["fgsm"], 0.1)
    assert net.seen == 0
    net(images)
    assert net.seen == 4


def run_reduced_attacks(net: nn.Module, images: Tensor, labels: Tensor, attack_names: list[str], eps: float, **options):
    with wrap_model(net, DATASET) as model:
        return run_all_attacks(model, images, labels, {n: reduced_attack(n) for n in attack_names}, eps, **options)


def exact_robustness(net: nn.Module, images: Tensor, labels: Tensor, eps: float) -> list[bool]:
    """Return which images of a linear classifier no attack can misclassify, computed exactly per class."""
    weight = net[1].weight.detach() / 0.5
    with torch.no_grad():
        logits = net((images - 0.3) / 0.5)
    gap = logits.gather(1, labels[:, None]) - logits
    max_gap_change = eps * (weight[labels][:, None] - weight[None]).abs().sum(2)
    is_safe = (gap > max_gap_change).scatter(1, labels[:, None], True)
    return is_safe.all(1).tolist()


@pytest.mark.parametrize(("name", "classes"), [("pgd", 2), ("apgd-ce", 2), ("apgd-dlr", 3)])
def test_gradient_attacks_find_all_vulnerable_images_of_a_linear_classifier(name: str, classes: int) -> None:
    net = make_linear_net(classes)
    images, labels = make_labeled_images(net, 60)
    for eps in (0.002, 0.005, 0.01, 0.02):
        survived = run_reduced_attacks(net, images, labels, [name], eps).survived[name]
        expected = exact_robustness(net, images, labels, eps)
        assert all(f or not t for f, t in zip(survived, expected, strict=True)), (
            "an attack cannot exceed the exact result"
        )
        num_missed = sum(f and not t for f, t in zip(survived, expected, strict=True))
        assert num_missed <= (
            0 if classes == 2 else 1
        )  # with three classes, an attack may pursue the weaker of the two other classes
    assert 0 < sum(exact_robustness(net, images, labels, 0.005)) < 60


def test_fgsm_is_optimal_for_a_linear_classifier_of_two_classes() -> None:
    net = make_linear_net(2)
    images, labels = make_labeled_images(net, 60)
    for eps in (0.002, 0.01):
        assert run_reduced_attacks(net, images, labels, ["fgsm"], eps).survived["fgsm"] == exact_robustness(
            net, images, labels, eps
        )


def test_square_finds_nearly_all_vulnerable_images_of_a_linear_classifier() -> None:
    net = make_linear_net()
    images, labels = make_labeled_images(net, 40)
    square = replace(ATTACKS["square"], settings={"queries": 1500})
    with wrap_model(net, DATASET) as model:
        survived = run_all_attacks(model, images, labels, {"square": square}, 0.03).survived["square"]
    expected = exact_robustness(net, images, labels, 0.03)
    assert sum(expected) <= sum(survived) <= sum(expected) + 4


class RoundedInputs(nn.Module):
    """A linear classifier of rounded inputs, whose gradient is 0 everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = make_linear_net()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.round(40 * x) / 40)


def test_masked_gradients_are_detected() -> None:
    net = RoundedInputs()
    images, labels = make_labeled_images(net, 30)
    accuracy = run_reduced_attacks(net, images, labels, ["fgsm", "apgd-ce", "square"], 0.1)
    assert accuracy.accuracy["fgsm"] == 100
    assert accuracy.accuracy["square"] < 50
    assert accuracy.has_masked_gradients
    assert accuracy.black_box_only > 0
    assert accuracy.worst <= accuracy.accuracy["square"]
    unmasked = run_reduced_attacks(make_linear_net(), images, labels, ["fgsm", "apgd-ce", "square"], 0.1)
    assert not unmasked.has_masked_gradients


@parametrize_attacks
def test_an_attack_does_not_depend_on_the_batch_or_on_other_images(name: str) -> None:
    net = make_binary_net().double()  # float64, so that rounding errors change no result
    images, labels = make_labeled_images(net, 15)
    ball = make_ball(images, labels, 0.02)
    with wrap_model(net, DATASET) as model:
        adversarial = reduced_attack(name)(model, ball)
        for rows in (torch.arange(3, 10), torch.tensor([14]), torch.arange(14, -1, -1)):
            assert torch.allclose(reduced_attack(name)(model, ball.select(rows)), adversarial[rows], rtol=0, atol=1e-12)
    survived = [
        run_reduced_attacks(net, images, labels, [name], 0.02, batch_size=batch).survived[name] for batch in (1, 4, 15)
    ]
    assert survived[0] == survived[1] == survived[2]


@pytest.mark.parametrize("name", ["pgd", "apgd-ce", "apgd-dlr", "square"])
def test_the_seed_determines_random_numbers(name: str) -> None:
    net = make_binary_net()
    images, labels = make_labeled_images(net, 4)
    with wrap_model(net, DATASET) as model:
        results = [
            reduced_attack(name)(model, replace(make_ball(images, labels, 0.05), seed=seed)) for seed in (0, 0, 1)
        ]
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_large_logits_weaken_pgd_but_not_apgd() -> None:
    net = make_linear_net(weight_scale=3000.0)
    images, labels = make_labeled_images(net, 30)
    accuracy = run_reduced_attacks(net, images, labels, ["pgd", "apgd-ce", "apgd-dlr"], 0.05).accuracy
    assert accuracy["pgd"] > 50
    assert accuracy["apgd-ce"] == accuracy["apgd-dlr"] == 0


def test_losses_match_hand_computed_values() -> None:
    logits = torch.tensor([[3.0, 1.0, 2.0, -4.0], [0.0, 5.0, 1.0, 2.0]])
    labels = torch.tensor([0, 2])
    assert logit_margin(logits, labels).tolist() == [-1, 4]
    assert dlr_loss(logits, labels).tolist() == pytest.approx([-1 / 2, 4 / 4])
    assert dlr_loss(7 * logits + 3, labels).tolist() == pytest.approx(dlr_loss(logits, labels).tolist())
    scaled_loss = scaled_cross_entropy(torch.tensor([2.0, 4.0]))(logits, labels)
    expected_loss = cross_entropy(logits / torch.tensor([[2.0], [4.0]]), labels)
    assert scaled_loss.tolist() == expected_loss.tolist()
    with pytest.raises(InputError, match="needs three classes"):
        dlr_loss(logits[:, :2], labels[:1])


def test_checkpoint_steps_and_square_sides_match_the_papers() -> None:
    assert checkpoint_steps(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert [square_side(q, 5000, 32) for q in (1, 5, 6, 25, 26, 101, 501, 4001)] == [29, 29, 20, 20, 14, 10, 7, 2]
    assert square_side(4999, 5000, 8) == 1


def test_the_step_size_is_halved_if_the_search_stagnates() -> None:
    x = torch.zeros(4, 1, 1, 1)
    state = _initialize_state(torch.arange(4), x, torch.zeros(4), x + 1, 0.1)
    state = replace(
        state,
        x=x + 5,
        best=x + 3,
        num_increases=torch.tensor([8.0, 7.0, 8.0, 8.0]),
        best_loss=torch.tensor([1.0, 1.0, 0.0, 0.0]),
        was_halved=torch.tensor([False, False, False, True]),
    )
    adapted = _adapt_step_size(state, 10)  # 7.5 of 10 steps must increase the loss
    assert adapted.was_halved.tolist() == [False, True, True, False]
    assert adapted.step_size.tolist() == pytest.approx([0.2, 0.1, 0.1, 0.2])
    assert adapted.x.flatten().tolist() == [5, 3, 3, 5]
    assert adapted.num_increases.tolist() == [0] * 4
    assert adapted.checkpoint_loss.tolist() == [1, 1, 0, 0]


def test_the_worst_case_is_computed_per_image() -> None:
    is_correct = [True, True, True, False]
    survived = {
        "fgsm": [True, False, True, False],
        "pgd": [False, True, True, False],
        "square": [True, True, False, False],
    }
    accuracy = compute_robust_accuracy(is_correct, survived, ATTACKS)
    assert accuracy.clean == 75
    assert accuracy.accuracy == {"fgsm": 50, "pgd": 50, "square": 50}
    assert accuracy.worst == 0
    assert accuracy.gradients == 25
    assert accuracy.black_box_only == 1
    assert (
        not accuracy.has_masked_gradients
    )  # square finds an additional image, but is not stronger than any gradient attack
    assert compute_robust_accuracy(is_correct, {"fgsm": survived["fgsm"]}, ATTACKS).has_masked_gradients is False


def test_a_network_without_correct_images_has_accuracy_0() -> None:
    net = make_binary_net()
    images, labels = make_labeled_images(net, 5)
    accuracy = run_reduced_attacks(net, images, (labels + 1) % 10, list(ATTACKS), 0.1)
    assert (accuracy.clean, accuracy.worst, accuracy.has_masked_gradients) == (0, 0, False)


def test_survived_images_are_recorded_as_hexadecimal_digits() -> None:
    survived = [True, False, False, False, True, True]
    assert build_attack_figures(compute_robust_accuracy([True] * 6, {"fgsm": survived}, ATTACKS))["survived"] == {
        "fgsm": "8c"
    }


def test_an_attack_that_leaves_its_ball_raises() -> None:
    net = make_linear_net()
    images, labels = make_labeled_images(net, 5)
    invalid_attack = replace(ATTACKS["fgsm"], run=lambda model, ball: ball.images + 0.2)
    with pytest.raises(AssertionError, match="left its ball"), wrap_model(net, DATASET) as model:
        run_all_attacks(model, images, labels, {"fgsm": invalid_attack}, 0.1)
