"""One training step, plainly: the slow twin of anything faster, and the place where bad numbers get a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.layers import project
from lcrbnn.retention.frozen import frozen_statistics
from lcrbnn.train.batches import Batch, Source, part
from lcrbnn.train.build import Parts
from lcrbnn.train.objective import SUMS, arithmetic, clip_gradients, gradients_of, objective, push
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.reduce import Reducer
from lcrbnn.train.schedule import learning_rate, retention_weight
from lcrbnn.train.seeds import derive
from lcrbnn.train.shared_norm import apart
from lcrbnn.train.spec import Spec


class BadNumbers(Exception):
    """NaN or infinity at a step; the message says in what, and in which layer."""

    def __init__(self, reason: str, epoch: int, step: int, rows: list[int] | None = None) -> None:
        """Keep where it was, and which images."""
        super().__init__(reason)
        self.epoch, self.step, self.rows = epoch, step, rows


class EagerStep:
    """Goes through an epoch step by step: `begin`, then `take` as often as there are steps. `sums` adds up SUMS."""

    def __init__(self, spec: Spec, parts: Parts, train: Source, ranks: Ranks = ALONE) -> None:
        """Keep the parts; nothing is computed."""
        self.spec, self.parts, self.train, self.ranks = spec, parts, train, ranks
        self.steps = train.steps(spec.batch, spec.drop_last, spec.accumulate)
        self._reduce = Reducer(parts.model, ranks)
        train.augmentation(spec.augment)  # refused before anything is written
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=train.labels.device)
        self.captured = False
        self._batches: Iterator[Batch] = iter(())
        self._epoch = self._step = 0
        self._full = 0.0

    def begin(self, epoch: int, first: int, full: float) -> None:
        """Be ready for the steps of an epoch from the first on, with this lambda, but for the ramp."""
        spec = self.spec
        self._epoch, self._step, self._full = epoch, first, full
        self._batches = self.train.epoch(spec.seed, epoch, spec.batch, spec.augment, first, self.steps)

    def take(self) -> None:
        """One step. Bad numbers are found before they reach the weights."""
        at = (self._epoch, self._step, self.steps)
        own = [self.ranks.rank] if self.ranks.rank else []  # draws differ between processes
        torch.manual_seed(derive(self.spec.seed, "step", self._epoch, self._step, *own))
        lr, weight = learning_rate(self.spec, *at), retention_weight(self.spec, self._full, *at)
        self.sums += self.update(next(self._batches), lr, weight)
        self._step += 1

    def check(self) -> None:
        """Nothing to wait for: each step has looked at its own numbers."""

    def look(self) -> None:
        """Has no way of its own to look at ratios and gradients: evaluate.look does."""

    def update(self, batch: Batch, lr: float, weight: float) -> Tensor:
        """Move the weights by one batch, or this process's part of it; return the SUMS of all of it."""
        parts, spec, mine = self.parts, self.spec, len(batch.labels)
        whole = mine if self.ranks.size == 1 else min(spec.batch, len(self.train) - self._step * spec.batch)
        parts.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros_like(self.sums)
        for i in range(spec.accumulate):
            piece = part(0, mine, i, spec.accumulate)
            images = batch.images if spec.accumulate == 1 else _views(batch.images, mine, piece)
            outcome = objective(spec, parts, images, batch.labels[piece], weight)
            push(spec, outcome.loss, (piece.stop - piece.start) / whole)
            sums += outcome.sums
        gradients = gradients_of(spec, parts.names)
        own, sums = sums[0] / mine, self._reduce(gradients, sums, mine / whole)
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(sums[0]) & torch.isfinite(norm):
            raise self._fault(batch, own)
        clip_gradients(spec, gradients, norm)
        for group in parts.optimizer.param_groups:
            group["lr"] = lr
        parts.optimizer.step()
        project(parts.model)
        return sums

    def _fault(self, batch: Batch, loss: Tensor) -> BadNumbers:
        """What went wrong, as the process says that is nearest to the cause, and its images."""
        seen = self.ranks.of_all((*self._diagnosis(batch, loss), batch.rows.tolist()))
        _, reason, rows = min(seen, key=lambda one: one[0])
        return BadNumbers(reason, self._epoch, self._step, rows)

    def _diagnosis(self, batch: Batch, loss: Tensor) -> tuple[int, str]:
        """Where bad numbers begin: in the batch, in an output on the way forward, or in a gradient on the way back.

        First a number: 0 if that place is surely it.
        """
        if not torch.isfinite(loss):
            where = _first_bad_output(self.parts.model, batch.images, self.spec)
            why = where or f"every layer gives finite numbers, so it is the loss itself{self._overflow()}"
            return int(where is None), f"the loss is {loss.item()}; {why}"
        bad = [name for p, name in self.parts.names.items() if p.grad is not None and not p.grad.isfinite().all()]
        if bad:  # backward goes from the last layer to the first, so the last one is where it began
            return (
                2,
                f"the loss is {loss.item():.4g} but the gradient of {bad[-1].removeprefix('model/')} is not finite",
            )
        return 2, f"the loss is {loss.item():.4g} but its gradient is too long for float32"

    def _overflow(self) -> str:
        """Return what the retention loss has to add, if it is the part of the loss that is not finite."""
        retention = self.parts.retention
        if retention is None or retention.lip is None or torch.isfinite(retention.lip):
            return ""
        return f"; {retention.describe_overflow()}"


def _views(images: Tensor, count: int, piece: slice) -> Tensor:
    """A part of the images, of all views of them."""
    return images.unflatten(0, (-1, count))[:, piece].flatten(0, 1)


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
        with frozen_statistics(model), apart(model), arithmetic(spec, images.device):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    return f"the first bad output is that of layer {found[0]}" if found else None
