"""Features of ReCU beyond its paper: learned thresholds, and a first training step with real weights."""

from __future__ import annotations

import pytest
import torch

import lcrbnn
from lcrbnn.errors import InputError
from lcrbnn.nn.methods.recu import RecuActivation


def test_recu_shift_moves_the_threshold_and_has_a_gradient() -> None:
    binarizer = RecuActivation(2, shift=True).double()
    assert binarizer.shift is not None
    with torch.no_grad():
        binarizer.shift.copy_(torch.tensor([0.5, -1.0]))
    x = torch.linspace(-2, 2, 9, dtype=torch.float64).expand(1, 2, 3, 9)
    expected = torch.where(x + torch.tensor([0.5, -1.0]).reshape(2, 1, 1) >= 0, 1.0, -1.0)
    for mode in (True, False):  # the deviation does not change the sign
        assert torch.equal(binarizer.train(mode)(x).dequantize(), expected)
    binarizer.train()(x).dequantize()[0, 0].sum().backward()
    assert binarizer.shift.grad is not None
    assert binarizer.shift.grad[0] > 0  # a larger shift makes more signs +1


def test_recu_has_no_parameters_without_shift() -> None:
    assert list(RecuActivation(3).parameters()) == []
    with_shift, without_shift = (lcrbnn.create_model("resnet20", "recu", shift=shift) for shift in (True, False))
    assert len(list(with_shift.parameters())) == len(list(without_shift.parameters())) + 18
    with pytest.raises(InputError, match=r"^the shift of recu must be true or false; got 3$"):
        lcrbnn.create_model("resnet20", "recu", shift=3)


def test_recu_with_32_1_multiplies_by_real_weights() -> None:
    assert lcrbnn.get_method("recu").supported_bit_widths == ["1/1", "1/32", "32/1"]
    torch.manual_seed(0)
    layer = lcrbnn.create_model("resnet20", "recu", bits="32/1").get_submodule("layer1.0.conv1")
    signs = torch.randn(1, 16, 4, 4).sign()
    latent = layer.weight_binarizer.pre_sign_weight(layer.weight)  # standardized to variance 8 and clamped
    assert latent.unique().numel() > 1000
    torch.testing.assert_close(layer.eval()(signs), torch.nn.functional.conv2d(signs, latent, padding=1))
