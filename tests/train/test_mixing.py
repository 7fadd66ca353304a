"""AugMix and its operations: against Pillow, against loops over pixels, and inside a step."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo
from PIL import Image, ImageOps
from torch import Tensor

from lcrbnn.data import DATASETS, Split
from lcrbnn.errors import InputError
from lcrbnn.train import Spec, mixing
from lcrbnn.train.augment import AUGMENT, crop_flip, draw
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import build
from lcrbnn.train.mixing import HOLE_NUMBERS, MIX_NUMBERS, hole, mix, two_in_a_row
from lcrbnn.train.objective import divergence, objective
from lcrbnn.train.operations import MAPS, OPERATIONS, TABLES, operate, warp
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep
from tests.train.helpers import small_run

CPU = torch.device("cpu")


def pictures(count: int, side: int = 32) -> Tensor:
    """Smooth and narrow in colour, so that interpolation and contrast have something to do; one is flat."""
    source = torch.Generator().manual_seed(3)
    rough = torch.rand(count, 3, side // 4, side // 4, generator=source)
    smooth = torch.nn.functional.interpolate(rough, size=(side, side), mode="bicubic").clamp(0, 1)
    images = (40 + 170 * smooth).to(torch.uint8)
    images[0] = 77
    return images


def one_kind(images: Tensor, name: str, strength: float, negative: bool) -> Tensor:
    n = len(images)
    which = torch.full((n,), OPERATIONS.index(name))
    return operate(images, which, torch.full((n,), strength), torch.full((n,), negative))


def with_pillow(image: np.ndarray, name: str, strength: float, negative: bool) -> np.ndarray:
    """As AugMix's published code calls Pillow."""
    picture = Image.fromarray(image.transpose(1, 2, 0))
    h, w = image.shape[1:]
    sign = -1 if negative else 1
    moved = sign * strength * 0.3 / 10
    affine = {
        "shear-x": (1, moved, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, moved, 1, 0),
        "translate-x": (1, 0, sign * int(strength * (w / 3) / 10), 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, sign * int(strength * (h / 3) / 10)),
    }
    if name in affine:
        made = picture.transform((w, h), Image.Transform.AFFINE, affine[name], Image.Resampling.BILINEAR)
    elif name == "rotate":
        made = picture.rotate(-sign * int(strength * 3), Image.Resampling.BILINEAR)
    else:
        made = {
            "identity": lambda: picture,
            "autocontrast": lambda: ImageOps.autocontrast(picture),
            "equalize": lambda: ImageOps.equalize(picture),
            "posterize": lambda: ImageOps.posterize(picture, 4 - int(strength * 4 / 10)),
            "solarize": lambda: ImageOps.solarize(picture, 256 - int(strength * 256 / 10)),
        }[name]()
    return np.asarray(made).transpose(2, 0, 1)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("strength", [0.1, 2.9, 7.3])
@pytest.mark.parametrize("negative", [False, True])
def test_an_operation_is_pillows_but_for_rounding(name: str, strength: float, negative: bool) -> None:
    images = pictures(6)
    ours = one_kind(images, name, strength, negative).numpy().astype(int)
    theirs = np.stack([with_pillow(one, name, strength, negative) for one in images.numpy()]).astype(int)
    off = np.abs(ours - theirs)
    if name in ("identity", "equalize", "posterize", "solarize", "translate-x", "translate-y"):
        assert off.max() == 0
    elif name == "autocontrast":
        assert off.max() <= 1
    else:  # a place within rounding of the border is black for one and not for the other
        assert np.mean(off > 1) < 0.002
        assert off.mean() < 0.6


