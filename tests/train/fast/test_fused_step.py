"""Steps with fewer launches compute the same results."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.lcr.second_pass import freeze_running_statistics
from lcrbnn.nn.layers import BinaryConv2d
from lcrbnn.nn.methods.method_registry import METHODS
from lcrbnn.nn.model_hooks import fit_output_shapes, fold_scales_into_weights
from lcrbnn.nn.models.model_registry import create_model
from lcrbnn.train.fast.fused_modules import (
    FusedBatchNorm2d,
    MeanPool2d,
    MemoryEfficientHardtanh,
    use_fused_batch_norms,
    use_mean_pools,
    use_memory_efficient_hardtanhs,
)
from lcrbnn.train.fast.fused_step import MAX_KERNELS_PER_LAUNCH, FusionOptions, group_kernels
from tests.nn.kernels.interpreted import run_interpreted


@pytest.mark.parametrize("name", METHODS)
def test_scales_folded_into_weights_give_the_same_result(name: str) -> None:
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 6, 3, padding=1, method=name).double()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    fit_output_shapes(nn.Sequential(layer), x)  # some methods have parameters of the size of their output
    layer.eval()
    results = []
    for early in (False, True):
        layer.zero_grad()
        inputs = x.clone().requires_grad_()
        if early:
            with fold_scales_into_weights(layer):
                y = layer(inputs)
        else:
            y = layer(inputs)
        y.square().sum().backward()
        results.append([y.detach(), inputs.grad, *(p.grad for p in layer.parameters())])
    for unfolded, early in zip(*results, strict=True):
        assert (unfolded is None) == (early is None)
        assert unfolded is None or torch.allclose(unfolded, early, rtol=1e-9, atol=1e-9)


def test_fusions_are_undone_afterwards() -> None:
    net = create_model("resnet8-double", "irnet", image_size=8)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    kinds = [type(module) for module in net.modules()]
    with (
        suppress(KeyError),
        FusionOptions(fuse_batch_norms=True, save_hardtanh_memory=True, scale_weights=True).apply(net, "bfloat16"),
    ):
        assert any(isinstance(module, MemoryEfficientHardtanh) for module in net.modules())
        assert any(isinstance(module, FusedBatchNorm2d) for module in net.modules())
        assert all(layer.folds_scale_into_weight for layer in net.modules() if isinstance(layer, BinaryConv2d))
        raise KeyError
    assert [type(module) for module in net.modules()] == kinds
    assert not any(layer.folds_scale_into_weight for layer in net.modules() if isinstance(layer, BinaryConv2d))
    assert before.keys() == net.state_dict().keys()
    for precision in ("float32", "float16"):
        with FusionOptions(fuse_batch_norms=True, scale_weights=True).apply(net, precision):
            assert not any(layer.folds_scale_into_weight for layer in net.modules() if isinstance(layer, BinaryConv2d))


def test_only_pools_to_one_pixel_become_means() -> None:
    pools = nn.ModuleList([nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((1, 1)), nn.AdaptiveAvgPool2d(2)])
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    plain = [pool(x) for pool in pools]
    with use_mean_pools(pools):
        assert [type(pool) is MeanPool2d for pool in pools] == [True, True, False]
        assert all(torch.allclose(pool(x), y, atol=1e-14) for pool, y in zip(pools, plain, strict=True))
    assert all(type(pool) is nn.AdaptiveAvgPool2d for pool in pools)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-0.5, 2.0)])
def test_the_memory_efficient_hardtanh_equals_that_of_torch(dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    odd = torch.tensor([*bounds, 0.0, -0.0, torch.inf, -torch.inf])
    near = [torch.nextafter(torch.tensor(at), torch.tensor(to)) for at in bounds for to in (-9.0, 9.0)]
    x = torch.cat([odd, torch.stack(near), torch.linspace(-3, 3, 101), torch.tensor([torch.nan])]).to(dtype)
    g = torch.randn(len(x)).to(dtype)
    clip, results = nn.Hardtanh(*bounds), []
    for memory_efficient in (False, True):
        inputs = x.clone().requires_grad_()
        with use_memory_efficient_hardtanhs(clip) if memory_efficient else nullcontext():
            assert type(clip) is (MemoryEfficientHardtanh if memory_efficient else nn.Hardtanh)
            y = clip(inputs)
            y.backward(g)
        assert inputs.grad is not None
        assert y.dtype == inputs.grad.dtype == dtype
        assert y[-1].isnan()  # NaN stays NaN; torch is inconsistent about its gradient
        results.append((y.detach()[:-1], inputs.grad[:-1]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_unsupported_batch_norms_are_not_fused() -> None:
    odd = [nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, momentum=None), nn.BatchNorm1d(4)]
    odd.append(nn.BatchNorm2d(4, track_running_stats=False))
    with use_fused_batch_norms(nn.Sequential(*odd)):
        assert not any(isinstance(norm, FusedBatchNorm2d) for norm in odd)


def compute_gradients_and_statistics(
    net: nn.Module, images: Tensor, fusion: FusionOptions, backend: str
) -> tuple[list[Tensor], list[Tensor]]:
    """Return gradients and running statistics after two passes of a compiled network."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.cross_entropy(net(x), torch.arange(len(x))), fullgraph=True, backend=backend)
    net.zero_grad()
    for _ in range(2):
        with fusion.apply(net, "float32"):
            loss = compiled(images)
        loss.backward()
    return [p.grad for p in net.parameters()], [b.clone() for b in net.buffers() if b.is_floating_point()]


