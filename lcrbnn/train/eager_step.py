"""The eager training step, which is the reference for the compiled step.

It also finds the layer of a non-finite value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.data.loading.batches import Batch, BatchSource, slice_part
from lcrbnn.device import autocast_precision, derive_seed
from lcrbnn.lcr.second_pass import freeze_running_statistics
from lcrbnn.nn.model_hooks import project_weights
from lcrbnn.train.distributed.gradient_all_reduce import StepReducer
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, Ranks
from lcrbnn.train.distributed.sync_batch_norm import normalize_locally
from lcrbnn.train.objective import SUM_NAMES, accumulate_gradient, clip_gradients, collect_gradients, compute_objective
from lcrbnn.train.schedule import compute_lcr_weight, compute_learning_rate
from lcrbnn.train.setup.build import TrainingParts
from lcrbnn.train.setup.spec import TrainSpec


class NonFiniteError(Exception):
    """A step had a value that is NaN or infinite. The message names the quantity and, if it is known, the layer."""

    def __init__(self, reason: str, epoch: int, step: int, rows: list[int] | None = None) -> None:
        """Store the epoch and step, and the row numbers of the batch in the training split."""
        super().__init__(reason)
        self.epoch, self.step, self.rows = epoch, step, rows


class EagerStep:
    """Runs the steps of an epoch without compilation. Call `begin_epoch`, then `run_step` once per step.

    `sums` contains the SUM_NAMES, added up over the epoch.
    """

    def __init__(
        self, spec: TrainSpec, parts: TrainingParts, train: BatchSource, ranks: Ranks = SINGLE_PROCESS
    ) -> None:
        """Store the parts of the run. Nothing is computed."""
        self.spec, self.parts, self.train, self.ranks = spec, parts, train, ranks
        self.steps_per_epoch = train.count_steps(spec.batch_size, spec.drop_last, spec.gradient_accumulation_steps)
        self._step_reducer = StepReducer(parts.model, ranks)
        # raises an error for an unsuitable batch size before anything is written
        train.find_augmentation(spec.augmentation)
        self.sums = torch.zeros(len(SUM_NAMES), dtype=torch.float64, device=train.labels.device)
        self.record_name = "EagerStep"
        self.is_captured = False
        self._batches: Iterator[Batch] = iter(())
        self._epoch = self._step = 0
        self._full_lcr_weight = 0.0

    def begin_epoch(self, epoch: int, first_step: int, full_lcr_weight: float) -> None:
        """Prepare the steps of an epoch from `first_step` on. `full_lcr_weight` is lambda after its warm-up."""
        spec = self.spec
        self._epoch, self._step, self._full_lcr_weight = epoch, first_step, full_lcr_weight
        self._batches = self.train.train_batches(
            spec.seed, epoch, spec.batch_size, spec.augmentation, first_step, self.steps_per_epoch
        )

    def run_step(self) -> None:
        """Run the next step. If a value is not finite, raise NonFiniteError before the weights change."""
        position = (self._epoch, self._step, self.steps_per_epoch)
        # Part of the seed that differs between processes, so that each process draws its own random numbers
        rank = [self.ranks.rank] if self.ranks.rank else []
        torch.manual_seed(derive_seed(self.spec.seed, "step", self._epoch, self._step, *rank))
        lr = compute_learning_rate(self.spec, *position)
        lcr_weight = compute_lcr_weight(self.spec, self._full_lcr_weight, *position)
        self.sums += self.update_weights(next(self._batches), lr, lcr_weight)
        self._step += 1

    def check_finite(self) -> None:
        """Do nothing, because `run_step` has already checked each step."""

    def measure_lcr(self) -> None:
        """Return None, because the function validation.measure_lcr measures LCR for eager steps."""

    def update_weights(self, batch: Batch, lr: float, lcr_weight: float) -> Tensor:
        """Update the weights with this process's part of a batch. Return the sums SUM_NAMES of the whole batch."""
        parts, spec, num_images = self.parts, self.spec, len(batch.labels)
        batch_size = num_images
        if self.ranks.size > 1:
            batch_size = min(spec.batch_size, len(self.train) - self._step * spec.batch_size)
        parts.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros_like(self.sums)
        num_parts = spec.gradient_accumulation_steps
        for i in range(num_parts):
            part = slice_part(0, num_images, i, num_parts)
            images = batch.images if num_parts == 1 else _slice_views(batch.images, num_images, part)
            step_loss = compute_objective(spec, parts, images, batch.labels[part], lcr_weight)
            accumulate_gradient(spec, step_loss.loss, (part.stop - part.start) / batch_size)
            sums += step_loss.sums
        gradients = collect_gradients(spec, parts.parameter_names)
        own_loss, sums = sums[0] / num_images, self._step_reducer(gradients, sums, num_images / batch_size)
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(sums[0]) & torch.isfinite(norm):
            raise self._make_non_finite_error(batch, own_loss)
        clip_gradients(spec, gradients, norm)
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        parts.optimizer.step()
        project_weights(parts.model)
        return sums

    def _make_non_finite_error(self, batch: Batch, loss: Tensor) -> NonFiniteError:
        """Return the error with a reason and the row numbers of the batch.

        They are from the process with the most certain diagnosis.
        """
        diagnoses = self.ranks.all_gather_object((*self._find_cause(batch, loss), batch.rows.tolist()))
        _, reason, rows = min(diagnoses, key=lambda diagnosis: diagnosis[0])
        return NonFiniteError(reason, self._epoch, self._step, rows)

    def _find_cause(self, batch: Batch, loss: Tensor) -> tuple[int, str]:
        """Return the first non-finite quantity, which is the batch, a layer's output, the loss, or a gradient.

        The number in front of it is the uncertainty. It is 0 if this quantity is certainly the cause, and at most 2.
        """
        if not torch.isfinite(loss):
            output = _find_first_non_finite_output(self.parts.model, batch.images, self.spec)
            reason = output or (
                f"every layer gives finite numbers, so it is the loss itself{self._describe_lcr_overflow()}"
            )
            return int(output is None), f"the loss is {loss.item()}; {reason}"
        names = [
            name for p, name in self.parts.parameter_names.items() if p.grad is not None and not p.grad.isfinite().all()
        ]
        # The backward pass runs from the last layer to the first. So the last layer with a non-finite gradient was the
        # first one.
        if names:
            name = names[-1].removeprefix("model/")
            return 2, f"the loss is {loss.item():.4g} but the gradient of {name} is not finite"
        return 2, f"the loss is {loss.item():.4g} but its gradient is too long for float32"

    def _describe_lcr_overflow(self) -> str:
        """Return the message of the LCR loss about an overflow, if the LCR loss is the part that is not finite."""
        retention = self.parts.retention
        if retention is None or retention.lcr_loss is None or torch.isfinite(retention.lcr_loss):
            return ""
        return f"; {retention.describe_overflow()}"


def _slice_views(images: Tensor, num_images: int, part: slice) -> Tensor:
    """Return a part of the images, with all views of each image."""
    return images.unflatten(0, (-1, num_images))[:, part].flatten(0, 1)


@torch.no_grad()
def _find_first_non_finite_output(model: nn.Module, images: Tensor, spec: TrainSpec) -> str | None:
    """Run a forward pass. Return a sentence about the first non-finite quantity, or None if all are finite."""
    if not images.isfinite().all():
        return "the images themselves are not finite"
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the parameter {name} was not finite before the step"
    layer_names: list[str] = []

    def make_hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not layer_names and isinstance(output, Tensor) and not output.isfinite().all():
                layer_names.append(name)

        return hook

    layers = [(n, m) for n, m in model.named_modules() if not any(True for _ in m.children()) or hasattr(m, "weight")]
    hooks = [layer.register_forward_hook(make_hook(name)) for name, layer in layers]
    try:
        with (
            freeze_running_statistics(model),
            normalize_locally(model),
            autocast_precision(spec.precision, images.device),
        ):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return f"the first non-finite output is that of layer {layer_names[0]}" if layer_names else None
