"""Methods with a loss, draws or memories of their own, in the fast step and in its plain twin."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch._dynamo

from lcrbnn.data import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.layers import advance, start_epoch
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import Parts, build
from lcrbnn.train.evaluate import look
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep

# torch's compiler uses pieces that torch has deprecated, and so warns of itself.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

CPU = torch.device("cpu")
SPECS = {
    "draws": Spec(method="sq-bwn", batch=300),
    "a loss of what passes": Spec(method="rad", batch=300),
    "memories of inputs": Spec(method="bwnh", batch=300),
    "a regulariser with a norm to follow": Spec(method="bireal", regularizer="spectral", batch=300),
}


def after_steps(kind: type, spec: Spec) -> Parts:
    parts = build(spec, CPU)
    advance(parts.model, 0.0)
    start_epoch(parts.model)
    parts.model.train()
    step = kind(spec, parts, Batches(read_digits().train, DATASETS["digits"], CPU))
    step.begin(0, 0, spec.weight)
    for _ in range(3):
        step.take()
    step.check()
    return parts


@pytest.mark.parametrize("name", SPECS)
def test_three_steps_leave_the_same_weights_and_buffers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    # Traced as one graph, without the minute that a compiler takes: what is compared is what the step does.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    slow, fast = (after_steps(kind, SPECS[name]).model.state_dict() for kind in (EagerStep, FastStep))
    for key, value in slow.items():
        torch.testing.assert_close(fast[key], value, atol=2e-4, rtol=1e-3, msg=key)
    if name == "draws":
        counts = [value for key, value in fast.items() if key.endswith("count")]
        assert [int(count) for count in counts] == [3] * 6
        kept = [key for key in fast if key.endswith(".real")]
        assert all(torch.equal(fast[key], slow[key]) for key in kept)
    torch._dynamo.reset()


def test_both_steps_find_the_same_share_beside_a_regulariser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **how: work)
    spec = Spec(share=0.1, regularizer="defensive", strength=0.1, batch=50, precision="float64")
    parts, batches = build(spec, CPU), Batches(read_digits().train, DATASETS["digits"], CPU)
    parts.model.train()
    step = FastStep(spec, parts, batches)
    step.begin(0, 0, 1.0)
    found, wanted = step.look(), look(spec, parts, batches)
    assert found is not None
    assert wanted.share == pytest.approx(found.share, rel=1e-6)
    assert wanted.share != pytest.approx(look(spec.but(regularizer="none"), parts, batches).share, rel=0.01)