def compare_fused_with_plain() -> dict[str, Any]:
    outcomes = []
    fusion = FusionOptions(fuse_batch_norms=True, save_hardtanh_memory=True)
    for options, backend in ((FusionOptions(), "aot_eager"), (fusion, "aot_eager"), (fusion, "inductor")):
        torch.manual_seed(0)
        net = create_model("resnet8-double", "bireal", image_size=8).to(memory_format=torch.channels_last)
        images = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        outcomes.append(compute_gradients_and_statistics(net, images, options, backend))
    results: dict[str, Any] = {}
    for name, outcome in zip(("aot_eager", "inductor"), outcomes[1:], strict=True):
        pairs = [pair for kinds in zip(outcomes[0], outcome, strict=True) for pair in zip(*kinds, strict=True)]
        errors = [float((a - b).abs().max() / a.abs().max().clamp_min(1e-6)) for a, b in pairs]
        results[name] = [max(errors), len(errors), outcome[1][1][:2].tolist()]
    return results


@pytest.mark.slow  # compiles a network twice, with interpreted kernels
def test_a_fused_network_has_the_gradients_and_statistics_of_the_plain_one() -> None:
    for backend, (error, count, variance) in run_interpreted(compare_fused_with_plain).items():
        assert error < 1e-3, backend  # a different sign near 0 would give a far larger error
        assert count > 20
        assert variance != [1.0, 1.0]


def run_with_frozen_statistics() -> dict[str, Any]:
    """Run two passes in one graph, the second with frozen statistics; return plain and fused statistics."""
    results: dict[str, Any] = {}
    for name, fusion in (("plain", FusionOptions()), ("fused", FusionOptions(fuse_batch_norms=True))):
        torch._dynamo.reset()
        norm = nn.BatchNorm2d(4)
        x = torch.arange(256.0).reshape(8, 4, 2, 4).contiguous(memory_format=torch.channels_last)

        def passes(x: Tensor, norm: nn.Module = norm) -> Tensor:
            y = norm(x)
            with freeze_running_statistics(norm):
                return y.sum() + norm(2 * x).sum()

        with fusion.apply(norm, "float32"):
            torch.compile(passes, fullgraph=True, backend="aot_eager")(x)
        results[name] = norm.running_mean.tolist()
    return results


def test_frozen_statistics_do_not_change() -> None:
    results = run_interpreted(run_with_frozen_statistics)
    assert results["fused"] == pytest.approx(results["plain"])


class Node:
    """A kernel with dependencies."""

    def __init__(self, name: str, *needs: Node, device: str = "cuda") -> None:
        self.name, self.needs, self.device = name, needs, torch.device(device)

    def get_device(self) -> torch.device:
        return self.device

    def __repr__(self) -> str:
        return self.name


class Scheduler:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    def _get_unmet_dep_nodes(self, node: Node) -> list[Node]:
        return list(node.needs)


def test_kernels_without_dependents_are_grouped_at_the_end() -> None:
    weights = [Node(f"weight {i}") for i in range(3)]
    chain = [Node("layer 0", weights[0])]
    sums, rest = [], []
    for i in range(1, 6):  # like a backward pass: a chain of layers, each with a weight gradient in two parts
        chain.append(Node(f"layer {i}", chain[-1]))
        sums.append(Node(f"sum {i}", chain[-1]))
        rest.append(Node(f"rest {i}", sums[-1]))
    actual = group_kernels(
        Scheduler([*weights, chain[0], *(n for row in zip(chain[1:], sums, rest, strict=True) for n in row)])
    )
    assert weights in actual  # without dependents
    assert sums in actual
    assert rest in actual
    for group in actual:
        assert not any(need in group for node in group for need in node.needs)


def test_groups_have_one_gpu_and_a_limited_size() -> None:
    many = [Node(f"{i}", device=("cuda:0", "cuda:1", "cpu")[i % 3]) for i in range(3 * (MAX_KERNELS_PER_LAUNCH + 1))]
    actual = group_kernels(Scheduler(many))
    assert sorted(map(len, actual)) == [1, 1, MAX_KERNELS_PER_LAUNCH, MAX_KERNELS_PER_LAUNCH]
    assert all(len({node.device for node in group}) == 1 for group in actual)
    assert not any(node.device.type == "cpu" for group in actual for node in group)


def test_compiler_options_enable_combined_kernels() -> None:
    from torch._inductor.scheduler import ForeachKernelSchedulerNode
    from torch._inductor.scheduler import Scheduler as Real

    before = ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels
    try:
        assert FusionOptions().compiler_options() == {}
        assert FusionOptions(combine_kernels=True).compiler_options() == {"combo_kernels": True}
        assert ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels is group_kernels
    finally:
        ForeachKernelSchedulerNode.set_group_algorithm_for_combo_kernels(before)
    assert hasattr(Real, "_get_unmet_dep_nodes")
