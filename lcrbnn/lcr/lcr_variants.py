"""LcrVariant, the settings of the LCR loss, and LCR_VARIANTS, the table of named variants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lcrbnn.errors import InputError, check_known_names, check_number, lookup

# The allowed values of each text field of LcrVariant, each with a short description. Other modules have tables of
# functions with these names as keys.
LCR_CHOICES: dict[str, Mapping[str, str]] = {
    "matrix": {
        "cross-gram": "Eq. 8, N x N over the batch",
        "gram": "Eq. 9, N x N over the batch",
        "per-sample": "one matrix per sample, as in the official code",
    },
    "normalization": {
        "none": "feature maps are not scaled",
        "l2": "each sample is scaled to length 1",
        "centered-l2": "the mean of each sample is subtracted, then the sample is scaled to length 1",
    },
    "reference": {
        "pre-binarization": "the tensors before binarization, in the same forward pass",
        "latent-weights": "a second forward pass with latent weights instead of their signs",
        "teacher": "a full-precision network",
    },
    "activations": {"binary": "after the sign of the next binary layer", "real": "before that sign"},
    "granularity": {
        "layers": "from each convolution to the next",
        "blocks": "from the input to the output of each block",
        "stages": "from the input to the output of each stage but the first",
        "convolutions": "from the input of each binary convolution to its output before batch norm, as in Algorithm 1",
    },
    "power_iteration_init": {
        "random": "a random vector of length 1, drawn with the seed",
        "ones": "all ones, not scaled to length 1",
        "longest-column": "the unit vector that selects the longest column of the matrix",
    },
    "distance": {
        "ratio": "Eq. 11: (sigma_B / sigma_F - 1)^2",
        "log-ratio": "log(sigma_B / sigma_F)^2",
        "mse": "(sigma_B - sigma_F)^2, as in the official code",
    },
    "coefficient": {
        "half": "lambda / 2, Eq. 12",
        "inverse-batch-size": "lambda / (batch size * 10^4), as in the official code",
    },
}

# Values that occur in existing records. New runs cannot use them, because their code was removed.
RETIRED_LCR_CHOICES: dict[str, Mapping[str, str]] = {
    "distance": {"ratio-below-1": "Eq. 11 where the ratio is below 1, otherwise 0"},
}


@dataclass(frozen=True)
class LcrVariant:
    """The settings that determine how the LCR loss L_Lip is computed. Text fields take the values in LCR_CHOICES."""

    matrix: str = "gram"
    normalization: str = "l2"
    reference: str = "pre-binarization"
    activations: str = "binary"
    granularity: str = "blocks"
    # Number of retention matrices that are used, counted from the end of the network; 0 = all
    num_last_matrices: int = 0
    power_iteration_init: str = "longest-column"
    power_iterations: int = 5
    sqrt_eigenvalue: bool = False  # whether the square root of the largest eigenvalue is used instead of the eigenvalue
    distance: str = "ratio"
    beta: float = 2.0
    # True if the network is also trained through sigma_F, the spectral norms of the reference
    reference_gradient: bool = False
    learnable_scale: bool = False  # True if each binary feature map is multiplied by a learnable factor
    coefficient: str = "half"
    weight: float = 1.0  # lambda, the weight of the LCR loss
    # weight of the quantization error of Algorithm 1; Eq. 12 does not contain it
    quantization_error_weight: float = 0.0

    def __post_init__(self) -> None:
        """Check the values. Raise InputError for an unknown name or a number out of range."""
        for field, allowed in LCR_CHOICES.items():
            if getattr(self, field) not in RETIRED_LCR_CHOICES.get(field, {}):
                lookup(allowed, getattr(self, field), f"retention {field}", "docs/method.md")
        for field in ("sqrt_eigenvalue", "learnable_scale", "reference_gradient"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(f"{field} must be True or False; got {getattr(self, field)!r}")
        if self.reference_gradient and self.reference != "pre-binarization":
            raise InputError(
                "reference_gradient needs the reference 'pre-binarization', because the other references have no "
                f"gradient; got {self.reference!r}"
            )
        check_number(self.num_last_matrices, "num_last_matrices", low=0, integer=True)
        check_number(self.power_iterations, "power_iterations", low=1, integer=True)
        check_number(self.beta, "beta", low=1)
        check_number(self.weight, "weight (lambda)", low=0)
        check_number(self.quantization_error_weight, "quantization_error_weight", low=0)

    def replace(self, /, **changes: Any) -> LcrVariant:
        """Return a copy with some fields changed."""
        check_known_names(changes, [f.name for f in fields(self)], "setting of the LCR loss", "docs/method.md")
        return replace(self, **changes)

    def reject_retired_choices(self) -> None:
        """Raise InputError if the variant has a value that only existing records may have."""
        for field, retired in RETIRED_LCR_CHOICES.items():
            if getattr(self, field) in retired:
                raise InputError(
                    f"{field} {getattr(self, field)!r} is only for existing records; new runs can use "
                    f"{', '.join(LCR_CHOICES[field])}"
                )


LCR_VARIANTS: dict[str, LcrVariant] = {
    # Eq. 9 on normalized feature maps, one matrix per block. In the screening runs with reference "pre-binarization",
    # this variant reduced the accuracy least. With a late warm-up it did not reduce the accuracy (see LCR_DEFAULTS in
    # lcrbnn/recipes/recipe.py and paper/docs/results.md).
    "default": LcrVariant(),
    # The paper, literally: Eq. 8 on unscaled activations, one matrix per pair of adjacent layers. The reference is the
    # tensor before the sign, in the same forward pass.
    "paper": LcrVariant(matrix="cross-gram", normalization="none", granularity="layers", power_iteration_init="random"),
    # The published code: one matrix per stage, a teacher, real feature maps with a learnable factor, one step of power
    # iteration from a vector of ones, and MSE / 2^(L-k). Three details of that code are not reproduced: its second
    # forward pass, its second update of the batch-norm statistics and its teacher in training mode.
    "official": LcrVariant(
        matrix="per-sample",
        normalization="none",
        reference="teacher",
        activations="real",
        granularity="stages",
        power_iteration_init="ones",
        power_iterations=1,
        sqrt_eigenvalue=True,
        distance="mse",
        learnable_scale=True,
        coefficient="inverse-batch-size",
        weight=8.0,
    ),
}

# Arguments of Retention that had other names before.
_RENAMED_ARGUMENTS = {"weight": "lcr_weight", "form": "variant"}


def build_variant(variant: str | LcrVariant, lcr_weight: float | None, changes: dict[str, Any]) -> LcrVariant:
    """Return the variant, a row of LCR_VARIANTS or an LcrVariant, with changed fields and weight."""
    for old_name, new_name in _RENAMED_ARGUMENTS.items():
        if old_name in changes:
            raise InputError(f"Retention has no argument {old_name!r}; it is called {new_name!r} now")
    names = ["lcr_weight", *(field.name for field in fields(LcrVariant) if field.name not in _RENAMED_ARGUMENTS)]
    check_known_names(changes, names, "argument of Retention", "help(lcrbnn.Retention)")
    if lcr_weight is not None:
        check_number(lcr_weight, "lcr_weight", low=0)
        changes = {**changes, "weight": lcr_weight}
    if not isinstance(variant, LcrVariant):
        variant = lookup(LCR_VARIANTS, variant, "variant of the LCR loss", "docs/method.md")
    return variant.replace(**changes)
