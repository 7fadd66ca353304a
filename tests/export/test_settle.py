"""Folding changes no sign: cases made to sit on the edge, and one that nothing can settle."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lcrbnn
from lcrbnn import BinaryConv2d, InputError
from lcrbnn.engine.reference import signs, values
from lcrbnn.export import export_model, settle
from lcrbnn.export.binary import after_sums
from lcrbnn.export.draft import Draft, Step
from lcrbnn.export.fold import fold, round_once
from lcrbnn.export.rules import follow
from lcrbnn.export.watch import last, watched
from lcrbnn.layers import fit
from tests.export.nets import CHOICES, input_of, stirred

WIDTH = 256
MEANS = ("rbnn", "siman")  # the threshold is the mean of each sample: no fixed edge to land on
SIGNED = [m.name for m in CHOICES if m.chosen_bits == 1 and m.name not in MEANS]


def on_the_edge(method: str, pool: bool, **options: object) -> nn.Sequential:
    """Two binary layers with a batch norm between: in each channel some sum lands on the second layer's threshold."""
    torch.manual_seed(1)
    between = [nn.MaxPool2d(2)] if pool else []
    net = nn.Sequential(
        BinaryConv2d(8, WIDTH, 3, padding=1, method=lcrbnn.method(method, **options)),
        *between,
        nn.BatchNorm2d(WIDTH),
        nn.Hardtanh(),
        BinaryConv2d(WIDTH, 4, 1, method=lcrbnn.method(method, **options)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    fit(net, (1, 8, 6, 6))
    stirred(net, torch.randn(4, 8, 6, 6))
    with torch.no_grad():
        sums = torch.randint(-9, 9, (WIDTH,)) * 2.0
        scaled = after_sums(net[0])(sums.reshape(1, -1, 1, 1).expand(1, -1, 6, 6).contiguous())[..., :1, :1]
        norm = net[-5]
        norm.bias.zero_()
        norm.bias.copy_(-norm(scaled).reshape(-1))
        if method == "reactnet":
            norm.bias.sub_(net[-3].input_binarizer.shift)
        if method == "abc-net":
            norm.bias.sub_(net[-3].input_binarizer.shift - 0.5)
        if method == "dorefa":
            norm.bias.add_(0.5)
    return net.eval()


def drafted(net: nn.Module, shape: tuple[int, int, int]) -> list[Step]:
    """The steps of a network, folded and rounded, with no sign looked at."""
    draft = Draft(shape)
    with torch.no_grad():
        follow(draft, "", net, draft.image)
    steps = fold(draft.steps)
    round_once(steps)
    return steps


def first_path(steps: list[Step]) -> settle.Path:
    return next(settle._paths([steps[0]], settle.users(steps)))


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("method", SIGNED)
def test_signs_on_the_edge_are_settled(method: str, pool: bool) -> None:
    net = on_the_edge(method, pool)
    steps = drafted(net, (6, 6, 8))
    path = first_path(steps)
    before = {k: steps[path.knob].keys[k].copy() for k in "ab"}
    bad = settle.wrong(path)
    assert bad.sum() > WIDTH / 100  # rounding alone does change signs
    settle.settle(steps)
    assert not settle.wrong(path).any()
    after = path.steps[path.knob].keys
    assert not np.array_equal(before["b"], after["b"])
    assert np.array_equal(before["b"][~bad], after["b"][~bad])
    for key in "ab":
        np.testing.assert_allclose(after[key], before[key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("method", SIGNED)
def test_the_second_layers_signs_are_pytorchs_from_the_first_layers_input_on(method: str, pool: bool) -> None:
    net = on_the_edge(method, pool)
    images = torch.randn(64, 8, 6, 6)
    model = export_model(net, input_of(images, 4), "edge")
    with watched(net) as seen:
        net(images)
    second = [node for node in model.nodes if node.op == "bconv"][1]
    own = last(seen.signs["4" if pool else "3"])
    assert np.array_equal(signs(second, values(model, last(images))[second.inputs[0]]), own)


def test_reachable_sums_are_all_those_that_occur() -> None:
    for padding, value, count in ((0, 0.0, 10), (1, 0.0, 19), (1, 1.0, 10)):
        layer = BinaryConv2d(1, 1, 3, padding=padding, method="bnn", padding_value=value)
        net = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        found = settle.reachable(drafted(net, (5, 5, 1))[0])
        assert len(found) == count
        assert abs(found).max() == 9
        images = torch.randn(500, 1, 5, 5)
        with watched(net) as seen:
            net(images)
        assert set(seen.sums["0"].unique().tolist()) <= set(found.tolist())


def test_what_cannot_be_settled_is_refused_by_name() -> None:
    steps = drafted(on_the_edge("bnn", False), (6, 6, 8))

    def folded(x: Tensor) -> Tensor:  # no line has two signs on either side and another between
        return x.abs() - 0.5

    steps[0].sources.append(folded)
    with pytest.raises(
        InputError, match=r"layer '0 \+ 1' cannot be exported: no numbers near those of channel \d+ give"
    ):
        settle.settle(steps)


def test_a_scale_a_position_is_settled_at_every_position() -> None:
    for case in (2, 3, 4):
        net = on_the_edge("xnor++", False, case=case)
        path = first_path(drafted(net, (6, 6, 8)))
        assert path.steps[0].keys["spatial"].shape == (6, 6, WIDTH if case == 2 else 1)
        sums = settle.reachable(path.steps[0])
        assert settle.wanted(path, sums).shape == (len(sums) * 36, WIDTH)


def test_a_small_chunk_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = first_path(drafted(on_the_edge("irnet", False), (6, 6, 8)))
    whole = settle.wrong(path)
    monkeypatch.setattr(settle, "CHUNK", 5 * WIDTH)
    assert np.array_equal(settle.wrong(path), whole)
