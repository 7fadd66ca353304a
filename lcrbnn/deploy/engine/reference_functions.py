"""Activation functions from a fixed sequence of float32 operations, so that every engine computes the same bits.

The operations are sums, products, quotients, comparisons and shifts of bits. IEEE 754 defines their results exactly,
while the exponential functions of C libraries and NumPy differ between systems. docs/format.md states the error of
each function. Products are rounded before they are added.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_F = np.float32

# Coefficients of (exp(r) − 1 − r) / r² for |r| ≤ ln(2) / 2, the lowest power first.
_EXP_COEFFICIENTS = (0.5, 0.16666667, 0.04166627, 0.008333264, 0.0013946105, 0.00019918373)
# Coefficients of (tanh(x) − x) / x³ as a polynomial in x², for |x| < 0.5625.
_TANH_COEFFICIENTS = (-0.3333331, 0.13332368, -0.0538281, 0.020967646, -0.0061222669)
# Coefficients of exp(x² / 2) · (1 − Φ(x)) / t as a polynomial in t = 1 / (1 + 0.3 x), for x ≥ 0, where Φ is the normal
# distribution function.
_NORMAL_COEFFICIENTS = (
    0.11962454,
    0.12082632,
    0.09946503,
    0.13003273,
    -0.056450319,
    0.20934664,
    -0.15893388,
    0.036088876,
)
_LOG2_E = _F(1.44269504)
_LN2_HIGH, _LN2_LOW = _F(0.693359375), _F(-2.12194440e-4)  # two numbers whose sum is ln(2); n · _LN2_HIGH is exact
# 1.5 · 2^23; the sum of this number and a small x contains x, rounded to an integer, in its lowest bits
_ROUNDING_OFFSET = _F(12582912)
_MIN_EXPONENT = _F(-87)  # below this x, exp32(x) returns 0
_EXPM1_RANGE = _F(-0.34375)  # above this x, exp(x) − 1 is computed without a power of two
_TANH_RANGE = _F(0.5625)  # below this |x|, tanh32(x) is computed with the polynomial


# Below these inputs, 1 + erf and 1 + tanh are rounded to 0 in float32. torch then returns 0, whose sign is +1, although
# the exact result is negative. A binary layer behind a GELU needs the same sign.
GELU_ZERO, GELU_TANH_ZERO = np.float32(-5.5143), np.float32(-5.0614)


def exp32(x: np.ndarray) -> np.ndarray:
    """Return exp(x) of float32 numbers x ≤ 0."""
    limited = np.where(x < _MIN_EXPONENT, _MIN_EXPONENT, x)
    shifted = limited * _LOG2_E + _ROUNDING_OFFSET
    power = shifted - _ROUNDING_OFFSET  # the quotient x / ln(2), rounded to an integer
    rest = (limited - power * _LN2_HIGH) - power * _LN2_LOW
    fraction = _expm1_polynomial(rest) + _F(1)
    bits = fraction.view(np.uint32) + (shifted.view(np.uint32) << np.uint32(23))  # the bits of fraction · 2^power
    return np.where(x < _MIN_EXPONENT, _F(0), bits.view(np.float32))


def expm1_32(x: np.ndarray) -> np.ndarray:
    """Return exp(x) − 1 of float32 numbers x ≤ 0."""
    return np.where(x > _EXPM1_RANGE, _expm1_polynomial(x), exp32(x) - _F(1))


def sigmoid32(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(−x))."""
    e = exp32(-np.abs(x))
    return np.where(x < 0, e, _F(1)) / (_F(1) + e)


def tanh32(x: np.ndarray) -> np.ndarray:
    """Return the hyperbolic tangent."""
    square = x * x
    near_zero = x + (x * square) * _evaluate_polynomial(_TANH_COEFFICIENTS, square)
    e = exp32(np.abs(x) * _F(-2))
    quotient = (_F(1) - e) / (_F(1) + e)
    return np.where(np.abs(x) < _TANH_RANGE, near_zero, np.where(x < 0, -quotient, quotient))


def gelu32(x: np.ndarray) -> np.ndarray:
    """Return x · Φ(x), the GELU of torch with approximate="none". Below GELU_ZERO, it is exactly 0, as in torch."""
    t = _F(1) / (_F(1) + _F(0.3) * np.abs(x))
    tail = (_evaluate_polynomial(_NORMAL_COEFFICIENTS, t) * t) * exp32((x * x) * _F(-0.5))
    return np.where(x < GELU_ZERO, _F(0), np.where(x < 0, x * tail, x - x * tail))


def gelu_tanh32(x: np.ndarray) -> np.ndarray:
    """Return the GELU of torch with approximate="tanh"; 0.5 · (1 + tanh(u)) is the sigmoid of 2 · u.

    Below GELU_TANH_ZERO, it is exactly 0, as in torch.
    """
    doubled = _F(1.5957691) * (x + _F(0.044715) * ((x * x) * x))
    return np.where(x < GELU_TANH_ZERO, _F(0), x * sigmoid32(doubled))


def silu32(x: np.ndarray) -> np.ndarray:
    """Return x · sigmoid(x)."""
    return x * sigmoid32(x)


def elu32(x: np.ndarray, alpha: float) -> np.ndarray:
    """Return x if x > 0, else alpha · (exp(x) − 1)."""
    return np.where(x > 0, x, _F(alpha) * expm1_32(x))


def hardsigmoid32(x: np.ndarray) -> np.ndarray:
    """Return min(max(x + 3, 0), 6) / 6."""
    return clamp32(x + _F(3), 0, 6) / _F(6)


def hardswish32(x: np.ndarray) -> np.ndarray:
    """Return x · (min(max(x + 3, 0), 6) / 6)."""
    return x * hardsigmoid32(x)


def clamp32(x: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
    """Return min(max(x, low), high), without the limits that are None."""
    if low is not None:
        x = np.where(x < _F(low), _F(low), x)
    if high is not None:
        x = np.where(x > _F(high), _F(high), x)
    return x


def _expm1_polynomial(x: np.ndarray) -> np.ndarray:
    """Return exp(x) − 1 for |x| ≤ ln(2) / 2."""
    return (x * x) * _evaluate_polynomial(_EXP_COEFFICIENTS, x) + x


def _evaluate_polynomial(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """Return the polynomial, computed by Horner's method. `coefficients` begin with the lowest power."""
    result = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + _F(coefficient)
    return result
