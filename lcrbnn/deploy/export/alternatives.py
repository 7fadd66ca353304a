"""Alternatives to a module or function that has no export rule: similar operations first, then similar names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_ALTERNATIVES = 3

# Operations that can replace each other in many networks. Each row is in the order in which they are suggested.
SIMILAR_OPERATIONS: tuple[tuple[str, ...], ...] = (
    ("hardswish", "silu", "gelu", "elu", "prelu", "relu", "hardtanh", "mish", "celu", "selu", "softplus", "rrelu"),
    ("hardsigmoid", "sigmoid", "hardtanh", "relu", "logsigmoid", "softmin", "softmax2d", "glu"),
    ("leakyrelu", "prelu", "relu", "threshold", "rrelu"),
    ("tanh", "hardtanh", "softsign", "softshrink", "hardshrink", "tanhshrink"),
    ("softmax", "logsoftmax", "adaptivelogsoftmaxwithloss"),
    ("conv2d", "linear", "conv1d", "conv3d", "bilinear", "unfold", "lstm", "gru", "rnn", "lstmcell", "grucell"),
    ("convtranspose2d", "pixelshuffle", "upsample", "convtranspose1d", "convtranspose3d", "fold", "maxunpool2d"),
    ("upsample", "interpolate", "pixelshuffle", "gridsample", "affinegrid"),
    ("batchnorm2d", "groupnorm", "layernorm", "localresponsenorm", "batchnorm3d", "crossmaplrn2d", "rmsnorm"),
    (
        "avgpool2d",
        "maxpool2d",
        "adaptiveavgpool2d",
        "lppool2d",
        "fractionalmaxpool2d",
        "adaptivemaxpool2d",
        "avgpool1d",
        "maxpool1d",
        "adaptiveavgpool1d",
        "adaptivemaxpool1d",
    ),
    ("mean", "adaptiveavgpool2d", "sum", "amax", "var", "std"),
    ("hardtanh", "clamp", "sign", "round", "where"),
)


def find_alternatives(name: str, known_names: Iterable[str]) -> list[str]:
    """Return at most MAX_ALTERNATIVES of the known names: operations similar to `name`, then names similar to it."""
    # Of relu and relu_, the one that writes into new memory is suggested.
    known_by_key = {_normalize_name(known): known for known in sorted(known_names, key=lambda n: not n.endswith("_"))}
    key = _normalize_name(name)
    similar = [other for row in SIMILAR_OPERATIONS if key in row for other in row if other != key]
    similar += get_close_matches(key, known_by_key, MAX_ALTERNATIVES, cutoff=0.7)
    return [known_by_key[other] for other in dict.fromkeys(similar) if other in known_by_key][:MAX_ALTERNATIVES]


def _normalize_name(name: str) -> str:
    """Return the name in the spelling of SIMILAR_OPERATIONS, so that nn.LeakyReLU and F.leaky_relu are equal."""
    return name.replace("_", "").lower()
