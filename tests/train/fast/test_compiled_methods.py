"""Methods with an additional loss, random draws or state, in the compiled step and in the eager step."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch._dynamo

from lcrbnn.data.datasets import DATASETS
from lcrbnn.data.digits import read_digits
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.nn.model_hooks import set_progress, start_epoch
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.setup.build import TrainingParts, build_training_parts
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.validation import measure_lcr

# torch's compiler uses deprecated functions of torch, which warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")

CPU = torch.device("cpu")
SPECS = {
    "draws": TrainSpec(method="sq-bwn", batch_size=300),
    "a loss of what passes": TrainSpec(method="rad", batch_size=300),
    "memories of inputs": TrainSpec(method="bwnh", batch_size=300),
    "a regulariser with a norm to follow": TrainSpec(
        method="bireal", regularizer="spectral-norm-latent", batch_size=300
    ),
}


def train_three_steps(kind: type, spec: TrainSpec) -> TrainingParts:
    parts = build_training_parts(spec, CPU)
    set_progress(parts.model, 0.0)
    start_epoch(parts.model)
    parts.model.train()
    step = kind(spec, parts, InMemoryBatches(read_digits().train, DATASETS["digits"], CPU))
    step.begin_epoch(0, 0, spec.lcr_weight)
    for _ in range(3):
        step.run_step()
    step.check_finite()
    return parts


@pytest.mark.parametrize("name", SPECS)
def test_three_steps_leave_the_same_weights_and_buffers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    # Traced as one graph but not compiled, which would take a minute: the test compares results only.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    slow, fast = (train_three_steps(kind, SPECS[name]).model.state_dict() for kind in (EagerStep, CompiledStep))
    for key, value in slow.items():
        torch.testing.assert_close(fast[key], value, atol=2e-4, rtol=1e-3, msg=key)
    if name == "draws":
        counts = [value for key, value in fast.items() if key.endswith("count")]
        assert [int(count) for count in counts] == [3] * 6
        scale_keys = [key for key in fast if key.endswith(".real")]
        assert all(torch.equal(fast[key], slow[key]) for key in scale_keys)
    torch._dynamo.reset()


def test_both_steps_measure_the_same_gradient_ratio_with_a_regularizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda work, **how: work)
    spec = TrainSpec(
        lcr_gradient_ratio=0.1,
        regularizer="defensive-quantization",
        regularizer_weight=0.1,
        batch_size=50,
        precision="float64",
    )
    parts, batches = build_training_parts(spec, CPU), InMemoryBatches(read_digits().train, DATASETS["digits"], CPU)
    parts.model.train()
    step = CompiledStep(spec, parts, batches)
    step.begin_epoch(0, 0, 1.0)
    actual, expected = step.measure_lcr(), measure_lcr(spec, parts, batches)
    assert actual is not None
    assert expected.gradient_ratio == pytest.approx(actual.gradient_ratio, rel=1e-6)
    assert expected.gradient_ratio != pytest.approx(
        measure_lcr(spec.replace(regularizer="none"), parts, batches).gradient_ratio, rel=0.01
    )
