from __future__ import annotations

import torch

import lcrbnn
from bench.training.gradient_agreement_worker import compute_relative_errors
from bench.training.recorded_signs import count_flipped_signs, force_signs, record_signs


def test_forced_signs_replace_the_own_signs_of_a_network() -> None:
    torch.manual_seed(0)
    net, same, different = (lcrbnn.create_model("resnet8-double", "irnet") for _ in range(3))
    for copy in (same, different):
        copy.load_state_dict(net.state_dict())
    images = torch.randn(8, 3, 8, 8)
    recorded = record_signs(net)
    output = net(images)
    assert torch.equal(same(images), output)
    force_signs(same, recorded)
    assert torch.equal(same(images), output)
    changed = {name: signs.clone() for name, signs in recorded.items()}
    name = next(iter(changed))
    changed[name].view(-1)[:3] ^= True
    assert count_flipped_signs(recorded, changed)["flipped"] == 3
    assert count_flipped_signs(recorded, changed)["worst"] == name
    force_signs(different, changed)
    assert not torch.equal(different(images), output)


def test_relative_errors_of_gradients() -> None:
    gradients = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0]), "c": torch.tensor([12.0])}
    reference = {name: gradient.clone() for name, gradient in gradients.items()}
    assert compute_relative_errors(gradients, reference)["all"] == 0
    gradients["a"] = torch.tensor([3.0, 5.0])
    assert compute_relative_errors(gradients, reference)["all"] == 1 / 13
    assert compute_relative_errors(gradients, reference)["largest"] == 1 / 5
    assert compute_relative_errors(gradients, reference)["where"] == "a"
