from __future__ import annotations

import torch
from torch import Tensor

from lcrbnn.nn.kernels.batch_norm import (
    backward_coefficients,
    forward_statistics,
    make_arrival_counters,
    supports_batch_norm,
)
from tests.nn.kernels.interpreted import assert_interpreted_within_bounds, run_interpreted
from tools.gpu_kernels import check_norms, to_channels_last


def test_kernels_agree_with_float64() -> None:
    assert_interpreted_within_bounds(check_norms)


def measure_errors_with_large_mean() -> dict[str, float]:
    """Return the error of the deviation for a mean of 1000 deviations, with one program and with many."""
    torch.manual_seed(0)
    errors = {}
    for shape in ((2, 16, 3, 3), (70, 16, 9, 80)):
        x = to_channels_last(torch.randn(shape) + 1000)
        statistics = forward_statistics(
            x,
            torch.ones(16),
            torch.zeros(16),
            torch.zeros(16),
            torch.ones(16),
            0.0,
            0.1,
            make_arrival_counters(16, x.device),
        )
        deviation = x.double().std(dim=(0, 2, 3), correction=0)
        errors[str(shape)] = float((1 / statistics[3] - deviation).abs().max())
    return errors


def test_a_large_mean_causes_no_cancellation() -> None:
    for case, error in run_interpreted(measure_errors_with_large_mean).items():
        assert error < 1e-4, case


def list_supported_inputs() -> dict[str, bool]:
    x = torch.zeros(4, 8, 5, 5)
    return {
        "channels last": supports_batch_norm(to_channels_last(x)),
        "channels first": supports_batch_norm(x),
        "one row": supports_batch_norm(to_channels_last(x[:1, :, :1, :1])),
        "a table": supports_batch_norm(x[:, :, 0, 0]),
        "float64": supports_batch_norm(to_channels_last(x.double())),
    }


def test_supports_batch_norm_accepts_only_large_channels_last_feature_maps() -> None:
    assert run_interpreted(list_supported_inputs) == {
        "channels last": True,
        "channels first": False,
        "one row": False,
        "a table": False,
        "float64": False,
    }
    assert not supports_batch_norm(to_channels_last(torch.zeros(4, 8, 5, 5)))  # on a CPU without interpretation


def test_fake_tensors_have_the_right_shapes() -> None:
    x = to_channels_last(torch.zeros(2, 5, 3, 3))
    mean, variance = torch.zeros(5), torch.ones(5)
    arguments = (x, mean, variance, mean.clone(), variance.clone(), 1e-5, 0.1, make_arrival_counters(5, x.device))
    with torch._subclasses.FakeTensorMode() as fake:
        fake_arguments = [fake.from_tensor(t) if isinstance(t, Tensor) else t for t in arguments]
        statistics = forward_statistics(*fake_arguments)
        assert (statistics.shape, statistics.dtype) == ((4, 5), torch.float32)
        coefficients = backward_coefficients(fake_arguments[0], fake_arguments[0], statistics, fake_arguments[-1])
        assert (coefficients.shape, coefficients.dtype) == ((4, 5), torch.float32)
