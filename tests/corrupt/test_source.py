from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lcrbnn.corrupt.blur import draw_angle, draw_moves
from lcrbnn.corrupt.digital import draw_elastic
from lcrbnn.corrupt.noise import _cumulated, draw_counts, draw_impulses, draw_normal
from lcrbnn.corrupt.source import _STEP, Source, _scrambled
from lcrbnn.corrupt.spatter import draw_liquid
from lcrbnn.corrupt.weather import draw_plasma, draw_snow

ROWS = torch.arange(200)


def test_the_bits_are_those_of_splitmix64() -> None:
    """The first numbers of the published generator from the seed 1234567."""
    counter = torch.arange(1, 6) * _STEP + 1234567
    unsigned = [value % 2**64 for value in _scrambled(counter).tolist()]
    assert unsigned == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_draws_do_not_depend_on_the_batch() -> None:
    whole = Source("a", ROWS)
    first, second = whole.uniform(3, 4), whole.normal(5)
    for rows in (ROWS[7:9], ROWS[[150, 3]]):
        part = Source("a", rows)
        assert torch.equal(part.uniform(3, 4), first[rows])
        assert torch.equal(part.normal(5), second[rows])


def test_images_purposes_and_later_draws_have_numbers_of_their_own() -> None:
    source = Source("a", ROWS)
    all_bits = torch.cat([source.bits(50), source.bits(50), Source("b", ROWS).bits(50)])
    assert len(all_bits.unique()) == all_bits.numel()


def test_uniform_numbers_are_uniform_and_never_one() -> None:
    u = Source("u", ROWS).uniform(1000)
    assert u.min() >= 0
    assert u.max() < 1
    shares = torch.histc(u, 20, 0, 1) / u.numel()
    assert (shares - 0.05).abs().max() < 0.002  # nine deviations
    neighbours = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    images = torch.corrcoef(torch.stack([u[:-1].flatten(), u[1:].flatten()]))[0, 1]
    assert max(abs(neighbours), abs(images)) < 0.01


def test_normal_numbers_have_the_moments_and_tails_of_a_normal_distribution() -> None:
    x = Source("n", ROWS).normal(1001)
    assert x.shape == (200, 1001)
    moments = [x.mean(), x.square().mean() - 1, x.pow(3).mean(), x.pow(4).mean() - 3]
    assert all(abs(m) < limit for m, limit in zip(moments, (0.01, 0.015, 0.04, 0.1), strict=True))
    assert abs((x.abs() > 1.959964).double().mean() - 0.05) < 0.003


def test_whole_numbers_leave_out_the_upper_end() -> None:
    found = Source("w", ROWS).whole(-2, 2, 100).unique(return_counts=True)
    assert found[0].tolist() == [-2, -1, 0, 1]
    assert (found[1] - 5000).abs().max() < 400


def test_counts_of_photons_are_poisson_whatever_the_pixel() -> None:
    images = torch.tensor([0, 1, 40, 255], dtype=torch.uint8).view(1, 1, 4, 1).expand(50, 3, 4, 400)
    for photons in (3, 50, 500):
        (counts,) = draw_counts(Source("p", torch.arange(50)), images, photons)
        for i, pixel in enumerate((0, 1, 40, 255)):
            rate, seen = pixel / 255 * photons, counts[:, :, i].double()
            assert abs(seen.mean() - rate) < 6 * (rate / seen.numel()) ** 0.5 + 1e-12
            assert abs(seen.var() - rate) < 0.05 * rate + 0.02 * rate**0.5 + 1e-12
            none = (seen == 0).double().mean().item()
            assert abs(none - 2.718281828459045**-rate) < 0.01


def test_the_list_of_distributions_rises_and_ends_each_at_the_next_pixel() -> None:
    for photons in (3, 500):
        table, width = _cumulated(photons)
        rows = table.view(256, width)
        assert (rows.diff(dim=1) >= 0).all()
        assert torch.equal(rows[:, -1], torch.arange(1, 257, dtype=torch.float64))
        assert (rows[:, width // 2 :][0] == 1).all()


def test_salt_and_pepper_are_as_frequent_as_was_asked() -> None:
    (found,) = draw_impulses(Source("i", ROWS), torch.zeros(200, 3, 32, 32), 0.07)
    assert abs((found == 1).double().mean() - 0.035) < 0.002
    assert abs((found == -1).double().mean() - 0.035) < 0.002


IMAGES = torch.zeros(200, 3, 16, 16, dtype=torch.uint8)


def even(drawn: Tensor, low: float, high: float) -> None:
    """Each from low to high, and all of that."""
    assert low <= drawn.min() < low + 0.05 * (high - low)
    assert high - 0.05 * (high - low) < drawn.max() <= high
    assert drawn.double().mean() == pytest.approx((low + high) / 2, abs=0.1 * (high - low))


def test_angles_moves_and_fields_are_drawn_over_the_published_ranges() -> None:
    (angle,) = draw_angle(Source("m", ROWS), IMAGES, (10, 3))
    even(angle, -45, 45)
    (moves,) = draw_moves(Source("g", ROWS), IMAGES, (0.7, 2, 3))
    assert moves.shape == (200, 3, 2, 16, 16)
    assert moves.unique().tolist() == [-2, -1, 0, 1]
    points, field = draw_elastic(Source("e", ROWS), IMAGES, (488.0, 170.0, 24.4))
    even(points, -24.4, 24.4)
    even(field, -1, 1)
    (levels,) = draw_plasma(Source("f", ROWS), IMAGES, (0.2, 3.0))
    assert [level.shape for level in levels] == [(200, 3, k, k) for k in (1, 2, 4, 8)]
    even(levels[-1], 0, 1)
    assert levels[-1][0].unique().numel() == 3 * 8 * 8


def test_noise_flakes_and_liquid_have_the_mean_and_deviation_of_their_severity() -> None:
    flakes, fall = draw_snow(Source("s", ROWS), IMAGES, (0.55, 0.3, 4.0, 0.9, 12.0, 8.0, 0.7))
    even(fall, -135, -45)
    (liquid,) = draw_liquid(Source("l", ROWS), IMAGES, (0.65, 0.4, 4.0, 0.69, 0.6, 0))
    (noise,) = draw_normal(Source("n", ROWS), IMAGES, 0.08)
    for drawn, mean, deviation in ((flakes, 0.55, 0.3), (liquid, 0.65, 0.4), (noise, 0.0, 0.08)):
        assert drawn.mean() == pytest.approx(mean, abs=0.01)
        assert drawn.std() == pytest.approx(deviation, rel=0.02)