def slow_warp(image: np.ndarray, numbers: list[float]) -> np.ndarray:
    """Pixel by pixel."""
    a, b, c, d, e, f = numbers
    channels, h, w = image.shape
    made = np.zeros_like(image)
    for y in range(h):
        for x in range(w):
            column, row = a * (x + 0.5) + b * (y + 0.5) + c, d * (x + 0.5) + e * (y + 0.5) + f
            if not (0 <= column < w and 0 <= row < h):
                continue
            left, top = math.floor(column - 0.5), math.floor(row - 0.5)
            for k in range(channels):
                value = 0.0
                for i, across in ((top, top + 1 - (row - 0.5)), (top + 1, row - 0.5 - top)):
                    for j, along in ((left, left + 1 - (column - 0.5)), (left + 1, column - 0.5 - left)):
                        value += across * along * image[k, min(max(i, 0), h - 1), min(max(j, 0), w - 1)]
                made[k, y, x] = math.floor(value + 0.5)
    return made


def test_a_warp_is_that_of_a_loop_over_the_pixels() -> None:
    images = pictures(12, 12)
    maps = torch.tensor([1.0, 0, 0, 0, 1, 0]) + torch.randn(12, 6) * torch.tensor([0.2, 0.2, 2, 0.2, 0.2, 2])
    ours = warp(images, maps).numpy().astype(int)
    theirs = np.stack([slow_warp(*pair) for pair in zip(images.numpy(), maps.tolist(), strict=True)])
    off = np.abs(ours - theirs)
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01  # a half that rounds the other way


def slow_mix(image: Tensor, numbers: list[float]) -> np.ndarray:
    """One image, chain by chain, with weights as in a Dirichlet distribution of 1."""
    share, rest = numbers[0], numbers[1:]
    chains, weights = [], []
    for i in range(3):
        weight, depth, *choices = rest[11 * i : 11 * (i + 1)]
        weights.append(-math.log(1 - weight))
        made = image[None]
        for step in range(1 + int(3 * depth)):
            kind, strength, sign = choices[3 * step : 3 * step + 3]
            name = [*MAPS, *TABLES][int(kind * 9)]
            made = one_kind(made, name, 0.1 + 2.9 * strength, sign >= 0.5)
        chains.append(made[0].numpy().astype(np.float64))
    mixed = sum(w / sum(weights) * chain for w, chain in zip(weights, chains, strict=True))
    return (1 - share) * image.numpy() + share * mixed


def test_a_mixture_is_that_of_a_loop_over_the_images() -> None:
    images = pictures(40)
    numbers = draw(2, 5, 40, MIX_NUMBERS).numbers
    ours = mix(images, numbers)
    assert ours.dtype == torch.float32
    for image, row, made in zip(images, numbers.tolist(), ours.numpy(), strict=True):
        assert np.abs(made - slow_mix(image, row)).max() < 1e-3


def test_two_in_a_row_and_their_strengths() -> None:
    images = pictures(10)
    numbers = draw(0, 0, 10, 6).numbers
    ours = two_in_a_row(images, numbers)
    for image, row, made in zip(images, numbers.tolist(), ours, strict=True):
        slow = image[None]
        for kind, strength, sign in (row[:3], row[3:]):
            slow = one_kind(slow, OPERATIONS[int(kind * 10)], 10 * strength, sign >= 0.5)
        assert torch.equal(made, slow[0])


def test_a_hole_is_half_as_wide_as_the_image_and_may_hang_over_its_border() -> None:
    images = torch.full((300, 3, 8, 12), 9, dtype=torch.uint8)
    numbers = draw(0, 1, 300, HOLE_NUMBERS).numbers
    made = hole(images, numbers)
    for (_, down, right), image in zip(numbers.tolist(), made, strict=True):
        expected = np.full((8, 12), 9)
        top, left = int(down * 8) - 2, int(right * 12) - 3
        for y in range(max(top, 0), min(top + 4, 8)):
            for x in range(max(left, 0), min(left + 6, 12)):
                expected[y, x] = 0
        assert all(np.array_equal(channel, expected) for channel in image.numpy())


@pytest.mark.parametrize("name", AUGMENT)
def test_still_draws_leave_the_images_as_they_are(name: str) -> None:
    images, how = pictures(5), AUGMENT[name]
    draws = draw(0, 0, 5, how.numbers)
    draws.still()
    assert torch.equal(how.apply(images, draws).float(), images.float().repeat(how.views, 1, 1, 1))


