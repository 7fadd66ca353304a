"""A plain training step to compare with: own hooks and exact eigenvalues, without `Retention`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import Retention
from lcrbnn.nn import functional as ops
from lcrbnn.nn.methods.binarizer import ActivationBinarizer
from tests.lcr.foreign_networks import FOREIGN_NETWORKS, IMAGES, LABELS, make_foreign_network

LCR_WEIGHT = 20.0
NUM_ITERATIONS = 2000  # the power iteration then converges to the exact eigenvalues


def make_network_and_retention(name: str, **settings: Any) -> tuple[nn.Module, Retention]:
    """Return a foreign network with a Retention whose power iteration converges."""
    model = make_foreign_network(name)
    settings = {"power_iterations": NUM_ITERATIONS, "lcr_weight": LCR_WEIGHT, **settings}
    return model, Retention(model, blocks=FOREIGN_NETWORKS[name].blocks, **settings)


def compute_exact_lcr_loss(maps: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Return lambda/2 * L_Lip of the variant "default" from pairs of binary and real maps behind each block."""
    total = torch.zeros((), dtype=torch.float64)
    for k, (binary_map, real_map) in enumerate(maps, 1):
        rows = [F.normalize(x.double().flatten(1)) for x in (binary_map, real_map.detach())]
        sigma_b, sigma_f = (torch.linalg.eigvalsh(x @ x.T)[-1] for x in rows)
        total = total + ((sigma_b / sigma_f - 1) * 2.0 ** (k - len(maps) - 1)) ** 2
    return LCR_WEIGHT / 2 * total


def compute_plain_loss(model: nn.Module, blocks: Sequence[str], images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy plus the LCR loss of one forward pass, with hooks that are removed at the end."""
    real_maps: list[Tensor] = []
    binarized: list[tuple[Tensor, Tensor]] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda m, args, out: real_maps.append(out)) for name in blocks
    ]
    hooks += [
        module.register_forward_hook(lambda m, args, out: binarized.append((args[0], out.signs)))
        for module in model.modules()
        if isinstance(module, ActivationBinarizer)
    ]
    logits = model(images)
    for hook in hooks:
        hook.remove()
    pairs = []
    for x in real_maps:
        signs = [sign for source, sign in binarized if source is x]
        pairs.append((signs[0] if signs else ops.surrogate_sign(x, ops.closed_clip_slope), x))
    return F.cross_entropy(logits.float(), labels) + compute_exact_lcr_loss(pairs).float()


def compute_plain_gradients(name: str, batches: Sequence[slice] = (slice(None),)) -> tuple[list[Tensor], float]:
    """Return the gradients and the loss of a plain loop, summed over batches of the images."""
    model, total = make_foreign_network(name), 0.0
    for batch in batches:
        loss = compute_plain_loss(model, FOREIGN_NETWORKS[name].blocks, IMAGES[batch], LABELS[batch])
        loss.backward()
        total += loss.item()
    return take_gradients(model), total


def take_gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of all parameters and delete them from the model."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    model.zero_grad()
    return gradients


def assert_same_gradients(gradients: Sequence[Tensor], expected: Sequence[Tensor], tolerance: float = 1e-3) -> None:
    """Compare gradients, with a tolerance relative to the largest entry of the whole gradient."""
    scale = max(float(x.abs().max()) for x in expected)
    assert scale > 0
    for got, want in zip(gradients, expected, strict=True):
        assert float((got - want).abs().max()) <= tolerance * scale
