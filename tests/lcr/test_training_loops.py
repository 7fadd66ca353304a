"""LCR in common training loops on foreign networks, compared with a plain loop without `Retention`."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from lcrbnn import Retention
from lcrbnn.errors import InputError
from tests.lcr.foreign_networks import FOREIGN_NETWORKS, IMAGES, LABELS, make_foreign_network
from tests.lcr.helpers import count_hooks
from tests.lcr.plain_loop import (
    assert_same_gradients,
    compute_plain_gradients,
    compute_plain_loss,
    make_network_and_retention,
    take_gradients,
)

NAMES = list(FOREIGN_NETWORKS)
HALVES = (slice(0, 8), slice(8, 16))


def compute_loss(model: nn.Module, retention: Retention, batch: slice = slice(None)) -> Tensor:
    return F.cross_entropy(model(IMAGES[batch]), LABELS[batch]) + retention.loss()


@pytest.mark.parametrize("name", NAMES)
def test_step_has_the_loss_and_the_gradients_of_a_plain_loop(name: str) -> None:
    model, retention = make_network_and_retention(name)
    cross_entropy_gradients = torch.autograd.grad(
        F.cross_entropy(model(IMAGES), LABELS), list(model.parameters()), allow_unused=True
    )
    loss = compute_loss(model, retention)
    loss.backward()
    expected, expected_loss = compute_plain_gradients(name)
    assert loss.item() == pytest.approx(expected_loss, rel=1e-4)
    gradients = take_gradients(model)
    assert_same_gradients(gradients, expected)
    without_lcr = [torch.zeros(1) if g is None else g for g in cross_entropy_gradients]
    with pytest.raises(AssertionError):  # the comparison sees the part of the LCR loss
        assert_same_gradients(without_lcr, expected)


# ---------------------------------------------------------------------------------------------------------------
# Several passes per step.
@pytest.mark.parametrize("name", NAMES)
def test_accumulated_gradients_are_those_of_a_plain_loop(name: str) -> None:
    model, retention = make_network_and_retention(name)
    for batch in HALVES:
        compute_loss(model, retention, batch).backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients(name, HALVES)[0])


@pytest.mark.parametrize("name", NAMES)
def test_two_passes_with_one_backward_pass(name: str) -> None:
    model, retention = make_network_and_retention(name)
    (compute_loss(model, retention, HALVES[0]) + compute_loss(model, retention, HALVES[1])).backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients(name, HALVES)[0])


def test_second_pass_of_a_step_with_moved_weights() -> None:
    """Sharpness-aware minimization moves the weights along the gradient and computes another gradient there."""
    model, retention = make_network_and_retention("resnet")
    compute_loss(model, retention).backward()
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), take_gradients(model), strict=True):
            parameter.add_(gradient, alpha=0.1)
    plain = copy.deepcopy(model)
    compute_loss(model, retention).backward()
    compute_plain_loss(plain, FOREIGN_NETWORKS["resnet"].blocks, IMAGES, LABELS).backward()
    assert_same_gradients(take_gradients(model), take_gradients(plain))


# ---------------------------------------------------------------------------------------------------------------
# Validation between the forward pass and the loss.
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("measures", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_validation_before_the_loss_changes_nothing(name: str, measures: bool, context: Callable[[], object]) -> None:
    model, retention = make_network_and_retention(name)
    cross_entropy = F.cross_entropy(model(IMAGES), LABELS)
    model.eval()
    with context():
        model(IMAGES[:5])
        if measures:
            retention.loss()
    model.train()
    (cross_entropy + retention.loss()).backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients(name)[0])
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()


def test_loss_in_evaluation_mode_belongs_to_the_latest_pass() -> None:
    model, retention = make_network_and_retention("resnet")
    model(IMAGES)
    model.eval()
    loss = retention.loss()  # no pass in evaluation mode yet: that of the training pass
    assert loss.requires_grad
    with torch.no_grad():
        model(IMAGES)
        assert retention.loss().item() != pytest.approx(loss.item(), rel=1e-3)  # other batch-norm statistics


# ---------------------------------------------------------------------------------------------------------------
# Activation checkpointing.
def checkpoint_blocks(model: nn.Module, blocks: list[str], *, reentrant: bool) -> None:
    """Checkpoint the calls of blocks, including their hooks, as `checkpoint(block, x)` in a network does."""
    for name in blocks:
        parent_name, _, child_name = name.rpartition(".")
        block = model.get_submodule(name)
        wrapper = CheckpointedBlock(block, reentrant)
        parent = model.get_submodule(parent_name)
        setattr(parent, child_name, wrapper)


class CheckpointedBlock(nn.Module):
    def __init__(self, block: nn.Module, reentrant: bool) -> None:
        super().__init__()
        self.block, self.reentrant = block, reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


def make_checkpointed_network(
    name: str, *, reentrant: bool = False, matrix: str = "gram"
) -> tuple[nn.Module, Retention]:
    model, retention = make_network_and_retention(name, matrix=matrix)
    retention.close()
    blocks = FOREIGN_NETWORKS[name].blocks
    checkpoint_blocks(model, blocks, reentrant=reentrant)
    return model, Retention(model, retention.variant, blocks=[f"{block}.block" for block in blocks])


@pytest.mark.parametrize("name", NAMES)
def test_checkpointed_blocks_have_the_gradients_of_a_plain_loop(name: str) -> None:
    model, retention = make_checkpointed_network(name)
    compute_loss(model, retention).backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients(name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_recomputed_maps_are_not_captured(name: str) -> None:
    model, retention = make_checkpointed_network(name)
    refs: list[weakref.ref[Tensor]] = []
    block = model.get_submodule(f"{FOREIGN_NETWORKS[name].blocks[-1]}.block")
    block.register_forward_pre_hook(lambda m, args: refs.append(weakref.ref(args[0])))
    compute_loss(model, retention).backward()
    assert len(refs) == 2  # the forward pass and its repetition
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()


def test_recomputation_does_not_replace_the_maps_of_the_next_pass() -> None:
    """The backward pass of the first half runs after the forward pass of the second half, as in a pipeline."""
    model, retention = make_checkpointed_network("resnet", matrix="cross-gram")
    losses = []
    for runs_backward_between in (False, True):
        loss = compute_loss(model, retention, HALVES[0])
        model(IMAGES[HALVES[1]])
        if runs_backward_between:
            loss.backward()
        losses.append(retention.loss().item())
    assert losses[1] == losses[0]


def test_checkpointed_network_keeps_no_maps() -> None:
    model, retention = make_network_and_retention("resnet")
    loss = F.cross_entropy(checkpoint(model, IMAGES, use_reentrant=False), LABELS) + retention.loss()
    loss.backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients("resnet")[0])
    with pytest.raises(InputError, match="call the model before each loss"):
        retention.loss()


@pytest.mark.parametrize("name", ["unet", "vit"])
def test_reentrant_checkpointing_works_if_no_sign_is_computed_in_a_checkpoint(name: str) -> None:
    """The output of a checkpointed block has a gradient. In these networks, no binary layer reads this output."""
    model, retention = make_checkpointed_network(name, reentrant=True)
    compute_loss(model, retention).backward()
    assert_same_gradients(take_gradients(model), compute_plain_gradients(name)[0])


@pytest.mark.parametrize(("blocks", "matrix"), [(["layer1", "layer2"], "gram"), (["layer2"], "cross-gram")])
def test_reentrant_checkpointing_is_rejected(blocks: list[str], matrix: str) -> None:
    """The first binary layer of "layer2" takes the sign of the map between the blocks without a gradient."""
    model = make_foreign_network("resnet")
    checkpoint_blocks(model, blocks, reentrant=True)
    retention = Retention(model, blocks=[f"{name}.block" for name in blocks], matrix=matrix)
    model(IMAGES)
    with pytest.raises(InputError, match=r"has no gradient, although .* use_reentrant=True"):
        retention.loss()


# ---------------------------------------------------------------------------------------------------------------
# Moving averages of the weights.
AVERAGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "AveragedModel": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True),
    "deepcopy": copy.deepcopy,
}


def update_average(average: nn.Module, model: nn.Module) -> None:
    if isinstance(average, AveragedModel):
        average.update_parameters(model)
        return
    with torch.no_grad():
        for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            old.copy_(old.lerp(new, 0.5) if old.is_floating_point() else new)


@pytest.mark.parametrize("kind", AVERAGES)
@pytest.mark.parametrize("name", NAMES)
def test_passes_of_a_moving_average_do_not_change_training(name: str, kind: str) -> None:
    """A self-distillation loop calls the average between the forward pass and the loss."""
    states = []
    for uses_average in (False, True):
        model, retention = make_network_and_retention(name)
        average = AVERAGES[kind](model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(3):
            logits = model(IMAGES)
            if uses_average:
                average.train()(IMAGES[:4])
            optimizer.zero_grad()
            (F.cross_entropy(logits, LABELS) + retention.loss()).backward()
            optimizer.step()
            if uses_average:
                update_average(average, model)
        assert all(p.grad is None for p in average.parameters())
        states.append(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))


@pytest.mark.parametrize("kind", AVERAGES)
def test_retention_of_a_moving_average_measures_the_average(kind: str) -> None:
    model, retention = make_network_and_retention("resnet")
    average = AVERAGES[kind](model)
    prefix = "module." if kind == "AveragedModel" else ""
    measured = Retention(average, retention.variant, blocks=[f"{prefix}{name}" for name in ("layer1", "layer2")])
    loss = compute_loss(average, measured)
    loss.backward()
    assert_same_gradients(take_gradients(average), compute_plain_gradients("resnet")[0])
    assert all(p.grad is None for p in model.parameters())
    assert compute_loss(model, retention).item() == pytest.approx(loss.item(), rel=1e-6)
    retention.close()
    assert count_hooks(model) == 0


# ---------------------------------------------------------------------------------------------------------------
# Memory.
@pytest.mark.parametrize("reference", ["pre-binarization", "latent-weights"])
@pytest.mark.parametrize("name", NAMES)
def test_no_feature_map_outlives_its_step(name: str, reference: str) -> None:
    model, retention = make_network_and_retention(name, reference=reference)
    refs: list[weakref.ref[Tensor]] = []
    for block in FOREIGN_NETWORKS[name].blocks:
        model.get_submodule(block).register_forward_hook(lambda m, args, out: refs.append(weakref.ref(out)))
    gc.disable()  # the maps are freed at once and do not wait for the garbage collector
    try:
        compute_loss(model, retention).backward()
        assert refs
        assert all(ref() is None for ref in refs)
        refs.clear()
        model.eval()
        with torch.no_grad():
            model(IMAGES)
        validation_refs = list(refs)
        model.train()
        compute_loss(model, retention).backward()  # drops the maps of the validation pass
        assert all(ref() is None for ref in validation_refs)
        model(IMAGES)
        retention.close()
        assert all(ref() is None for ref in refs)
    finally:
        gc.enable()
