"""Reduce the kernel launches of a compiled step. Small networks and parallel runs spend most of their time on launches.

A step can use four measures, which bench/training/gpu_cases.py compares. First, batch norms compute their sums in one
launch instead of three (and a pool to one pixel is a mean). Second, the scale of a binary weight is multiplied into the
weight (a few thousand numbers) and not into the activations. So a batch norm directly follows a convolution. Third, a
hardtanh saves its result and not a mask. Fourth, small kernels that do not depend on each other share a launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from lcrbnn.nn.model_hooks import fold_scales_into_weights
from lcrbnn.train.fast.fused_modules import use_fused_batch_norms, use_mean_pools, use_memory_efficient_hardtanhs

MAX_KERNELS_PER_LAUNCH = 20


@dataclass(frozen=True)
class FusionOptions:
    """Options that state which of the four measures against kernel launches a step uses."""

    fuse_batch_norms: bool = False
    save_hardtanh_memory: bool = False
    # This only applies to bfloat16. In float32, sums of signs must stay integers. In float16, 1 / scale could overflow.
    scale_weights: bool = False
    combine_kernels: bool = False

    @contextmanager
    def apply(self, model: nn.Module, precision: str) -> Iterator[None]:
        """Inside this context, the modules of a network are the fused ones. `precision` is a key of PRECISIONS."""
        with ExitStack() as stack:
            if self.fuse_batch_norms:
                stack.enter_context(use_fused_batch_norms(model))
                stack.enter_context(use_mean_pools(model))
            if self.save_hardtanh_memory:
                stack.enter_context(use_memory_efficient_hardtanhs(model))
            if self.scale_weights and precision == "bfloat16":
                stack.enter_context(fold_scales_into_weights(model))
            yield

    def compiler_options(self) -> dict[str, Any]:
        """Return options for torch.compile. How kernels are grouped is set for the whole process."""
        if not self.combine_kernels:
            return {}
        from torch._inductor.scheduler import ForeachKernelSchedulerNode

        ForeachKernelSchedulerNode.set_group_algorithm_for_combo_kernels(group_kernels)
        return {"combo_kernels": True}


GPU_FUSIONS = FusionOptions(fuse_batch_norms=True, save_hardtanh_memory=True, scale_weights=True, combine_kernels=True)


def group_kernels(scheduler: Any) -> list[list[Any]]:
    """Return groups of kernels that may share a launch.

    The distance of a kernel from the start is the length of the longest chain of kernels before it. At distances 0 and
    1, kernels with the same distance form a group. All others are grouped by their distance from the end. torch's own
    groups only use the distance from the start. That separates the kernels that compute weight gradients. They become
    ready one after the other, but none of them is needed before the end.
    """
    nodes = list(scheduler.nodes)  # nodes in topological order: a kernel comes after all kernels that it depends on
    dependencies = {node: list(scheduler._get_unmet_dep_nodes(node)) for node in nodes}
    # The distance from the start: one more than that of the farthest kernel on which this one depends.
    from_start: dict[Any, int] = {}
    for node in nodes:
        from_start[node] = max((from_start[dependency] + 1 for dependency in dependencies[node]), default=0)
    # The distance from the end is computed in reverse order: a kernel is at least one step before each kernel that
    # needs it.
    from_end = dict.fromkeys(nodes, 0)
    for node in reversed(nodes):
        for dependency in dependencies[node]:
            from_end[dependency] = max(from_end[dependency], from_end[node] + 1)
    levels: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for node in nodes:
        device = node.get_device()
        if device is not None and device.type == "cuda":
            level = ("start", from_start[node]) if from_start[node] < 2 else ("end", from_end[node])
            levels[(str(device), *level)].append(node)
    return [
        level_nodes[i : i + MAX_KERNELS_PER_LAUNCH]
        for level_nodes in levels.values()
        for i in range(0, len(level_nodes), MAX_KERNELS_PER_LAUNCH)
    ]
