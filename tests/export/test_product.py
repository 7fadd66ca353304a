"""METHODS x MODELS with few channels: PyTorch's sums and signs in the reference and in the engine.

results/engine/exactness has the same at full width, with answers end to end (python -m tools.exactness).
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from lcrbnn.export import export_model
from lcrbnn.export.compare import by_engine, by_reference, compare_layers
from lcrbnn.methods import Method, method
from lcrbnn.models import MODELS
from tests.export.nets import CHOICES, input_of, narrow, stirred

CLOSE = 1e-4
EDGE = 1e-5
SIDES = {8: 8, 32: 9, 64: 17, 224: 33}
PAIRS = list(product(MODELS, CHOICES))
# What no row of METHODS has by itself: learned thresholds, with ReCU's deviation and with its weights.
MIXED = [method("recu", shift=True), method("recu/reactnet")]
PAIRS += product(("resnet20-double-pool-rprelu", "resnet18-double-rprelu"), MIXED)


@pytest.mark.parametrize(("name", "chosen"), PAIRS, ids=[f"{name} {m.name}-{m.chosen_bits}" for name, m in PAIRS])
def test_sums_and_signs_are_pytorchs(name: str, chosen: Method) -> None:
    side = SIDES[MODELS[name].image]
    images = torch.randn(6, 3, side, side, generator=torch.Generator().manual_seed(3))
    net = stirred(narrow(name, chosen, side, 5), images)
    model = export_model(net, input_of(images, 5), name)
    for evaluate in (by_reference, by_engine):
        found = compare_layers(net, model, images, evaluate)
        assert found.faults == []
        assert found.nodes == len(model.nodes)
        assert (found.sums > 0) == (found.signs > 0) == (chosen.chosen_bits == 1)
        assert found.apart <= CLOSE
        assert all(turned.distance <= EDGE * turned.largest for turned in found.turned)
