"""One training step, plainly: the slow twin of anything faster, and the place where bad numbers are caught."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.layers import project
from lcrbnn.retention.regularizer import frozen_statistics
from lcrbnn.train.batches import Batch
from lcrbnn.train.build import Parts
from lcrbnn.train.spec import Spec

SUMS = ("loss", "lip", "correct", "seen")  # what an epoch adds up, in this order


class BadNumbers(Exception):
    """NaN or infinity; the message says in what, and in which layer."""


class EagerStep:
    """Takes a batch, moves the weights, and returns what the epoch adds up: SUMS, float64, on the device."""

    def __init__(self, spec: Spec, parts: Parts) -> None:
        """Keep the parts; nothing is computed."""
        self.spec, self.parts = spec, parts

    def __call__(self, batch: Batch, lr: float, weight: float) -> Tensor:
        """One step with this learning rate and lambda. Bad numbers are found before they reach the weights."""
        spec, parts = self.spec, self.parts
        with arithmetic(spec, batch.images.device):
            logits = parts.model(batch.images)
            loss = self._task(batch, logits)
            if parts.retention is not None:
                loss = loss + parts.retention.loss(weight)
        parts.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradients = [p.grad for p in parts.names if p.grad is not None]
        healthy = torch.isfinite(loss.detach()) & torch.isfinite(torch.nn.utils.get_total_norm(gradients))
        if not healthy:
            raise BadNumbers(self._diagnosis(batch, loss.detach()))
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        parts.optimizer.step()
        project(parts.model)
        return self._sums(batch, logits.detach(), loss.detach())

    def _task(self, batch: Batch, logits: Tensor) -> Tensor:
        spec, teacher = self.spec, self.parts.teacher
        labels = F.cross_entropy(logits.float(), batch.labels, label_smoothing=spec.label_smoothing)
        if spec.distill == 0:
            return labels
        assert teacher is not None
        with torch.no_grad():
            wanted = teacher(batch.images).float()
        t = spec.temperature
        apart = F.kl_div(
            F.log_softmax(logits.float() / t, 1), F.log_softmax(wanted / t, 1), log_target=True, reduction="batchmean"
        )
        return (1 - spec.distill) * labels + spec.distill * t * t * apart

    def _sums(self, batch: Batch, logits: Tensor, loss: Tensor) -> Tensor:
        n = len(batch.labels)
        lip = None if self.parts.retention is None else self.parts.retention.lip
        correct = (logits.argmax(1) == batch.labels).sum()
        values = [loss * n, torch.zeros_like(loss) if lip is None else lip * n, correct, torch.full_like(correct, n)]
        return torch.stack([v.double() for v in values])

    def _diagnosis(self, batch: Batch, loss: Tensor) -> str:
        """Where bad numbers begin: in the batch, in an output on the way forward, or in a gradient on the way back."""
        if not torch.isfinite(loss):
            where = _first_bad_output(self.parts.model, batch.images, self.spec)
            return f"the loss is {loss.item()}; {where or 'every layer gives finite numbers, so it is the loss itself'}"
        bad = [name for p, name in self.parts.names.items() if p.grad is not None and not p.grad.isfinite().all()]
        if bad:  # backward goes from the last layer to the first, so the last one is where it began
            return f"the loss is {loss.item():.4g} but the gradient of {bad[-1].removeprefix('model/')} is not finite"
        return f"the loss is {loss.item():.4g} but its gradient is too long for float32"


@contextmanager
def arithmetic(spec: Spec, device: torch.device) -> Iterator[None]:
    """Inside, products are computed as the spec's precision says."""
    with torch.autocast(device.type, torch.bfloat16, enabled=spec.precision == "bfloat16"):
        yield


@torch.no_grad()
def _first_bad_output(model: nn.Module, images: Tensor, spec: Spec) -> str | None:
    if not images.isfinite().all():
        return "the images themselves are not finite"
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            return f"the parameter {name} was not finite before the step"
    found: list[str] = []

    def look(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, given: Any, output: Any) -> None:
            if not found and isinstance(output, Tensor) and not output.isfinite().all():
                found.append(name)

        return hook

    leaves = [(n, m) for n, m in model.named_modules() if not any(True for _ in m.children()) or hasattr(m, "weight")]
    hooks = [m.register_forward_hook(look(n)) for n, m in leaves]
    try:
        with frozen_statistics(model), arithmetic(spec, images.device):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return f"the first bad output is that of layer {found[0]}" if found else None
