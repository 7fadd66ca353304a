"""Steps in fewer launches compute what the others do."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn.layers import BinaryConv2d, fit, scaled_early
from lcrbnn.methods import METHODS
from lcrbnn.models import network
from lcrbnn.retention.frozen import frozen_statistics
from lcrbnn.train.fused_norm import FusedNorm2d, fused_norms
from lcrbnn.train.kept_clip import KeptClip, kept_clips
from lcrbnn.train.lean import TOGETHER, Lean, groups
from lcrbnn.train.mean_pool import MeanPool2d, mean_pools
from tests.kernels.interpreted import run_interpreted


@pytest.mark.parametrize("name", METHODS)
def test_a_scale_may_be_multiplied_into_the_weight(name: str) -> None:
    torch.manual_seed(0)
    layer = BinaryConv2d(4, 6, 3, padding=1, method=name).double()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    fit(nn.Sequential(layer), x)  # some methods size themselves by their input
    layer.eval()
    found = []
    for early in (False, True):
        layer.zero_grad()
        given = x.clone().requires_grad_()
        if early:
            with scaled_early(layer):
                y = layer(given)
        else:
            y = layer(given)
        y.square().sum().backward()
        found.append([y.detach(), given.grad, *(p.grad for p in layer.parameters())])
    for late, early in zip(*found, strict=True):
        assert (late is None) == (early is None)
        assert late is None or torch.allclose(late, early, rtol=1e-9, atol=1e-9)


def test_what_the_compiler_sees_is_put_back() -> None:
    net = network("resnet8-double", "irnet", image=8)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    kinds = [type(module) for module in net.modules()]
    with suppress(KeyError), Lean(norms=True, clips=True, scales=True).on(net, "bfloat16"):
        assert any(isinstance(module, KeptClip) for module in net.modules())
        assert any(isinstance(module, FusedNorm2d) for module in net.modules())
        assert all(layer.scales_early for layer in net.modules() if isinstance(layer, BinaryConv2d))
        raise KeyError
    assert [type(module) for module in net.modules()] == kinds
    assert not any(layer.scales_early for layer in net.modules() if isinstance(layer, BinaryConv2d))
    assert before.keys() == net.state_dict().keys()
    for precision in ("float32", "float16"):
        with Lean(norms=True, scales=True).on(net, precision):
            assert not any(layer.scales_early for layer in net.modules() if isinstance(layer, BinaryConv2d))


def test_a_pool_to_one_pixel_is_a_mean_and_others_are_left_alone() -> None:
    pools = nn.ModuleList([nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d((1, 1)), nn.AdaptiveAvgPool2d(2)])
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    plain = [pool(x) for pool in pools]
    with mean_pools(pools):
        assert [type(pool) is MeanPool2d for pool in pools] == [True, True, False]
        assert all(torch.allclose(pool(x), y, atol=1e-14) for pool, y in zip(pools, plain, strict=True))
    assert all(type(pool) is nn.AdaptiveAvgPool2d for pool in pools)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (-0.5, 2.0)])
def test_a_hardtanh_that_goes_back_by_its_result_is_the_same(dtype: torch.dtype, bounds: tuple[float, float]) -> None:
    odd = torch.tensor([*bounds, 0.0, -0.0, torch.inf, -torch.inf])
    near = [torch.nextafter(torch.tensor(at), torch.tensor(to)) for at in bounds for to in (-9.0, 9.0)]
    x = torch.cat([odd, torch.stack(near), torch.linspace(-3, 3, 101), torch.tensor([torch.nan])]).to(dtype)
    g = torch.randn(len(x)).to(dtype)
    clip, found = nn.Hardtanh(*bounds), []
    for kept in (False, True):
        given = x.clone().requires_grad_()
        with kept_clips(clip) if kept else nullcontext():
            assert type(clip) is (KeptClip if kept else nn.Hardtanh)
            y = clip(given)
            y.backward(g)
        assert given.grad is not None
        assert y.dtype == given.grad.dtype == dtype
        assert y[-1].isnan()  # a bad number stays one; where its gradient goes, torch itself is of two minds
        found.append((y.detach()[:-1], given.grad[:-1]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_norms_that_the_kernels_cannot_do_are_left_alone() -> None:
    odd = [nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, momentum=None), nn.BatchNorm1d(4)]
    odd.append(nn.BatchNorm2d(4, track_running_stats=False))
    with fused_norms(nn.Sequential(*odd)):
        assert not any(isinstance(norm, FusedNorm2d) for norm in odd)


def gradients(net: nn.Module, images: Tensor, lean: Lean, backend: str) -> tuple[list[Tensor], list[Tensor]]:
    """Of all parameters, and the running statistics, after two passes of a compiled network."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: F.cross_entropy(net(x), torch.arange(len(x))), fullgraph=True, backend=backend)
    net.zero_grad()
    for _ in range(2):
        with lean.on(net, "float32"):
            loss = compiled(images)
        loss.backward()
    return [p.grad for p in net.parameters()], [b.clone() for b in net.buffers() if b.is_floating_point()]


