"""The capture and the loss trace under torch.compile as one graph, and give what the plain step gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.layers import binary_layers
from lcrbnn.retention.capture import Point, maps_at
from tests.retention.foreign import BLOCKS, Foreign

# torch's compiler uses pieces that torch has deprecated, and so warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

IMAGES, LABELS = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch._dynamo.reset()


def make(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    if name == "foreign":
        return Foreign(), {"blocks": BLOCKS}
    return lcrbnn.network("resnet8-double", name, in_channels=1), {}


def gradients(model: nn.Module) -> list[Tensor]:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return grads


# dorefa has several levels, rbnn standardises, xnor++ has a spatial scale: between them every kind of layer code.
@pytest.mark.parametrize("name", ["irnet", "dorefa", "rbnn", "xnor++", "foreign"])
def test_a_whole_step_is_one_graph_with_the_same_gradients(name: str) -> None:
    model, settings = make(name)
    retention = Retention(model, weight=10.0, **settings)

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss()

    plain = step(IMAGES)
    plain.backward()
    expected = gradients(model)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(IMAGES)
    compiled.backward()
    torch.testing.assert_close(compiled, plain)
    for got, want in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_with_a_plain_loss_gives_the_same_gradients() -> None:
    model, _ = make("irnet")
    retention = Retention(model, weight=10.0)
    (F.cross_entropy(model(IMAGES), LABELS) + retention.loss()).backward()
    expected = gradients(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    (F.cross_entropy(compiled(IMAGES), LABELS) + retention.loss()).backward()
    for got, want in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_lambda_zero_compiles_and_keeps_its_gradients() -> None:
    model, _ = make("irnet")
    retention = Retention(model, weight=0.0)

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss()

    step(IMAGES).backward()
    expected = gradients(model)
    torch.compile(step, fullgraph=True, backend="aot_eager")(IMAGES).backward()
    got = gradients(model)
    assert sum(float(g.abs().sum()) for g in got) > 0
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_schedule_and_a_ramp_move_without_compiling_again() -> None:
    model, _ = make("irnet")
    retention = Retention(model)
    graphs = 0

    def counting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    def step(images: Tensor, weight: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss(weight)

    compiled = torch.compile(step, fullgraph=True, backend=counting)
    losses = []
    for epoch in range(3):
        lcrbnn.advance(model, epoch / 3)
        loss = compiled(IMAGES, torch.tensor(epoch * 100.0))
        loss.backward()
        losses.append(loss.item())
    assert graphs == 1
    assert len(set(losses)) == 3


@pytest.mark.slow  # half a minute: the C++ backend compiles every fused piece; nothing smaller shows that it can
def test_the_default_compiler_gives_the_same_loss_and_gradients() -> None:
    model, _ = make("irnet")
    retention = Retention(model, weight=10.0)

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss()

    plain = step(IMAGES)
    plain.backward()
    expected = gradients(model)
    compiled = torch.compile(step, fullgraph=True)(IMAGES)
    compiled.backward()
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
    for got, want in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def compiled_gradients(weight: float | None, *, compiled: bool = True, **settings: Any) -> list[Tensor]:
    """Of a step of a fresh network; the model is compiled, the loss is not."""
    model, _ = make("irnet")
    called = torch.compile(model, backend="aot_eager") if compiled else model
    retention = None if weight is None else Retention(called, weight=weight, **settings)
    loss = F.cross_entropy(called(IMAGES), LABELS)
    (loss if retention is None else loss + retention.loss()).backward()
    if retention is not None:
        retention.close()
    return gradients(model)


def test_a_graph_of_a_network_that_was_watched_in_another_way_is_not_taken() -> None:
    """torch.compile does not check that a module has no hooks; one graph serves networks that are alike."""
    ways: list[tuple[float | None, dict[str, Any]]] = [
        (None, {}),
        (0.0, {}),
        (10.0, {}),
        (10.0, {"maps": "real", "reference": "teacher", "teacher": make("irnet")[0]}),
        (10.0, {"blocks": ["layer3.0"]}),
        (10.0, {}),
        (None, {}),
    ]
    expected = [compiled_gradients(weight, compiled=False, **settings) for weight, settings in ways]
    for (weight, settings), wanted in zip(ways, expected, strict=True):
        for got, want in zip(compiled_gradients(weight, **settings), wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_hooks_that_came_and_went_leave_a_graph_as_it_was() -> None:
    """A run without retention is looked at between epochs: its step is not compiled again."""
    model, _ = make("irnet")
    counter = torch._dynamo.testing.CompileCounter()
    called = torch.compile(model, backend=counter)
    called(IMAGES)
    maps_at(model, [Point("layer1", "in")], IMAGES, signs=True)
    called(IMAGES)
    assert counter.frame_count == 1


def test_a_compiled_model_can_be_watched_again() -> None:
    model, _ = make("irnet")
    called = torch.compile(model, backend="aot_eager")
    seen = []
    for _ in range(2):
        retention = Retention(called, weight=10.0)
        called(IMAGES)
        seen.append(retention.loss().item())
        retention.close()
        called(IMAGES)
    assert seen[0] == pytest.approx(seen[1], rel=1e-3)  # batch norms have moved
    assert all(layer.watched == "" for _, layer in binary_layers(model))
