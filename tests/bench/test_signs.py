from __future__ import annotations

import torch

import lcrbnn
from bench.one_twin import distance
from bench.signs import flipped, force_signs, note_signs


def test_forced_signs_are_the_ones_that_are_used() -> None:
    torch.manual_seed(0)
    one, other, third = (lcrbnn.network("resnet8-double", "irnet") for _ in range(3))
    for copy in (other, third):
        copy.load_state_dict(one.state_dict())
    images = torch.randn(8, 3, 8, 8)
    noted = note_signs(one)
    given = one(images)
    assert torch.equal(other(images), given)
    force_signs(other, noted)
    assert torch.equal(other(images), given)
    changed = {name: signs.clone() for name, signs in noted.items()}
    name = next(iter(changed))
    changed[name].view(-1)[:3] ^= True
    assert flipped(noted, changed)["flipped"] == 3
    assert flipped(noted, changed)["worst"] == name
    force_signs(third, changed)
    assert not torch.equal(third(images), given)


def test_the_distance_of_gradients() -> None:
    one = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0]), "c": torch.tensor([12.0])}
    other = {name: gradient.clone() for name, gradient in one.items()}
    assert distance(one, other)["all"] == 0
    one["a"] = torch.tensor([3.0, 5.0])
    assert distance(one, other)["all"] == 1 / 13
    assert distance(one, other)["largest"] == 1 / 5
    assert distance(one, other)["where"] == "a"