def compared() -> dict[str, Any]:
    outcomes = []
    both = Lean(norms=True, clips=True)
    for lean, backend in ((Lean(), "aot_eager"), (both, "aot_eager"), (both, "inductor")):
        torch.manual_seed(0)
        net = network("resnet8-double", "bireal", image=8).to(memory_format=torch.channels_last)
        images = torch.randn(6, 3, 8, 8).contiguous(memory_format=torch.channels_last)
        outcomes.append(gradients(net, images, lean, backend))
    found: dict[str, Any] = {}
    for name, outcome in zip(("aot_eager", "inductor"), outcomes[1:], strict=True):
        pairs = [pair for kinds in zip(outcomes[0], outcome, strict=True) for pair in zip(*kinds, strict=True)]
        errors = [float((a - b).abs().max() / a.abs().max().clamp_min(1e-6)) for a, b in pairs]
        found[name] = [max(errors), len(errors), outcome[1][1][:2].tolist()]
    return found


@pytest.mark.slow  # a network is compiled twice, with kernels that are interpreted
def test_a_compiled_network_with_fused_norms_and_clips_has_the_gradients_and_statistics_of_the_plain_one() -> None:
    for backend, (error, count, variance) in run_interpreted(compared).items():
        assert error < 1e-3, backend  # a sign near 0 would make it far larger
        assert count > 20
        assert variance != [1.0, 1.0]


def twice() -> dict[str, Any]:
    """Two passes in one graph, the second with frozen statistics: how often they moved, plain and fused."""
    found: dict[str, Any] = {}
    for name, lean in (("plain", Lean()), ("fused", Lean(norms=True))):
        torch._dynamo.reset()
        norm = nn.BatchNorm2d(4)
        x = torch.arange(256.0).reshape(8, 4, 2, 4).contiguous(memory_format=torch.channels_last)

        def passes(x: Tensor, norm: nn.Module = norm) -> Tensor:
            y = norm(x)
            with frozen_statistics(norm):
                return y.sum() + norm(2 * x).sum()

        with lean.on(norm, "float32"):
            torch.compile(passes, fullgraph=True, backend="aot_eager")(x)
        found[name] = norm.running_mean.tolist()
    return found


def test_frozen_statistics_stay_where_they_are() -> None:
    found = run_interpreted(twice)
    assert found["fused"] == pytest.approx(found["plain"])


class Node:
    """A kernel that waits for others."""

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


def test_kernels_that_nobody_waits_for_share_a_launch_at_the_end() -> None:
    weights = [Node(f"weight {i}") for i in range(3)]
    chain = [Node("layer 0", weights[0])]
    sums, rest = [], []
    for i in range(1, 6):  # as the way back: a layer after the other, and a weight's gradient beside each, in two parts
        chain.append(Node(f"layer {i}", chain[-1]))
        sums.append(Node(f"sum {i}", chain[-1]))
        rest.append(Node(f"rest {i}", sums[-1]))
    found = groups(
        Scheduler([*weights, chain[0], *(n for row in zip(chain[1:], sums, rest, strict=True) for n in row)])
    )
    assert weights in found  # that wait for nothing
    assert sums in found
    assert rest in found
    for some in found:
        assert not any(need in some for node in some for need in node.needs)


def test_groups_are_of_one_device_not_of_a_cpu_and_not_too_large() -> None:
    many = [Node(f"{i}", device=("cuda:0", "cuda:1", "cpu")[i % 3]) for i in range(3 * (TOGETHER + 1))]
    found = groups(Scheduler(many))
    assert sorted(map(len, found)) == [1, 1, TOGETHER, TOGETHER]
    assert all(len({node.device for node in some}) == 1 for some in found)
    assert not any(node.device.type == "cpu" for some in found for node in some)


def test_the_compiler_is_told() -> None:
    from torch._inductor.scheduler import ForeachKernelSchedulerNode
    from torch._inductor.scheduler import Scheduler as Real

    before = ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels
    try:
        assert Lean().tell_compiler() == {}
        assert Lean(together=True).tell_compiler() == {"combo_kernels": True}
        assert ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels is groups
    finally:
        ForeachKernelSchedulerNode.set_group_algorithm_for_combo_kernels(before)
    assert hasattr(Real, "_get_unmet_dep_nodes")
