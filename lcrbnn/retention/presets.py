"""PRESETS: named forms of the retention loss."""

from __future__ import annotations

from lcrbnn.retention.form import Form

PRESETS: dict[str, Form] = {
    # What the package takes when nothing is said: Eq. 9 on normalised maps, block by block. Of the forms with reference
    # `latent` it did least harm in the screens, and none if taken late (lcrbnn/train/strengths.py); docs/results.md.
    "default": Form(),
    # The paper, literally: Eq. 8 on raw activations, layer by layer, against the pre-sign tensors of the same pass.
    "paper": Form(matrix="batch", normalization="raw", spans="layers", start="random"),
    # The published code: stage pairs, a teacher, real maps with a learnable factor, one step from ones, MSE / 2^(L-k).
    # Its second forward pass, double batch-norm update and teacher in training mode are not copied.
    "official": Form(
        matrix="channel",
        normalization="raw",
        reference="teacher",
        maps="real",
        spans="stages",
        start="ones",
        iterations=1,
        root=True,
        distance="mse",
        scale=True,
        coefficient="batch",
        weight=8.0,
    ),
}
