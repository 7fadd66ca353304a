"""What ReCU's halves can do beyond its paper: learned thresholds, and a first step with real weights."""

from __future__ import annotations

import pytest
import torch

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.methods.recu import RecuActivation


def test_a_shift_moves_the_threshold_and_learns() -> None:
    binarizer = RecuActivation(2, shift=True).double()
    assert binarizer.shift is not None
    with torch.no_grad():
        binarizer.shift.copy_(torch.tensor([0.5, -1.0]))
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).expand(1, 2, 3, 9)
    wanted = torch.where(x + torch.tensor([0.5, -1.0]).reshape(2, 1, 1) >= 0, 1.0, -1.0)
    for mode in (True, False):  # the deviation is no part of the sign
        assert torch.equal(binarizer.train(mode)(x).value(), wanted)
    binarizer.train()(x).value()[0, 0].sum().backward()
    assert binarizer.shift.grad is not None
    assert binarizer.shift.grad[0] > 0  # whoever is moved up turns to +1


def test_without_a_shift_nothing_is_learned() -> None:
    assert list(RecuActivation(3).parameters()) == []
    one, other = (lcrbnn.network("resnet20", "recu", shift=shift) for shift in (True, False))
    assert len(list(one.parameters())) == len(list(other.parameters())) + 18
    with pytest.raises(InputError, match=r"^the shift of recu is true or false; got 3$"):
        lcrbnn.network("resnet20", "recu", shift=3)


def test_its_first_step_has_real_weights() -> None:
    assert lcrbnn.method("recu").bit_widths == ["1/1", "1/32", "32/1"]
    torch.manual_seed(0)
    layer = lcrbnn.network("resnet20", "recu", bits="32/1").get_submodule("layer1.0.conv1")
    signs = torch.randn(1, 16, 4, 4).sign()
    latent = layer.weight_binarizer.latent(layer.weight)  # standardised, of variance 8, its tails cut
    assert latent.unique().numel() > 1000
    torch.testing.assert_close(layer.eval()(signs), torch.nn.functional.conv2d(signs, latent, padding=1))
