"""Check the captured feature maps. `Retention` calls these functions once, at its first loss()."""

from __future__ import annotations

from collections.abc import Sequence

from lcrbnn.errors import InputError
from lcrbnn.lcr.capture import CapturedMaps, ModulePort, Span
from lcrbnn.lcr.retention_matrix import Pair, are_comparable
from lcrbnn.nn import functional as ops

# Minimum number of entries of a checked map; a smaller map may have only one sign by chance
MIN_ENTRIES_FOR_SIGN_CHECK = 32


def check_span_order(maps: CapturedMaps, spans: Sequence[Span]) -> None:
    """Raise InputError unless the spans have the order of the forward pass. Later spans have a larger weight."""
    kind = "layers" if spans[0][1].side == "in" else "blocks"
    ports = [back for _, back in spans]
    if kind == "layers":
        ports.insert(0, spans[0][0])
    forward_order = sorted(ports, key=list(maps.real).index)
    if ports != forward_order:
        raise InputError(
            f"{kind} must have the order of the forward pass, {_module_names(forward_order)}; "
            f"got {_module_names(ports)}"
        )


def check_map_shapes(pairs: Sequence[Pair], spans: Sequence[Span], matrix: str, owner: str = "") -> None:
    """Raise InputError unless this kind of matrix can be computed from the shapes of each pair of maps."""
    for (front, back), (front_port, back_port) in zip(pairs, spans, strict=True):
        if back.dim() < 2:
            raise InputError(
                f"Retention compares feature maps (n, c, h, w) or (n, d){owner}: {back_port} has shape "
                f"{tuple(back.shape)}; name an earlier module"
            )
        if matrix != "gram" and not are_comparable(front, back):
            raise InputError(
                "Retention compares two feature maps (n, c, h, w), two (n, d), or two of the same shape"
                f"{owner}: {front_port} has shape {tuple(front.shape)} and {back_port} has shape {tuple(back.shape)}; "
                "name a module before the pooling or flattening"
            )


def find_one_signed_maps(maps: CapturedMaps, ports: Sequence[ModulePort]) -> list[ModulePort]:
    """Return the ports whose map has only one sign after binarization."""
    return [port for port in ports if _has_one_sign(maps, port)]


def _has_one_sign(maps: CapturedMaps, port: ModulePort) -> bool:
    real = maps.real[port].detach()
    # Almost every map already has both signs in its first sample. Then the others need not be read.
    if real.numel() < MIN_ENTRIES_FOR_SIGN_CHECK or not _are_signs_constant(maps, port, slice(0, 1)):
        return False
    return _are_signs_constant(maps, port, slice(None)) and not bool(real.isnan().any())


def _are_signs_constant(maps: CapturedMaps, port: ModulePort, samples: slice) -> bool:
    """Return whether all signs of these samples are equal, within each base."""
    binary = maps.binary.get(port)
    if binary is None:
        rows = ops.sign(maps.real[port].detach()[samples]).reshape(1, -1)
    elif binary.num_bases > 1:
        rows = binary.signs.detach()[:, samples].flatten(1)
    else:
        rows = binary.signs.detach()[samples].reshape(1, -1)
    return bool((rows.amin(1) == rows.amax(1)).all())


def find_excluded_spans(spans: Sequence[Span], one_signed_ports: Sequence[ModulePort], matrix: str) -> frozenset[int]:
    """Return the indices of the spans whose retention matrix is computed from a map with only one sign."""
    return frozenset(
        i
        for i, (front, back) in enumerate(spans)
        if back in one_signed_ports or (matrix != "gram" and front in one_signed_ports)
    )


def describe_one_signed_maps(ports: Sequence[ModulePort], excluded_blocks: Sequence[str]) -> str:
    """Return a warning that names the modules whose feature maps have only one sign."""
    modules = ", ".join(repr(name) for name in dict.fromkeys(port.module for port in ports))
    blocks = ", ".join(repr(name) for name in excluded_blocks)
    effect = f"The sigma ratios of {blocks} are NaN, and LCR has no effect there. " if excluded_blocks else ""
    return (
        f"after binarization, the feature maps at {modules} have only one sign. They are the same for every image, so "
        f"LCR cannot compare them. {effect}A binary layer after a ReLU has no negative inputs: replace the ReLU by "
        "Hardtanh or PReLU, or add a batch norm directly before the layer (docs/method.md)"
    )


def _module_names(ports: Sequence[ModulePort]) -> list[str]:
    return [port.module for port in ports]
