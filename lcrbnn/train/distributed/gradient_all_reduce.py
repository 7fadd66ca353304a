"""Sum gradients, loss sums and running statistics over all processes, with one message per training step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.train.distributed.ranks import Ranks
from lcrbnn.train.distributed.sync_batch_norm import SYNC_BATCH_NORM_CLASSES


class StepReducer:
    """Sums gradients, epoch sums and running statistics over all processes. With a single process, nothing changes.

    DistributedDataParallel (DDP) is not used here, for three reasons. First, DDP sends some gradients while it computes
    others, but a compiled backward pass returns all of them at once. Second, DDP wraps the network, but the step uses
    the hooks and names of the network. Third, DDP averages over processes, but the step needs the mean over images. One
    message after the last part of a step is as fast. It is captured with the step, and it handles an incomplete last
    batch.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        """Store the processes, and the running statistics that synchronized batch norms do not already exchange."""
        self.ranks = ranks
        sync_classes = tuple(SYNC_BATCH_NORM_CLASSES.values())
        self.running_statistics: list[Tensor] = [
            b
            for m in model.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and not isinstance(m, sync_classes)
            for b in (m.running_mean, m.running_var)
            if b is not None
        ]
        self.running_statistics += [
            b for _, layer in iter_binary_layers(model) for b in layer.weight_binarizer.observation_buffers()
        ]

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor], sums: Tensor, fraction: float) -> Tensor:
        """Replace gradients and running statistics by those of the whole batch.

        Return the loss sums of the whole batch. `fraction` is the fraction of the batch's images that this process has.
        The gradients are already multiplied by it. So their sum over processes is the mean over images.
        """
        if not self.ranks.is_launched:
            return sums
        tensors = [sums.to(gradients[0]), *gradients, *(b * fraction for b in self.running_statistics)]
        message = self.ranks.all_reduce_sum(torch.cat([x.reshape(-1) for x in tensors]))
        total_sums, *totals = message.split([x.numel() for x in tensors])
        for tensor, total in zip((*gradients, *self.running_statistics), totals, strict=True):
            tensor.copy_(total.view(tensor.shape))
        return total_sums.to(sums)
