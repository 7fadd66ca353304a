from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.analyze.cost import count
from lcrbnn.analyze.cost_paper import TABLE, agrees, paper_costs
from lcrbnn.models.blocks import Maxout


def test_a_network_counted_by_hand() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),  # 36 weights at 6 x 6 places
        lcrbnn.BinaryConv2d(4, 8, 3, stride=2, padding=1, groups=2, method="bnn"),  # 8 * 2 * 9 weights at 3 x 3
        lcrbnn.BinaryConv2d(8, 8, 1, method=lcrbnn.method("bnn", "1/32")),  # 64 at 3 x 3
        nn.Flatten(),
        nn.Linear(72, 5),  # 360 weights, 5 biases
    )
    cost = count(net, (1, 6, 6))
    assert cost.real_macs == 36 * 36 + 360
    assert cost.binary_macs == 144 * 9
    assert cost.mixed_macs == 64 * 9
    assert cost.binary_weights == 144 + 64
    assert cost.parameters == 36 + 144 + 64 + 365


def test_counting_leaves_the_network_as_it_was() -> None:
    net = lcrbnn.network("resnet8-double", "irnet")
    net.layer1.eval()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    count(net, (3, 8, 8))
    assert net.training
    assert not net.layer1.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in before.items())
    assert not any(m._forward_hooks for m in net.modules())


def test_a_linear_layer_takes_every_token() -> None:
    cost = count(nn.Sequential(nn.Linear(6, 5)), (7, 6))  # 7 tokens of 6 numbers
    assert cost.real_macs == 7 * 6 * 5


def test_windows_of_pools_need_not_be_square() -> None:
    net = nn.Sequential(nn.MaxPool2d((2, 3)), nn.AvgPool2d((1, 2)))
    assert count(net, (2, 4, 12)).element_wise == (6 - 1) * 2 * 2 * 4 + 2 * 2 * 2 * 2


class Raised(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1) + x


def test_a_number_that_is_added_to_a_map_is_no_map() -> None:
    assert count(Raised(), (2, 3, 3)).element_wise == 18  # of the second sum alone


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.shift = nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.norm(x) + x, (1, 1)) + self.shift


def test_element_wise_operations_counted_by_hand() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),  # 4 x 6 x 6; a bias counts nothing
        Skip(),  # 2 and 1 a number, then 1 a number of 4 x 6 x 8
        nn.ReLU(),  # 2 a number
        nn.MaxPool2d(3, 3),  # 8 an output of 4 x 2 x 2
        lcrbnn.BinaryConv2d(4, 6, 1, method="irnet"),  # 16 signs, 6 x 2 x 2 scaled
        nn.PReLU(6),  # 2 a number
        Maxout(6),  # 2 a number
        lcrbnn.BinaryConv2d(6, 6, 1, method=lcrbnn.method("bnn", "1/32")),  # no sign and no scale
        nn.AvgPool2d(2),  # 4 an output of 6
        nn.AdaptiveAvgPool2d(1),  # 1 an output
        nn.Flatten(),
        nn.Linear(6, 5),
    )
    cost = count(net, (1, 6, 6))
    assert cost.element_wise == 3 * 144 + 192 + 2 * 192 + 8 * 16 + 16 + 24 + 4 * 24 + 4 * 6 + 6
    assert cost.real_macs == 36 * 36 + 30
    assert cost.flops == cost.real_macs + 36 * 4 + cost.element_wise
    assert cost.ops == cost.real_macs + 36 * 4 + 24 * 4 / 64
    assert cost.ops_all == cost.ops + cost.element_wise
    # one bit a binary weight, 32 a real one, also for what a batch norm has measured
    assert cost.stored_bits == (24 + 36) + 32 * (36 + 4 + 8 + 4 + 8 + 6 + 12 + 35)


def test_a_few_bits_are_as_many_one_bit_operations() -> None:
    for bits in (1, 2, 4):
        layer = lcrbnn.BinaryConv2d(4, 8, 3, method=lcrbnn.method("dorefa", f"1/{bits}"))
        cost = count(nn.Sequential(layer), (4, 5, 5))
        assert cost.binary_macs == 288 * 9
        assert cost.bit_operations == bits * cost.binary_macs
        assert cost.element_wise == bits * 100 + 72


def test_what_is_summed_over_a_sample_is_counted() -> None:
    usual, *others = (
        count(nn.Sequential(lcrbnn.BinaryConv2d(4, 8, 3, method=lcrbnn.method(name))), (4, 5, 5)).element_wise
        for name in ("recu", "rbnn", "siman", "horq")
    )
    assert usual == 100 + 72  # a sign a number, a scale an output
    assert others == [usual + 100, usual + 100, 100 * (2 + 2) + 72]
    real, standardized = (
        count(nn.Sequential(lcrbnn.BinaryConv2d(4, 8, 3, method=lcrbnn.method(name, "1/32"))), (4, 5, 5)).element_wise
        for name in ("recu", "rbnn")
    )
    assert (real, standardized) == (72, 4 * 100 + 72)


def test_the_cost_table_of_the_paper() -> None:
    found = {row.title: cost for row, cost in paper_costs()}
    assert {found[title].bit_operations for title in ("BNN", "XNOR-Net", "ProxyBNN")} == {1_695_547_392}
    assert found["IR-Net"].bit_operations == found["Ours"].bit_operations == 1_676_279_808
    assert (found["Full precision"].flops, found["Full precision"].bit_operations) == (1_826_040_320, 0)
    for row in TABLE:
        cost = found[row.title]
        assert agrees(row.bops, cost.bit_operations)
        assert agrees(row.flops, cost.flops) == (row.title == "Full precision")  # the others are not derivable


@pytest.mark.parametrize(
    ("printed", "counted", "same"),
    [(1.695e9, 1_695_999_999, True), (1.695e9, 1_696_000_000, False), (1.544e8, 154_399_999, False), (0, 1, False)],
)
def test_a_printed_figure_is_cut_off_not_rounded(printed: float, counted: int, same: bool) -> None:
    assert agrees(printed, counted) is same


def test_facts_that_were_derived_elsewhere() -> None:
    cost = count(lcrbnn.network("resnet20", "irnet"), (3, 32, 32))
    assert (cost.bit_operations, cost.real_macs, round(cost.ops)) == (40_108_032, 443_008, 1_069_696)


@pytest.mark.parametrize(("name", "side", "times"), [("resnet18-double-imagenet", 224, 11.0), ("resnet20", 32, 21.8)])
def test_a_whole_network_shrinks_by_less_than_its_binary_layers(name: str, side: int, times: float) -> None:
    binary, real = (count(lcrbnn.network(name, method), (3, side, side)).stored_bits for method in ("irnet", None))
    assert real / binary == pytest.approx(times, abs=0.05)
