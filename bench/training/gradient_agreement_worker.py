"""Worker process that compares the gradients of the compiled and of the eager step from the same state."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch import Tensor

from bench.training.gpu_cases import Case, shrink_case
from bench.training.recorded_signs import count_flipped_signs, force_signs, record_signs
from bench.training.synthetic_data import make_enlarged_digits, register_dataset
from bench.worker_processes import serve_requests
from lcrbnn.data.loading.batches import InMemoryBatches
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.nn.model_hooks import set_progress
from lcrbnn.runs.record import write_record
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.setup.build import TrainingParts, build_training_parts
from lcrbnn.train.setup.spec import TrainSpec

# dictionary: precision -> maximum relative error of all gradients together (a target)
MAX_RELATIVE_ERRORS = {"float32": 1e-5, "bfloat16": 1e-2}
# Parameters whose gradient norm is below this fraction of the total norm are ignored in the largest error.
MIN_NORM_FRACTION = 1e-3

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """The task of one worker process."""

    name: str
    model: str
    precision: str
    added_loss: str
    num_images: int
    device: str = "auto"
    is_rehearsal: bool = False
    record_file: str | None = None  # path of the file of the record; None = write no record

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON can store."""
        return asdict(self)

    @property
    def spec(self) -> TrainSpec:
        """Return the training settings of both steps."""
        case = Case(self.model, precision=self.precision, added_loss=self.added_loss)
        return (shrink_case(case) if self.is_rehearsal else case).make_spec()


def prepare(arguments: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Return the function that runs the comparison."""
    job = Job(**arguments)
    return lambda message: _compare_steps(job)


def _compare_steps(job: Job) -> dict[str, Any]:
    spec, device = job.spec, find_device(job.device)
    with register_dataset(spec.dataset, make_enlarged_digits(spec.dataset, job.num_images)) as dataset:
        batches = InMemoryBatches(dataset.load(Path()).train, dataset, device)
        with deterministic_run(spec.deterministic, spec.precision):
            compiled, eager = StepUnderTest(CompiledStep, spec, batches), StepUnderTest(EagerStep, spec, batches)
            compiled_gradients, eager_gradients = compiled.compute_gradients(), eager.compute_gradients()
            figures = {
                "error": compute_relative_errors(compiled_gradients, eager_gradients),
                "fast_again": compute_relative_errors(compiled.compute_gradients(), compiled_gradients),
                "eager_again": compute_relative_errors(eager.compute_gradients(), eager_gradients),
            }
            figures["signs"] = _catch_failure(lambda: _compare_signs(spec, batches, eager_gradients))
            if spec.precision != "float32":
                figures["error_rounded_as_eager"] = _catch_failure(
                    lambda: _compare_with_eager_rounding(spec, batches, eager_gradients)
                )
        if spec.precision != "float32":
            float32_spec = spec.replace(precision="float32")
            with deterministic_run(float32_spec.deterministic, float32_spec.precision):
                float32_gradients = StepUnderTest(EagerStep, float32_spec, batches).compute_gradients()
            figures["from_float32"] = {
                "fast": compute_relative_errors(compiled_gradients, float32_gradients),
                "eager": compute_relative_errors(eager_gradients, float32_gradients),
            }
    bound = MAX_RELATIVE_ERRORS[spec.precision]
    rounded = figures.get("error_rounded_as_eager", figures["error"])
    figures["target"] = {
        "at_most": bound,
        "met": figures["error"]["all"] <= bound,
        "met_rounded_as_eager": rounded["all"] <= bound if "all" in rounded else None,
    }
    if job.record_file is not None:
        write_record(Path(job.record_file), "twin", {**spec.to_dict(), "device": device.type}, figures)
    return figures


class StepUnderTest:
    """One of the two compared steps, with its own copy of the network."""

    def __init__(
        self, step_class: type[EagerStep] | type[CompiledStep], spec: TrainSpec, batches: InMemoryBatches
    ) -> None:
        """Build the network and the step. With the same seed, both steps start from the same state."""
        fused = step_class is CompiledStep and batches.labels.device.type == "cuda"
        self.parts: TrainingParts = build_training_parts(spec, batches.labels.device, fused=fused)
        self.spec, self.step = spec, step_class(spec, self.parts, batches)
        self._initial_state = {name: t.detach().clone() for name, t in self.parts.model.state_dict().items()}

    def compute_gradients(self) -> Gradients:
        """Return the gradients of the first step, computed from the initial state."""
        model = self.parts.model
        model.load_state_dict(self._initial_state)
        set_progress(model, 0.0)
        model.train()
        self.step.begin_epoch(0, 0, self.spec.lcr_weight)
        self.step.run_step()
        self.step.check_finite()
        return {
            n: p.grad.detach().double().clone() for p, n in self.parts.parameter_names.items() if p.grad is not None
        }


def compute_relative_errors(gradients: Gradients, reference: Gradients) -> dict[str, Any]:
    """Return |gradients - reference| / |reference| of all parameters together, and the largest of one parameter."""
    differences = {name: float((gradients[name] - reference[name]).norm()) for name in reference}
    norms = {name: float(gradient.norm()) for name, gradient in reference.items()}
    total_norm = _total_norm(norms)
    errors = {name: differences[name] / n for name, n in norms.items() if n > MIN_NORM_FRACTION * total_norm}
    worst = max(errors, key=lambda name: errors[name])
    return {"all": _total_norm(differences) / total_norm, "largest": errors[worst], "where": worst}


def _total_norm(norms: dict[str, float]) -> float:
    return sum(v * v for v in norms.values()) ** 0.5


def _compare_signs(spec: TrainSpec, batches: InMemoryBatches, eager_gradients: Gradients) -> dict[str, Any]:
    """Return the number of flipped signs, and the error if the eager step uses the signs of the compiled step."""
    eager = StepUnderTest(EagerStep, spec, batches)
    eager_signs = record_signs(eager.parts.model)
    eager.compute_gradients()
    torch._dynamo.reset()  # without the reset, torch would reuse the compiled code that has no hooks
    compiled = StepUnderTest(CompiledStep, spec, batches)
    compiled_signs = record_signs(compiled.parts.model, template=eager_signs)
    gradients = compiled.compute_gradients()
    forced = StepUnderTest(EagerStep, spec, batches)
    force_signs(forced.parts.model, compiled_signs)
    return {
        **count_flipped_signs(eager_signs, compiled_signs),
        "error": compute_relative_errors(gradients, eager_gradients),
        "error_with_the_same_signs": compute_relative_errors(gradients, forced.compute_gradients()),
    }


def _compare_with_eager_rounding(
    spec: TrainSpec, batches: InMemoryBatches, eager_gradients: Gradients
) -> dict[str, Any]:
    """Return the error if the compiler rounds after every operation.

    Normally it rounds only when it stores a result.
    """
    torch._dynamo.reset()
    compiler: Any = torch._inductor.config
    with compiler.patch(emulate_precision_casts=True):
        return compute_relative_errors(StepUnderTest(CompiledStep, spec, batches).compute_gradients(), eager_gradients)


def _catch_failure(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of `compute`, or the error message if it fails.

    Only the main error of a comparison is required.
    """
    try:
        return compute()
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    serve_requests(prepare)
