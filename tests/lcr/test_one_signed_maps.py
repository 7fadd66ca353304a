"""A binary feature map with only one sign has no ratio, no loss and no gradient."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import lcrbnn
from lcrbnn import Retention
from lcrbnn.lcr.lcr_variants import LcrVariant
from lcrbnn.lcr.retention_loss import retention_loss
from lcrbnn.lcr.sigma_ratios import format_ratio, mean_ratio_gap
from lcrbnn.lcr.spectral_norm import draw_start_vector
from tests.lcr.helpers import IMAGES


class Block(nn.Module):
    """A binary convolution and a batch norm, after which a shift is added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = lcrbnn.BinaryConv2d(8, 8, 3, padding=1, method="bnn"), nn.BatchNorm2d(8)
        self.shift = 0.0

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(self.norm(self.conv(x))) + self.shift


def make_network(*shifts: float) -> nn.Sequential:
    """Return a network of blocks with these shifts. After a shift of 9 all signs are +1."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), *(Block() for _ in shifts))
    for block, shift in zip(list(model)[1:], shifts, strict=True):
        block.shift = shift
    return model


@contextmanager
def warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def compute_loss(model: nn.Module, **settings: object) -> tuple[Tensor, Retention]:
    names = [str(i) for i in range(1, len(model))]
    retention = Retention(model, blocks=names, lcr_weight=2.0, **settings)
    model(IMAGES[:16])
    with warnings_ignored():
        return retention.loss(), retention


def test_one_block_with_one_sign_is_left_out() -> None:
    model = make_network(0.0, 9.0, 0.0)
    loss, retention = compute_loss(model)
    assert retention.sigma_ratios.isnan().tolist() == [False, True, False]
    # The slow reference: the loss of each other block alone, with its weight beta^(k - L).
    expected = 0.0
    for k in (1, 3):
        alone = Retention(model, blocks=[str(k)], lcr_weight=2.0, beta=1.0)
        model(IMAGES[:16])
        with warnings_ignored():
            expected += alone.loss().item() * 4.0 ** (k - 4)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert loss.item() > 0
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("variant", "matrix"), [("default", "gram"), ("paper", "cross-gram"), ("default", "per-sample")]
)
def test_blocks_with_one_sign_have_exactly_no_loss_and_no_gradient(variant: str, matrix: str) -> None:
    model = make_network(9.0, 9.0)
    with torch.no_grad():
        model[0].bias.add_(9)
    names = ["1", "2"]
    for normalization in ("none", "l2", "centered-l2"):
        retention = Retention(model, variant, blocks=names, matrix=matrix, normalization=normalization, lcr_weight=5.0)
        model.zero_grad()
        model(IMAGES[:16])
        with pytest.warns(UserWarning, match="The sigma ratios of '1', '2' are NaN"):
            loss = retention.loss()
        assert loss.item() == 0
        assert retention.lcr_loss.item() == 0
        assert retention.sigma_ratios.isnan().all()
        loss.backward()
        assert all(p.grad is None or (p.grad == 0).all() for p in model.parameters())
        retention.close()


def test_the_front_map_counts_only_where_the_matrix_uses_it() -> None:
    for matrix, expected in (("gram", [True, False]), ("cross-gram", [True, True]), ("per-sample", [True, True])):
        _, retention = compute_loss(make_network(9.0, 0.0), matrix=matrix)
        assert retention.sigma_ratios.isnan().tolist() == expected


def test_ratios_follow_maps_that_gain_or_lose_a_sign() -> None:
    model = make_network(0.0, 0.0)
    loss, retention = compute_loss(model)
    both_signs = retention.sigma_ratios.clone()
    model[2].shift = 9.0
    model(IMAGES[:16])
    changed_loss = retention.loss()  # a warning is only given at the first loss
    assert retention.sigma_ratios.isnan().tolist() == [False, True]
    assert changed_loss < loss
    model[2].shift = 0.0
    model(IMAGES[:16])
    retention.loss()
    torch.testing.assert_close(retention.sigma_ratios, both_signs)


def test_one_negative_number_is_enough_for_a_ratio() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Identity())
    images = torch.ones(4, 1, 8, 8)
    retention = Retention(model, blocks=["1"])
    with torch.no_grad():
        model[0].weight.fill_(1)
        model[0].bias.fill_(1)
    for value, has_ratio in ((1.0, False), (-100.0, True)):
        images[3, 0, 7, 7] = value
        model(images)
        with warnings_ignored():
            retention.loss()
        assert retention.sigma_ratios.isnan().any() != has_ratio


def test_real_maps_and_binary_weights_keep_their_ratios() -> None:
    model = make_network(9.0, 9.0)
    teacher = copy.deepcopy(model)
    retention = Retention(model, "official", blocks=["1", "2"], teacher=teacher)
    model(IMAGES[:16])
    retention.loss()
    assert retention.sigma_ratios.isfinite().all()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_loss_leaves_out_the_blocks_of_the_last_eager_loss() -> None:
    model = make_network(0.0, 9.0, 0.0)
    eager_loss, retention = compute_loss(model)

    @torch.compile(backend="eager", fullgraph=True)
    def compute_compiled_loss(images: Tensor) -> Tensor:
        model(images)
        return retention.loss()

    torch.testing.assert_close(compute_compiled_loss(IMAGES[:16]), eager_loss)
    assert retention.sigma_ratios.isnan().tolist() == [False, True, False]
    torch._dynamo.reset()


def test_an_overflow_is_not_blamed_on_a_block_that_is_left_out() -> None:
    _, retention = compute_loss(make_network(9.0, 0.0, 0.0))
    retention.sigma_ratios = torch.tensor([math.nan, 1.0, math.inf])
    assert "'3'" in retention.describe_overflow()


def test_excluded_pairs_of_the_pure_function() -> None:
    torch.manual_seed(0)
    pairs = [(torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)) for _ in range(3)]
    references = [(torch.randn(4, 6), torch.randn(4, 6)) for _ in range(3)]
    variant = LcrVariant()
    start = draw_start_vector(16, 0)
    terms = [retention_loss(pairs, references, variant, start, excluded={0, 1, 2} - {i}).loss.item() for i in range(3)]
    complete = retention_loss(pairs, references, variant, start)
    assert sum(terms) == pytest.approx(complete.loss.item())
    result = retention_loss(pairs, references, variant, start, excluded={1})
    assert result.loss.item() == pytest.approx(terms[0] + terms[2])
    result.loss.backward()
    assert pairs[0][1].grad.abs().sum() > 0
    assert pairs[1][1].grad is None
    assert result.sigma_ratios().isnan().tolist() == [False, True, False]
    torch.testing.assert_close(result.sigma_ratios()[[0, 2]], complete.sigma_ratios()[[0, 2]])


def test_means_and_texts_of_ratios() -> None:
    assert mean_ratio_gap([1.5, math.nan, 0.5]) == 0.5
    assert math.isnan(mean_ratio_gap([math.nan]))
    assert math.isnan(mean_ratio_gap([]))
    assert mean_ratio_gap([math.inf, 1]) == math.inf
    assert format_ratio(math.nan, ".2f") == "n/a"
    assert format_ratio(1.25, ".2f") == "1.25"
