"""What the processes of a run exchange in a step: one message with gradients, sums and running statistics."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lcrbnn.layers import binary_layers
from lcrbnn.train.ranks import Ranks
from lcrbnn.train.shared_norm import SHARED


class Reducer:
    """Adds up over all processes what each has of a step; alone it changes nothing.

    Not DistributedDataParallel: that sends gradients while the rest of them is still computed, and a compiled backward
    pass gives all of them at once; it would stand between the step and the network, whose hooks and names are used; and
    it averages over processes where the mean over images is meant. One message after the last part of a step is as
    fast there, is captured with the step, and takes an uneven last batch as it comes.
    """

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        """Keep the processes, and the running statistics that they do not share yet."""
        self.ranks = ranks
        kinds = tuple(SHARED.values())
        self.statistics: list[Tensor] = [
            b
            for m in model.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and not isinstance(m, kinds)
            for b in (m.running_mean, m.running_var)
            if b is not None
        ]
        self.statistics += [b for _, layer in binary_layers(model) for b in layer.weight_binarizer.observed()]

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor], sums: Tensor, share: float) -> Tensor:
        """Make the gradients those of the whole batch, the statistics their mean; return the sums of the whole batch.

        `share` is how much of the batch's images this process has; the gradients are of that much already.
        """
        if not self.ranks.launched:
            return sums
        like = gradients[0]
        sent = [sums.to(like), *gradients, *(b * share for b in self.statistics)]
        message = self.ranks.add(torch.cat([x.reshape(-1) for x in sent]))
        added, *back = message.split([x.numel() for x in sent])
        for tensor, piece in zip((*gradients, *self.statistics), back, strict=True):
            tensor.copy_(piece.view(tensor.shape))
        return added.to(sums)
