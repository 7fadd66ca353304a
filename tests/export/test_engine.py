"""Exported networks in the compiled engine: the reference's sums to the bit, its values closely, fused or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import lcrbnn
from lcrbnn.engine import reference
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.export import export_model
from lcrbnn.export.watch import last
from lcrbnn.models import MODELS
from tests.export.nets import CHOICES, IDS, input_of, stirred

# Each network with one method and each method with one network: neighbours in the two tables.
PAIRS = [(name, i % len(CHOICES)) for i, name in enumerate(MODELS)]
PAIRS += [("resnet8-double", i) for i in range(len(CHOICES))]


@pytest.mark.parametrize(("name", "choice"), PAIRS, ids=[f"{name} {IDS[i]}" for name, i in PAIRS])
def test_a_network_in_the_engine_is_that_of_the_reference(name: str, choice: int) -> None:
    side = {8: 8, 32: 16, 64: 32, 224: 64}[MODELS[name].image]
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(3))
    net = stirred(lcrbnn.network(name, CHOICES[choice], classes=10, image=side), images)
    model = export_model(net, input_of(images, 10), name)
    data, inputs = to_bytes(model), last(images)
    with Engine(data) as fused, Engine(data, fuse=False) as plain:
        found = fused.run(inputs)
        assert np.array_equal(found, plain.run(inputs, threads=2))
        wanted = reference.run(model, inputs)
        with torch.no_grad():
            rounding = np.abs(net(images).numpy() - wanted).max(1)  # deep networks magnify it, PyTorch's as ours
        close = np.abs(found - wanted).max(1) <= 1e-4 * max(1, np.abs(wanted).max()) + 3 * rounding
        assert close.sum() >= 2  # of three: a number at a threshold may turn a sign, and with it all that follows
        for index, node in enumerate(model.nodes):
            if node.op == "bconv":
                x = inputs if node.inputs[0] == 0 else plain.value(inputs, node.inputs[0] - 1)
                same = plain.accumulators(inputs, index) == reference.accumulators(node, x)
                if isinstance(node.keys["threshold"], str):  # sums in double precision, in any order
                    assert same.mean() > 0.99
                else:
                    assert same.all(), node.name
