from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lcrbnn.evaluation.corruptions.blur import draw_angle, draw_glass_shifts
from lcrbnn.evaluation.corruptions.counter_random import _COUNTER_STEP, ImageRandom, _scramble_bits
from lcrbnn.evaluation.corruptions.digital import draw_elastic
from lcrbnn.evaluation.corruptions.noise import _cumulative_poisson, draw_impulses, draw_normal, draw_photon_counts
from lcrbnn.evaluation.corruptions.spatter import draw_liquid
from lcrbnn.evaluation.corruptions.weather import draw_plasma, draw_snow

INDICES = torch.arange(200)


def test_bits_equal_splitmix64() -> None:
    """The expected values are the first numbers of the published generator for seed 1234567."""
    counter = torch.arange(1, 6) * _COUNTER_STEP + 1234567
    unsigned = [value % 2**64 for value in _scramble_bits(counter).tolist()]
    assert unsigned == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_random_numbers_do_not_depend_on_the_batch() -> None:
    rng = ImageRandom("a", INDICES)
    first, second = rng.uniform(3, 4), rng.normal(5)
    for indices in (INDICES[7:9], INDICES[[150, 3]]):
        batch_rng = ImageRandom("a", indices)
        assert torch.equal(batch_rng.uniform(3, 4), first[indices])
        assert torch.equal(batch_rng.normal(5), second[indices])


def test_images_keys_and_later_draws_have_different_random_numbers() -> None:
    rng = ImageRandom("a", INDICES)
    all_bits = torch.cat([rng.random_bits(50), rng.random_bits(50), ImageRandom("b", INDICES).random_bits(50)])
    assert len(all_bits.unique()) == all_bits.numel()


def test_uniform_numbers_are_uniform_and_less_than_one() -> None:
    u = ImageRandom("u", INDICES).uniform(1000)
    assert u.min() >= 0
    assert u.max() < 1
    frequencies = torch.histc(u, 20, 0, 1) / u.numel()
    assert (frequencies - 0.05).abs().max() < 0.002  # nine standard deviations
    correlation_of_neighbours = torch.corrcoef(torch.stack([u[:, :-1].flatten(), u[:, 1:].flatten()]))[0, 1]
    correlation_of_images = torch.corrcoef(torch.stack([u[:-1].flatten(), u[1:].flatten()]))[0, 1]
    assert max(abs(correlation_of_neighbours), abs(correlation_of_images)) < 0.01


def test_normal_numbers_have_the_moments_and_tails_of_a_normal_distribution() -> None:
    x = ImageRandom("n", INDICES).normal(1001)
    assert x.shape == (200, 1001)
    moments = [x.mean(), x.square().mean() - 1, x.pow(3).mean(), x.pow(4).mean() - 3]
    assert all(abs(m) < limit for m, limit in zip(moments, (0.01, 0.015, 0.04, 0.1), strict=True))
    assert abs((x.abs() > 1.959964).double().mean() - 0.05) < 0.003


def test_integers_exclude_the_upper_end() -> None:
    values_and_counts = ImageRandom("w", INDICES).integers(-2, 2, 100).unique(return_counts=True)
    assert values_and_counts[0].tolist() == [-2, -1, 0, 1]
    assert (values_and_counts[1] - 5000).abs().max() < 400


def test_photon_counts_have_a_poisson_distribution_for_every_pixel_value() -> None:
    images = torch.tensor([0, 1, 40, 255], dtype=torch.uint8).view(1, 1, 4, 1).expand(50, 3, 4, 400)
    for photons in (3, 50, 500):
        (counts,) = draw_photon_counts(ImageRandom("p", torch.arange(50)), images, photons)
        for i, pixel in enumerate((0, 1, 40, 255)):
            rate, pixel_counts = pixel / 255 * photons, counts[:, :, i].double()
            assert abs(pixel_counts.mean() - rate) < 6 * (rate / pixel_counts.numel()) ** 0.5 + 1e-12
            assert abs(pixel_counts.var() - rate) < 0.05 * rate + 0.02 * rate**0.5 + 1e-12
            zero_frequency = (pixel_counts == 0).double().mean().item()
            assert abs(zero_frequency - 2.718281828459045**-rate) < 0.01


def test_the_table_of_poisson_distributions_is_sorted() -> None:
    for photons in (3, 500):
        table, counts_per_pixel = _cumulative_poisson(photons)
        rows = table.view(256, counts_per_pixel)
        assert (rows.diff(dim=1) >= 0).all()
        assert torch.equal(rows[:, -1], torch.arange(1, 257, dtype=torch.float64))
        assert (rows[:, counts_per_pixel // 2 :][0] == 1).all()


def test_salt_and_pepper_have_the_given_frequency() -> None:
    (impulses,) = draw_impulses(ImageRandom("i", INDICES), torch.zeros(200, 3, 32, 32), 0.07)
    assert abs((impulses == 1).double().mean() - 0.035) < 0.002
    assert abs((impulses == -1).double().mean() - 0.035) < 0.002


IMAGES = torch.zeros(200, 3, 16, 16, dtype=torch.uint8)


def check_uniform(numbers: Tensor, low: float, high: float) -> None:
    """Check that the numbers cover the range from low to high evenly."""
    assert low <= numbers.min() < low + 0.05 * (high - low)
    assert high - 0.05 * (high - low) < numbers.max() <= high
    assert numbers.double().mean() == pytest.approx((low + high) / 2, abs=0.1 * (high - low))


def test_angles_shifts_and_fields_cover_the_published_ranges() -> None:
    (angle,) = draw_angle(ImageRandom("m", INDICES), IMAGES, (10, 3))
    check_uniform(angle, -45, 45)
    (shifts,) = draw_glass_shifts(ImageRandom("g", INDICES), IMAGES, (0.7, 2, 3))
    assert shifts.shape == (200, 3, 2, 16, 16)
    assert shifts.unique().tolist() == [-2, -1, 0, 1]
    points, field = draw_elastic(ImageRandom("e", INDICES), IMAGES, (488.0, 170.0, 24.4))
    check_uniform(points, -24.4, 24.4)
    check_uniform(field, -1, 1)
    (levels,) = draw_plasma(ImageRandom("f", INDICES), IMAGES, (0.2, 3.0))
    assert [level.shape for level in levels] == [(200, 3, k, k) for k in (1, 2, 4, 8)]
    check_uniform(levels[-1], 0, 1)
    assert levels[-1][0].unique().numel() == 3 * 8 * 8


def test_noise_flakes_and_liquid_have_the_mean_and_std_of_their_severity() -> None:
    flakes, fall = draw_snow(ImageRandom("s", INDICES), IMAGES, (0.55, 0.3, 4.0, 0.9, 12.0, 8.0, 0.7))
    check_uniform(fall, -135, -45)
    (liquid,) = draw_liquid(ImageRandom("l", INDICES), IMAGES, (0.65, 0.4, 4.0, 0.69, 0.6, 0))
    (noise,) = draw_normal(ImageRandom("n", INDICES), IMAGES, 0.08)
    for numbers, mean, std in ((flakes, 0.55, 0.3), (liquid, 0.65, 0.4), (noise, 0.0, 0.08)):
        assert numbers.mean() == pytest.approx(mean, abs=0.01)
        assert numbers.std() == pytest.approx(std, rel=0.02)
