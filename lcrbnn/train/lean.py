"""A compiled step in fewer launches: a network of small maps, several runs side by side, spends its time on them.

Four things, which a benchmark can choose apart (bench/cases.py): batch norms add up in one launch instead of three,
and a pool to one pixel is a mean; the scale of a binary weight is multiplied into the weight, a few thousand numbers,
instead of into the map, so that nothing stands between a convolution and its norm; a hardtanh goes back by its result;
and small kernels that do not depend on each other share a launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from lcrbnn.layers import scaled_early
from lcrbnn.train.fused_norm import fused_norms
from lcrbnn.train.kept_clip import kept_clips
from lcrbnn.train.mean_pool import mean_pools

TOGETHER = 20  # kernels that share a launch, at most


@dataclass(frozen=True)
class Lean:
    """Which of the four a step has."""

    norms: bool = False
    clips: bool = False
    scales: bool = False  # in bfloat16 only: in float32 sums of signs stay whole, in float16 1 / scale could overflow
    together: bool = False

    @contextmanager
    def on(self, model: nn.Module, precision: str) -> Iterator[None]:
        """Inside, the network is as the compiler is to see it; `precision` is a row of PRECISIONS."""
        with ExitStack() as held:
            if self.norms:
                held.enter_context(fused_norms(model))
                held.enter_context(mean_pools(model))
            if self.clips:
                held.enter_context(kept_clips(model))
            if self.scales and precision == "bfloat16":
                held.enter_context(scaled_early(model))
            yield

    def tell_compiler(self) -> dict[str, Any]:
        """The options of torch.compile; which kernels may share a launch is said for the whole process."""
        if not self.together:
            return {}
        from torch._inductor.scheduler import ForeachKernelSchedulerNode

        ForeachKernelSchedulerNode.set_group_algorithm_for_combo_kernels(groups)
        return {"combo_kernels": True}


CHOSEN = Lean(norms=True, clips=True, scales=True, together=True)  # what steps on a GPU have


def groups(scheduler: Any) -> list[list[Any]]:
    """Kernels that may share a launch: those that wait for little, and those that others wait for equally long.

    torch's own groups count from the start only. The gradients of weights become ready one after the other, but nobody
    waits for them before the end.
    """
    nodes = list(scheduler.nodes)  # each after those that it waits for
    needs = {node: list(scheduler._get_unmet_dep_nodes(node)) for node in nodes}
    early: dict[Any, int] = {}
    for node in nodes:
        early[node] = max((early[before] + 1 for before in needs[node]), default=0)
    late = dict.fromkeys(nodes, 0)
    for node in reversed(nodes):
        for before in needs[node]:
            late[before] = max(late[before], late[node] + 1)
    found: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for node in nodes:
        device = node.get_device()
        if device is not None and device.type == "cuda":
            place = ("early", early[node]) if early[node] < 2 else ("late", late[node])
            found[(str(device), *place)].append(node)
    return [some[i : i + TOGETHER] for some in found.values() for i in range(0, len(some), TOGETHER)]
