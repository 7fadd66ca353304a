from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn.evaluation.analysis.cost import count_cost
from lcrbnn.nn.models.blocks import Maxout
from paper.tables.cost_table import TABLE, compare_costs, matches_printed_digits


def test_macs_match_hand_counts() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),  # 36 weights at 6 x 6 positions
        lcrbnn.BinaryConv2d(4, 8, 3, stride=2, padding=1, groups=2, method="bnn"),  # 8 * 2 * 9 weights at 3 x 3
        lcrbnn.BinaryConv2d(8, 8, 1, method=lcrbnn.get_method("bnn", "1/32")),  # 64 at 3 x 3
        nn.Flatten(),
        nn.Linear(72, 5),  # 360 weights, 5 biases
    )
    cost = count_cost(net, (1, 6, 6))
    assert cost.real_macs == 36 * 36 + 360
    assert cost.binary_macs == 144 * 9
    assert cost.mixed_macs == 64 * 9
    assert cost.binary_weights == 144 + 64
    assert cost.parameters == 36 + 144 + 64 + 365


def test_counting_does_not_change_the_network() -> None:
    net = lcrbnn.create_model("resnet8-double", "irnet")
    net.layer1.eval()
    state_before = {k: v.clone() for k, v in net.state_dict().items()}
    count_cost(net, (3, 8, 8))
    assert net.training
    assert not net.layer1.training
    assert all(torch.equal(v, net.state_dict()[k]) for k, v in state_before.items())
    assert not any(m._forward_hooks for m in net.modules())


def test_a_linear_layer_is_counted_for_every_token() -> None:
    cost = count_cost(nn.Sequential(nn.Linear(6, 5)), (7, 6))  # 7 tokens of 6 numbers
    assert cost.real_macs == 7 * 6 * 5


def test_non_square_pool_windows_are_counted() -> None:
    net = nn.Sequential(nn.MaxPool2d((2, 3)), nn.AvgPool2d((1, 2)))
    assert count_cost(net, (2, 4, 12)).element_wise == (6 - 1) * 2 * 2 * 4 + 2 * 2 * 2 * 2


class AddNumberThenTensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x + 1) + x


def test_adding_a_python_number_is_not_counted() -> None:
    assert count_cost(AddNumberThenTensor(), (2, 3, 3)).element_wise == 18  # only the second addition counts


class SkipAndShift(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4)
        self.shift = nn.Parameter(torch.zeros(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(self.norm(x) + x, (1, 1)) + self.shift


def test_element_wise_operations_match_hand_counts() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),  # 4 x 6 x 6 outputs; the bias counts 0
        SkipAndShift(),  # 2 + 1 per number, then 1 per number of 4 x 6 x 8
        nn.ReLU(),  # 2 per number
        nn.MaxPool2d(3, 3),  # 8 per output of 4 x 2 x 2
        lcrbnn.BinaryConv2d(4, 6, 1, method="irnet"),  # 16 signs, 6 x 2 x 2 scaled outputs
        nn.PReLU(6),  # 2 per number
        Maxout(6),  # 2 per number
        lcrbnn.BinaryConv2d(6, 6, 1, method=lcrbnn.get_method("bnn", "1/32")),  # no sign and no scale
        nn.AvgPool2d(2),  # 4 per output, 6 outputs
        nn.AdaptiveAvgPool2d(1),  # 1 per output
        nn.Flatten(),
        nn.Linear(6, 5),
    )
    cost = count_cost(net, (1, 6, 6))
    assert cost.element_wise == 3 * 144 + 192 + 2 * 192 + 8 * 16 + 16 + 24 + 4 * 24 + 4 * 6 + 6
    assert cost.real_macs == 36 * 36 + 30
    assert cost.flops == cost.real_macs + 36 * 4 + cost.element_wise
    assert cost.ops == cost.real_macs + 36 * 4 + 24 * 4 / 64
    assert cost.ops_all == cost.ops + cost.element_wise
    # 1 bit per binary weight, 32 per real number, including the statistics of batch norms
    assert cost.stored_bits == (24 + 36) + 32 * (36 + 4 + 8 + 4 + 8 + 6 + 12 + 35)


def test_activations_of_several_bits_multiply_the_bit_operations() -> None:
    for bits in (1, 2, 4):
        layer = lcrbnn.BinaryConv2d(4, 8, 3, method=lcrbnn.get_method("dorefa", f"1/{bits}"))
        cost = count_cost(nn.Sequential(layer), (4, 5, 5))
        assert cost.binary_macs == 288 * 9
        assert cost.bit_operations == bits * cost.binary_macs
        assert cost.element_wise == bits * 100 + 72


def test_sample_means_are_counted() -> None:
    reference, *operations = (
        count_cost(nn.Sequential(lcrbnn.BinaryConv2d(4, 8, 3, method=lcrbnn.get_method(name))), (4, 5, 5)).element_wise
        for name in ("recu", "rbnn", "siman", "horq")
    )
    assert reference == 100 + 72  # 1 sign per input, 1 scale per output
    assert operations == [reference + 100, reference + 100, 100 * (2 + 2) + 72]
    real, standardized = (
        count_cost(
            nn.Sequential(lcrbnn.BinaryConv2d(4, 8, 3, method=lcrbnn.get_method(name, "1/32"))), (4, 5, 5)
        ).element_wise
        for name in ("recu", "rbnn")
    )
    assert (real, standardized) == (72, 4 * 100 + 72)


def test_costs_match_the_table_of_the_paper() -> None:
    costs_by_title = {row.title: cost for row, cost in compare_costs()}
    assert {costs_by_title[title].bit_operations for title in ("BNN", "XNOR-Net", "ProxyBNN")} == {1_695_547_392}
    assert costs_by_title["IR-Net"].bit_operations == costs_by_title["Ours"].bit_operations == 1_676_279_808
    assert (costs_by_title["Full precision"].flops, costs_by_title["Full precision"].bit_operations) == (
        1_826_040_320,
        0,
    )
    for row in TABLE:
        cost = costs_by_title[row.title]
        assert matches_printed_digits(row.bops, cost.bit_operations)
        assert matches_printed_digits(row.flops, cost.flops) == (
            row.title == "Full precision"
        )  # the other printed FLOPs cannot be derived


@pytest.mark.parametrize(
    ("printed", "counted", "matches"),
    [(1.695e9, 1_695_999_999, True), (1.695e9, 1_696_000_000, False), (1.544e8, 154_399_999, False), (0, 1, False)],
)
def test_a_printed_figure_is_truncated(printed: float, counted: int, matches: bool) -> None:
    assert matches_printed_digits(printed, counted) is matches


def test_resnet20_has_known_costs() -> None:
    cost = count_cost(lcrbnn.create_model("resnet20", "irnet"), (3, 32, 32))
    assert (cost.bit_operations, cost.real_macs, round(cost.ops)) == (40_108_032, 443_008, 1_069_696)


@pytest.mark.parametrize(("name", "side", "ratio"), [("resnet18-double-imagenet", 224, 11.0), ("resnet20", 32, 21.8)])
def test_the_compression_ratio_of_a_whole_network(name: str, side: int, ratio: float) -> None:
    binary, real = (
        count_cost(lcrbnn.create_model(name, method), (3, side, side)).stored_bits for method in ("irnet", None)
    )
    assert real / binary == pytest.approx(ratio, abs=0.05)
