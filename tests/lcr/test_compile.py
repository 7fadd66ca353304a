"""Capture and loss under torch.compile: one graph, and the same values as without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.lcr.capture import ModulePort, capture_maps
from lcrbnn.nn.model_hooks import iter_binary_layers
from tests.lcr.user_network import BLOCKS, UserNetwork

# torch.compile itself uses deprecated parts of PyTorch.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

IMAGES, LABELS = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 10


@pytest.fixture(autouse=True)
def _reset_compiler() -> None:
    torch._dynamo.reset()


def make_model(name: str) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    if name == "foreign":
        return UserNetwork(), {"blocks": BLOCKS}
    return lcrbnn.create_model("resnet8-double", name, in_channels=1), {}


def take_gradients(model: nn.Module) -> list[Tensor]:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    return grads


# dorefa has several levels, rbnn standardizes weights, xnor++ has a spatial scale: together they use all layer code.
@pytest.mark.parametrize("name", ["irnet", "dorefa", "rbnn", "xnor++", "foreign"])
def test_training_step_compiles_to_one_graph_with_the_same_gradients(name: str) -> None:
    model, settings = make_model(name)
    retention = Retention(model, lcr_weight=10.0, **settings)

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss()

    plain = step(IMAGES)
    plain.backward()
    expected = take_gradients(model)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")(IMAGES)
    compiled.backward()
    torch.testing.assert_close(compiled, plain)
    for got, want in zip(take_gradients(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_a_compiled_model_with_a_plain_loss_gives_the_same_gradients() -> None:
    model, _ = make_model("irnet")
    retention = Retention(model, lcr_weight=10.0)
    (F.cross_entropy(model(IMAGES), LABELS) + retention.loss()).backward()
    expected = take_gradients(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    (F.cross_entropy(compiled(IMAGES), LABELS) + retention.loss()).backward()
    for got, want in zip(take_gradients(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_step_with_lcr_weight_0_compiles() -> None:
    model, _ = make_model("irnet")
    retention = Retention(model, lcr_weight=0.0)

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss()

    step(IMAGES).backward()
    expected = take_gradients(model)
    torch.compile(step, fullgraph=True, backend="aot_eager")(IMAGES).backward()
    got = take_gradients(model)
    assert sum(float(g.abs().sum()) for g in got) > 0
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_changes_of_progress_and_lcr_weight_do_not_recompile() -> None:
    model, _ = make_model("irnet")
    retention = Retention(model)
    num_graphs = 0

    def count_graphs(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        nonlocal num_graphs
        num_graphs += 1
        return graph.forward

    def step(images: Tensor, lcr_weight: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss(lcr_weight)

    compiled = torch.compile(step, fullgraph=True, backend=count_graphs)
    losses = []
    for epoch in range(3):
        lcrbnn.set_progress(model, epoch / 3)
        loss = compiled(IMAGES, torch.tensor(epoch * 100.0))
        loss.backward()
        losses.append(loss.item())
    assert num_graphs == 1
    assert len(set(losses)) == 3


@pytest.mark.slow  # takes half a minute, because the C++ backend compiles every fused kernel
def test_the_default_compiler_gives_the_same_loss_and_gradients() -> None:
    model, _ = make_model("irnet")
    retention = Retention(model, lcr_weight=10.0)

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), LABELS) + retention.loss()

    plain = step(IMAGES)
    plain.backward()
    expected = take_gradients(model)
    compiled = torch.compile(step, fullgraph=True)(IMAGES)
    compiled.backward()
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)
    for got, want in zip(take_gradients(model), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def compute_gradients(lcr_weight: float | None, *, compile_model: bool = True, **settings: Any) -> list[Tensor]:
    """Return the gradients of one step of a new model. The model is compiled, the loss is not."""
    model, _ = make_model("irnet")
    called = torch.compile(model, backend="aot_eager") if compile_model else model
    retention = None if lcr_weight is None else Retention(called, lcr_weight=lcr_weight, **settings)
    loss = F.cross_entropy(called(IMAGES), LABELS)
    (loss if retention is None else loss + retention.loss()).backward()
    if retention is not None:
        retention.close()
    return take_gradients(model)


def test_compiled_graph_is_not_reused_for_other_hooks() -> None:
    """torch.compile does not check for hooks, and it reuses the graph of a similar model."""
    retention_settings: list[tuple[float | None, dict[str, Any]]] = [
        (None, {}),
        (0.0, {}),
        (10.0, {}),
        (10.0, {"activations": "real", "reference": "teacher", "teacher": make_model("irnet")[0]}),
        (10.0, {"blocks": ["layer3.0"]}),
        (10.0, {}),
        (None, {}),
    ]
    expected = [compute_gradients(weight, compile_model=False, **settings) for weight, settings in retention_settings]
    for (weight, settings), expected_gradients in zip(retention_settings, expected, strict=True):
        for got, want in zip(compute_gradients(weight, **settings), expected_gradients, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_temporary_hooks_do_not_recompile() -> None:
    """A run without LCR is measured between epochs. Its step must not be compiled again."""
    model, _ = make_model("irnet")
    counter = torch._dynamo.testing.CompileCounter()
    called = torch.compile(model, backend=counter)
    called(IMAGES)
    capture_maps(model, [ModulePort("layer1", "in")], IMAGES, capture_binary=True)
    called(IMAGES)
    assert counter.frame_count == 1


def test_compiled_model_can_get_a_second_retention() -> None:
    model, _ = make_model("irnet")
    called = torch.compile(model, backend="aot_eager")
    losses = []
    for _ in range(2):
        retention = Retention(called, lcr_weight=10.0)
        called(IMAGES)
        losses.append(retention.loss().item())
        retention.close()
        called(IMAGES)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)  # batch norms have moved
    assert all(layer.capture_marks == "" for _, layer in iter_binary_layers(model))
