"""A form of the retention loss: every choice that the paper and its code leave open, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lcrbnn.errors import InputError, choose, number, refuse_unknown

# What each text field may say, with a word of explanation; code elsewhere keys its tables by these names.
CHOICES: dict[str, Mapping[str, str]] = {
    "matrix": {"batch": "Eq. 8, N x N over the batch", "square": "Eq. 9", "channel": "per sample, the official code"},
    "normalization": {
        "raw": "as they are",
        "unit": "each sample of length 1",
        "centered": "mean removed, then length 1",
    },
    "reference": {
        "latent": "the tensors that are binarised, same pass",
        "weights": "a pass with latent weights in place of their signs",
        "teacher": "a full-precision network",
    },
    "maps": {"binary": "as the next binary layer binarises them", "real": "before that"},
    "spans": {"layers": "between convolutions", "blocks": "across each block", "stages": "from stage to stage"},
    "start": {
        "random": "seeded, unit length",
        "ones": "all ones, not of unit length",
        "heaviest": "the longest column",
    },
    "distance": {
        "ratio": "Eq. 11",
        "log": "the square of the ratio's logarithm",
        "below": "the same where it is below 1; what is above is left alone",
        "mse": "the official code",
    },
    "coefficient": {"half": "lambda / 2, Eq. 12", "batch": "lambda / (batch 10^4), the official code"},
}


@dataclass(frozen=True)
class Form:
    """How maps become L_Lip. Text fields take the names in CHOICES."""

    matrix: str = "square"
    normalization: str = "unit"
    reference: str = "latent"
    maps: str = "binary"
    spans: str = "blocks"
    last: int = 0  # only the last so many matrices; 0 for all
    start: str = "heaviest"
    iterations: int = 5
    root: bool = False  # the square root of the top eigenvalue, a spectral norm proper, instead of the eigenvalue
    distance: str = "ratio"
    beta: float = 2.0
    scale: bool = False  # a learnable factor a map, on the binary side
    coefficient: str = "half"
    weight: float = 1.0  # lambda
    quantization: float = 0.0  # weight of Algorithm 1's quantisation-error loss, which Eq. 12 lacks

    def __post_init__(self) -> None:
        """Refuse names and numbers that mean nothing."""
        for field, allowed in CHOICES.items():
            choose(allowed, getattr(self, field), f"retention {field}")
        for field in ("root", "scale"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(f"{field} is True or False; got {getattr(self, field)!r}")
        number(self.last, "last", low=0, whole=True)
        number(self.iterations, "iterations", low=1, whole=True)
        number(self.beta, "beta", low=1)
        number(self.weight, "weight (lambda)", low=0)
        number(self.quantization, "quantization", low=0)

    def but(self, /, **changes: Any) -> Form:
        """The same form with some fields changed."""
        refuse_unknown(changes, [f.name for f in fields(self)], "setting of the retention loss")
        return replace(self, **changes)
