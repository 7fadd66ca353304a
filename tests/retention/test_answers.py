"""What a newcomer's first tries are answered with: names, order, shapes, maps of one sign."""

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
from tests.retention.helpers import IMAGES, hooks, small


class Plain(nn.Module):
    """Two binary convolutions, each behind an activation; the flat end is a block too."""

    def __init__(self, act: Callable[[Tensor], Tensor] = F.hardtanh) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(n, 8, 3, padding=1) for n in (1, 8, 8))
        self.tail, self.fc, self.act = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(8, 2), act
        lcrbnn.binarize(self, "bnn", skip=["a", "fc"])

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.tail(self.act(self.c(self.act(self.b(self.act(self.a(x))))))))


def run(model: nn.Module, *args: Any, **settings: Any) -> Retention:
    retention = Retention(model, *args, **settings)
    model(IMAGES[:16])
    retention.loss()
    return retention


# ---------------------------------------------------------------------------------------------------------------
# Maps.
@pytest.mark.parametrize("matrix", ["batch", "channel"])
def test_maps_that_cannot_be_compared_are_named_with_a_way_out(matrix: str) -> None:
    sentence = (
        r"the input of 'tail' has shape \(16, 8, 8, 8\) and the output of 'tail' \(16, 8\).*"
        "name a module before the pooling or flattening"
    )
    with pytest.raises(InputError, match=sentence):
        run(Plain(), blocks=["b", "tail"], matrix=matrix)
    run(Plain(), blocks=["b", "tail"], matrix="square")  # reads the map behind a block only


def test_the_teachers_maps_are_named_as_its_own() -> None:
    teacher = Plain()
    with pytest.raises(InputError, match="of the teacher: the input of 'tail'"):
        run(Plain(), "official", blocks=["b", "c"], teacher=teacher, teacher_blocks=["b", "tail"])


def test_a_map_without_samples_is_refused_in_every_form() -> None:
    class Summed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sum((1, 2, 3))

    model = nn.Sequential(nn.Conv2d(1, 2, 3), Summed())
    with pytest.raises(InputError, match=r"the output of '1' has shape \(16,\)"):
        run(model, blocks=["1"])


def test_maps_of_one_sign_are_told_once() -> None:
    model = Plain(F.relu)
    retention = Retention(model, blocks=["b", "c"])
    model(IMAGES[:16])
    with pytest.warns(UserWarning, match=r"each map at the input of 'b', the input of 'c' has one sign only"):
        retention.loss()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(IMAGES[:16])
        retention.loss()


@pytest.mark.parametrize("act", [F.hardtanh, torch.tanh, lambda x: x])
def test_maps_of_both_signs_are_not_warned_of(act: Callable[[Tensor], Tensor]) -> None:
    run(Plain(act), blocks=["b", "c"])  # warnings are errors here


def test_nothing_is_said_of_maps_that_stay_real_or_are_tiny() -> None:
    model = Plain(F.relu)
    run(model, "official", blocks=["b", "c"], teacher=Plain(F.relu))
    tiny = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), lcrbnn.BinaryLinear(2, 2, method="bnn"))
    retention = Retention(tiny, blocks=["2"])
    tiny(torch.ones(1, 4))
    retention.loss()


# ---------------------------------------------------------------------------------------------------------------
# A loop's end.
def test_it_closes_at_the_end_of_a_with_statement() -> None:
    model = small()
    with Retention(model) as retention:
        model(IMAGES[:16])
        assert retention.loss() > 0
    assert hooks(model) == 0
    with pytest.raises(InputError, match="closed"):
        retention.loss()
    with pytest.raises(ZeroDivisionError), Retention(model):
        raise ZeroDivisionError
    assert hooks(model) == 0


# ---------------------------------------------------------------------------------------------------------------
# Names, their order, their number.
def test_what_is_inside_a_binary_layer_is_not_proposed() -> None:
    with pytest.raises(InputError) as caught:
        Retention(small(), blocks=["layer1.0.conv9"])
    assert "binarizer" not in str(caught.value)
    assert "layer1.0.conv1" in str(caught.value)
    Retention(small(), layers=["layer1.0.conv1.input_binarizer", "pool"])  # whoever knows them may


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (lambda m: [m.layer1], "blocks is a list of names, and holds a module: write 'layer1'"),
        (lambda m: m.layer1, "blocks is a list of names, and is a module: write 'layer1'"),
        (lambda m: ["layer1", nn.ReLU()], "blocks is a list of names, and holds a module, a ReLU"),
        (lambda m: ["layer1", "layer2", "layer1"], "blocks names 'layer1' twice"),
    ],
)
def test_names_are_names_and_each_comes_once(given: Callable[[Any], Any], sentence: str) -> None:
    model = small()
    with pytest.raises(InputError, match=sentence) as caught:
        Retention(model, blocks=given(model))
    assert "\n" not in str(caught.value)


def test_a_layer_is_named_once_and_the_teachers_blocks_are_names() -> None:
    with pytest.raises(InputError, match="layers names 'pool' twice"):
        Retention(small(), layers=["layer1", "pool", "pool"])
    teacher = small(None)
    with pytest.raises(InputError, match="teacher_blocks is a list of names, and holds a module: write 'layer1'"):
        Retention(small(), blocks=["layer1"], reference="teacher", teacher=teacher, teacher_blocks=[teacher.layer1])


@pytest.mark.parametrize("settings", [{"blocks": ["c", "b"]}, {"layers": ["c", "b"]}])
def test_another_order_than_the_networks_is_refused(settings: dict[str, list[str]]) -> None:
    model = Plain()
    retention = Retention(model, **settings)
    for _ in range(2):
        model(IMAGES[:16])
        with pytest.raises(InputError, match=r"in another order than the network goes through: \['c', 'b'\]"):
            retention.loss()


def test_blocks_inside_one_another_are_ordered_by_where_they_end() -> None:
    run(small(), blocks=["layer1.0", "layer1", "layer2"])


def test_more_last_matrices_than_there_are_are_refused() -> None:
    with pytest.raises(InputError, match="last=9 matrices are asked for, and there are 3"):
        Retention(small(), last=9)
    assert len(Retention(small(), last=3).spans) == 3