def test_views_are_the_crop_and_two_mixtures_of_it() -> None:
    images = pictures(7)
    draws = draw(1, 0, 7, AUGMENT["augmix-views"].numbers)
    crops = crop_flip(images, draws)
    first, second = (mix(crops, part) for part in draws.numbers.chunk(2, 1))
    assert torch.equal(AUGMENT["augmix-views"].apply(images, draws), torch.cat([crops.float(), first, second]))
    assert not torch.equal(first, second)


def test_the_crops_of_an_epoch_are_the_same_whatever_comes_after_them() -> None:
    for name, how in AUGMENT.items():
        assert all(torch.equal(a, b) for a, b in zip(draw(3, 4, 9)[:3], draw(3, 4, 9, how.numbers)[:3], strict=True)), (
            name
        )


def test_divergence_by_hand() -> None:
    logits = torch.randn(3, 4, 5)
    chances = logits.double().softmax(2).numpy()
    middle = chances.mean(0)
    wanted = np.mean([(p * np.log(p / middle)).sum(1).mean() for p in chances])
    assert divergence(logits).item() == pytest.approx(wanted, rel=1e-5)
    assert divergence(logits[:1].expand(3, -1, -1)).item() == pytest.approx(0, abs=1e-6)


SPEC = Spec(
    data="cifar10", model="resnet8-double", augment="augmix-views", consistency=12.0, batch=16, lr=0.1, drop_last=True
)


def seen() -> Batches:
    return Batches(Split(pictures(40, 16).numpy(), np.arange(40) % 10), DATASETS["cifar10"], CPU)


def test_the_loss_of_views_is_that_of_the_first_plus_their_divergence() -> None:
    parts = build(SPEC, CPU)
    batch = next(seen().epoch(0, 0, 16, SPEC.augment, 0, 2))
    assert len(batch.images) == 3 * len(batch.labels) == 48
    parts.model.eval()  # so that views do not share statistics
    outcome = objective(SPEC, parts, batch.images, batch.labels, 0.0)
    views = parts.model(batch.images).unflatten(0, (3, 16))
    plain = torch.nn.functional.cross_entropy(views[0], batch.labels)
    assert outcome.loss.item() == pytest.approx((plain + 12 * divergence(views)).item(), rel=1e-5)
    assert outcome.sums[2] == (views[0].argmax(1) == batch.labels).sum()
    assert outcome.sums[3] == 16


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch's compiler warns of itself
def test_the_compiled_step_mixes_as_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(mixing, "LONGEST", 1)  # one operation a chain: three compile twice as long
    monkeypatch.setitem(AUGMENT, SPEC.augment, AUGMENT[SPEC.augment]._replace(numbers=2 * (1 + 3 * 5)))
    found = []
    for kind in (EagerStep, FastStep):
        parts = build(SPEC, CPU)
        step = kind(SPEC, parts, seen())
        step.begin(0, 0, 0.0)
        step.take()
        step.check()
        found.append((step.sums, torch.cat([p.grad.flatten() for p in parts.names])))
    (sums, slow), (others, fast) = found
    assert others.tolist() == pytest.approx(sums.tolist(), rel=1e-5)
    assert (slow - fast).norm() < 1e-4 * slow.norm()


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="consistency needs several views of an image: augment augmix-views"):
        Spec(consistency=1.0, augment="augmix")
    with pytest.raises(InputError, match="augment augmix is for pixels of 256 levels, and these have 17"):
        small_run(tmp_path / "run", Spec(augment="augmix"))
    assert not (tmp_path / "run").exists()


def test_a_hole_is_cut_into_pixels_of_any_levels() -> None:
    assert AUGMENT["cutout"].levels is None
    assert AUGMENT["randaugment"].levels == AUGMENT["augmix"].levels == 256
