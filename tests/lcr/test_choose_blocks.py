"""The automatic choice of blocks and layers in networks that are not of this package."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import Retention, binarize
from lcrbnn.errors import InputError
from lcrbnn.lcr.choose_blocks import LcrModules, choose_lcr_modules

EXAMPLE = torch.zeros(2, 3, 16, 16)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(self.body(x) + x)


class StagedNet(nn.Module):
    """Stages of blocks, registered in another order than they run, and a block that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.late = nn.Sequential(Residual(8), Residual(8))
        self.early = nn.Sequential(Residual(8))
        self.unused = Residual(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.late(self.early(self.stem(x))).mean((2, 3)))


class PairBlock(nn.Module):
    """Takes and returns two maps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.conv(maps[0]), maps[1]


class Wrapper(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class PairNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pair, self.single = nn.Conv2d(3, 8, 3), PairBlock(), Residual(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.single(self.pair((x, x))[0]).mean((2, 3)))


class RepeatingNet(nn.Module):
    """Calls its first block again after the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first, self.second, self.head = nn.Conv2d(3, 8, 3), Residual(8), Residual(8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(self.second(self.first(self.stem(x)))).mean((2, 3)))


def make_chain() -> nn.Module:
    def unit(cin: int, cout: int) -> list[nn.Module]:
        return [nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.Hardtanh()]

    features = nn.Sequential(*unit(3, 8), *unit(8, 8), *unit(8, 8))
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def make_units() -> nn.Module:
    def unit(cin: int, cout: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.Hardtanh())

    return nn.Sequential(unit(3, 8), unit(8, 8), unit(8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


CASES: dict[str, tuple[nn.Module, LcrModules]] = {
    "stages": (StagedNet(), LcrModules(blocks=["early.0", "late.0", "late.1"])),
    "wrapper": (Wrapper(StagedNet()), LcrModules(blocks=["network.early.0", "network.late.0", "network.late.1"])),
    "chain": (make_chain(), LcrModules(layers=["0.3", "0.6"])),
    "sequential units": (make_units(), LcrModules(blocks=["1", "2"])),
    "a block that is called twice": (RepeatingNet(), LcrModules(blocks=["second", "first"])),
    "pairs of maps": (PairNet(), LcrModules(blocks=["single"])),
}


@pytest.mark.parametrize("case", CASES)
def test_the_chosen_modules_are_the_blocks_and_work_in_a_retention(case: str) -> None:
    network, expected = CASES[case]
    binarize(network, "irnet")
    modules = choose_lcr_modules(network, "blocks", EXAMPLE)
    assert modules == expected
    torch.manual_seed(0)
    with Retention(network, blocks=modules.blocks, layers=modules.layers, lcr_weight=1.0) as retention:
        network(torch.randn(4, 3, 16, 16))
        assert retention.loss() > 0
    assert all(not module._forward_hooks for module in network.modules())


def test_the_granularity_layers_selects_all_binary_layers_in_forward_order() -> None:
    network = binarize(StagedNet(), "irnet")
    assert choose_lcr_modules(network, "layers", EXAMPLE) == LcrModules(
        layers=["early.0.body.0", "late.0.body.0", "late.1.body.0"]
    )


def test_stages_must_be_named() -> None:
    with pytest.raises(InputError, match="granularity stages is only for networks of this package"):
        choose_lcr_modules(binarize(StagedNet(), "irnet"), "stages", EXAMPLE)


def test_a_network_without_feature_maps_is_rejected() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), Wrapper(nn.Identity()), nn.Flatten(), nn.Linear(8 * 14 * 14, 5))
    with pytest.raises(InputError, match="has no block with binary layers"):
        choose_lcr_modules(network, "blocks", EXAMPLE)


def test_the_choice_changes_neither_the_mode_nor_the_statistics() -> None:
    network = binarize(StagedNet(), "irnet")
    before = {name: value.clone() for name, value in network.state_dict().items()}
    choose_lcr_modules(network, "blocks", EXAMPLE)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
