"""Errors and warnings of `Retention` for names, their order, shapes of maps, and maps with one sign."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.errors import InputError
from tests.lcr.helpers import IMAGES, count_hooks, make_small_model


class BinaryConvNet(nn.Module):
    """Two binary convolutions after activations. The pooling and flattening at the end is a block, too."""

    def __init__(self, act: Callable[[Tensor], Tensor] = F.hardtanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(n, 8, 3, padding=1) for n in (1, 8, 8))
        self.tail, self.fc, self.act = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(8, 2), act
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layers after F.relu
            lcrbnn.binarize(self, "bnn", skip=["a", "fc"], activation="keep", example=(1, 1, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.tail(self.act(self.c(self.act(self.b(self.act(self.a(x))))))))


def run_once(model: nn.Module, *args: Any, **settings: Any) -> Retention:
    retention = Retention(model, *args, **settings)
    model(IMAGES[:16])
    retention.loss()
    return retention


# ---------------------------------------------------------------------------------------------------------------
# Maps.
@pytest.mark.parametrize("matrix", ["cross-gram", "per-sample"])
def test_maps_that_cannot_be_compared_are_named(matrix: str) -> None:
    sentence = (
        r"the input of 'tail' has shape \(16, 8, 8, 8\) and the output of 'tail' has shape \(16, 8\).*"
        "name a module before the pooling or flattening"
    )
    with pytest.raises(InputError, match=sentence):
        run_once(BinaryConvNet(), blocks=["b", "tail"], matrix=matrix)
    run_once(BinaryConvNet(), blocks=["b", "tail"], matrix="gram")  # uses only the map after a block


def test_teacher_maps_that_cannot_be_compared_are_named() -> None:
    teacher = BinaryConvNet()
    with pytest.raises(InputError, match="of the teacher: the input of 'tail'"):
        run_once(BinaryConvNet(), "official", blocks=["b", "c"], teacher=teacher, teacher_blocks=["b", "tail"])


def test_map_with_one_dimension_is_rejected() -> None:
    class SumPerSample(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum((1, 2, 3))

    model = nn.Sequential(nn.Conv2d(1, 2, 3), SumPerSample())
    with pytest.raises(InputError, match=r"the output of '1' has shape \(16,\)"):
        run_once(model, blocks=["1"])


def test_maps_with_one_sign_give_one_warning() -> None:
    model = BinaryConvNet(F.relu)
    retention = Retention(model, blocks=["b", "c"])
    model(IMAGES[:16])
    with pytest.warns(UserWarning, match=r"the feature maps at 'b', 'c' have only one sign"):
        retention.loss()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(IMAGES[:16])
        retention.loss()


@pytest.mark.parametrize("act", [F.hardtanh, torch.tanh, lambda x: x])
def test_maps_with_both_signs_give_no_warning(act: Callable[[Tensor], Tensor]) -> None:
    run_once(BinaryConvNet(act), blocks=["b", "c"])  # pytest turns warnings into errors


def test_real_and_tiny_maps_give_no_warning() -> None:
    model = BinaryConvNet(F.relu)
    run_once(model, "official", blocks=["b", "c"], teacher=BinaryConvNet(F.relu))
    tiny = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), lcrbnn.BinaryLinear(2, 2, method="bnn"))
    retention = Retention(tiny, blocks=["2"])
    tiny(torch.ones(1, 4))
    retention.loss()


# ---------------------------------------------------------------------------------------------------------------
# The end of training.
def test_with_statement_removes_the_hooks() -> None:
    model = make_small_model()
    with Retention(model) as retention:
        model(IMAGES[:16])
        assert retention.loss() > 0
    assert count_hooks(model) == 0
    with pytest.raises(InputError, match="closed"):
        retention.loss()
    with pytest.raises(ZeroDivisionError), Retention(model):
        raise ZeroDivisionError
    assert count_hooks(model) == 0


# ---------------------------------------------------------------------------------------------------------------
# Names, their order and their number.
def test_error_lists_no_submodules_of_binary_layers() -> None:
    with pytest.raises(InputError) as caught:
        Retention(make_small_model(), blocks=["layer1.0.conv9"])
    assert "binarizer" not in str(caught.value)
    assert "layer1.0.conv1" in str(caught.value)
    Retention(make_small_model(), layers=["layer1.0.conv1.input_binarizer", "pool"])  # they can still be named


@pytest.mark.parametrize(
    ("make_blocks", "sentence"),
    [
        (lambda m: [m.layer1], "blocks must be a list of module names; it holds a module: write 'layer1'"),
        (lambda m: m.layer1, "blocks must be a list of module names; it is a module: write 'layer1'"),
        (lambda m: ["layer1", nn.ReLU()], "blocks must be a list of module names; it holds a module, a ReLU"),
        (lambda m: ["layer1", "layer2", "layer1"], "blocks must name each module once; 'layer1' is named twice"),
    ],
)
def test_blocks_must_be_a_list_of_different_names(make_blocks: Callable[[Any], Any], sentence: str) -> None:
    model = make_small_model()
    with pytest.raises(InputError, match=sentence) as caught:
        Retention(model, blocks=make_blocks(model))
    assert "\n" not in str(caught.value)


def test_layers_and_teacher_blocks_must_be_lists_of_different_names() -> None:
    with pytest.raises(InputError, match="layers must name each module once; 'pool' is named twice"):
        Retention(make_small_model(), layers=["layer1", "pool", "pool"])
    teacher = make_small_model(None)
    with pytest.raises(
        InputError, match="teacher_blocks must be a list of module names; it holds a module: write 'layer1'"
    ):
        Retention(
            make_small_model(), blocks=["layer1"], reference="teacher", teacher=teacher, teacher_blocks=[teacher.layer1]
        )


@pytest.mark.parametrize("settings", [{"blocks": ["c", "b"]}, {"layers": ["c", "b"]}])
def test_names_out_of_forward_order_are_rejected(settings: dict[str, list[str]]) -> None:
    model = BinaryConvNet()
    retention = Retention(model, **settings)
    for _ in range(2):
        model(IMAGES[:16])
        with pytest.raises(InputError, match=r"must have the order of the forward pass, .*; got \['c', 'b'\]"):
            retention.loss()


def test_nested_blocks_are_ordered_by_their_ends() -> None:
    run_once(make_small_model(), blocks=["layer1.0", "layer1", "layer2"])


def test_num_last_matrices_is_at_most_the_number_of_matrices() -> None:
    with pytest.raises(InputError, match="num_last_matrices must be at most the number of matrices, 3; got 9"):
        Retention(make_small_model(), num_last_matrices=9)
    assert len(Retention(make_small_model(), num_last_matrices=3).spans) == 3
