"""Student's t distribution for any positive number of degrees of freedom, which Welch's interval needs."""

from __future__ import annotations

import math


def student_t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t distribution for a probability from 0.5 to below 1."""
    low, high = 0.0, 1.0
    while student_t_tail(high, degrees_of_freedom) > 1 - probability:
        high *= 2
    for _ in range(80):
        midpoint = (low + high) / 2
        is_too_low = student_t_tail(midpoint, degrees_of_freedom) > 1 - probability
        low, high = (midpoint, high) if is_too_low else (low, midpoint)
    return high


def student_t_tail(t: float, degrees_of_freedom: float) -> float:
    """Return P(T > t) for t >= 0, half of the incomplete beta function (Abramowitz and Stegun 26.7.1)."""
    x = degrees_of_freedom / (degrees_of_freedom + t * t)
    return _incomplete_beta(degrees_of_freedom / 2, 0.5, x) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # above this x, the continued fraction converges slowly
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_factor = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_factor) * _beta_continued_fraction(a, b, x) / a


def _beta_continued_fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 / (1 + d_1 / (1 + d_2 / ...)) of the incomplete beta function (A. and S. 26.5.8).

    It is evaluated from its last term. It converges after about sqrt(a + b) terms.
    """
    value = 1.0
    for n in range(100 + 10 * math.isqrt(math.ceil(a + b)), 0, -1):
        m = n // 2
        if n % 2 == 0:
            coefficient = m * (b - m) * x / ((a + n - 1) * (a + n))
        else:
            coefficient = -(a + m) * (a + b + m) * x / ((a + n - 1) * (a + n))
        value = 1 + coefficient / value
    return 1 / value
