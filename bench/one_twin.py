"""One comparison of gradients in a process of its own: the compiled step, the eager one, both from one state."""

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

from bench.cases import Case, rehearsed
from bench.processes import work
from bench.signs import flipped, force_signs, note_signs
from bench.synthetic import digits, known
from lcrbnn.layers import advance
from lcrbnn.runs.record import write_record
from lcrbnn.train import Spec
from lcrbnn.train.batches import Batches
from lcrbnn.train.build import Parts, build
from lcrbnn.train.numerics import find_device, numerics
from lcrbnn.train.step_eager import EagerStep
from lcrbnn.train.step_fast import FastStep

BOUNDS = {"float32": 1e-5, "bfloat16": 1e-2}  # of the relative error of all gradients together
SMALL = 1e-3  # of the whole gradient's length: shorter ones are not asked for the largest error

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """What one process is to do."""

    name: str
    model: str
    precision: str
    retention: str
    images: int
    device: str = "auto"
    rehearsal: bool = False
    record: str | None = None  # file

    def stored(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @property
    def spec(self) -> Spec:
        """The settings of both steps."""
        case = Case(self.model, precision=self.precision, retention=self.retention)
        return (rehearsed(case) if self.rehearsal else case).spec()


def prepare(stored: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """All is done when told."""
    job = Job(**stored)
    return lambda told: _compare(job)


def _compare(job: Job) -> dict[str, Any]:
    spec, device = job.spec, find_device(job.device)
    with known(spec.data, digits(spec.data, job.images)) as row:
        batches = Batches(row.load(Path()).train, row, device)
        with numerics(spec):
            fast, eager = Side(FastStep, spec, batches), Side(EagerStep, spec, batches)
            fast_gradients, plain = fast.gradients(), eager.gradients()
            figures = {
                "error": distance(fast_gradients, plain),
                "fast_again": distance(fast.gradients(), fast_gradients),
                "eager_again": distance(eager.gradients(), plain),
            }
            figures["signs"] = _tried(lambda: _signs(spec, batches, plain))
            if spec.precision != "float32":
                figures["error_rounded_as_eager"] = _tried(lambda: _rounded(spec, batches, plain))
        if spec.precision != "float32":
            exact = spec.but(precision="float32")
            with numerics(exact):
                truth = Side(EagerStep, exact, batches).gradients()
            figures["from_float32"] = {"fast": distance(fast_gradients, truth), "eager": distance(plain, truth)}
    bound = BOUNDS[spec.precision]
    rounded = figures.get("error_rounded_as_eager", figures["error"])
    figures["target"] = {
        "at_most": bound,
        "met": figures["error"]["all"] <= bound,
        "met_rounded_as_eager": rounded["all"] <= bound if "all" in rounded else None,
    }
    if job.record is not None:
        write_record(Path(job.record), "twin", {**spec.stored(), "device": device.type}, figures)
    return figures


class Side:
    """One of the two steps, with a network of its own."""

    def __init__(self, kind: type[EagerStep] | type[FastStep], spec: Spec, batches: Batches) -> None:
        """Build it; the seed makes the state the same on both sides."""
        fused = kind is FastStep and batches.labels.device.type == "cuda"
        self.parts: Parts = build(spec, batches.labels.device, fused=fused)
        self.spec, self.step = spec, kind(spec, self.parts, batches)
        self._start = {name: t.detach().clone() for name, t in self.parts.model.state_dict().items()}

    def gradients(self) -> Gradients:
        """Of the first step, made from the state at the start."""
        model = self.parts.model
        model.load_state_dict(self._start)
        advance(model, 0.0)
        model.train()
        self.step.begin(0, 0, self.spec.weight)
        self.step.take()
        self.step.check()
        return {n: p.grad.detach().double().clone() for p, n in self.parts.names.items() if p.grad is not None}


def distance(one: Gradients, other: Gradients) -> dict[str, Any]:
    """|one - other| / |other| of all together, and of the parameter where it is largest."""
    apart = {name: float((one[name] - other[name]).norm()) for name in other}
    long = {name: float(gradient.norm()) for name, gradient in other.items()}
    whole = _length(long)
    each = {name: apart[name] / n for name, n in long.items() if n > SMALL * whole}
    worst = max(each, key=lambda name: each[name])
    return {"all": _length(apart) / whole, "largest": each[worst], "where": worst}


def _length(parts: dict[str, float]) -> float:
    return sum(v * v for v in parts.values()) ** 0.5


def _signs(spec: Spec, batches: Batches, plain: Gradients) -> dict[str, Any]:
    """What is left of the error if the eager step has the signs of the compiled one, here one that notes them."""
    eager = Side(EagerStep, spec, batches)
    own = note_signs(eager.parts.model)
    eager.gradients()
    torch._dynamo.reset()  # compiled code is used again without a look at the hooks
    fast = Side(FastStep, spec, batches)
    theirs = note_signs(fast.parts.model, like=own)
    gradients = fast.gradients()
    forced = Side(EagerStep, spec, batches)
    force_signs(forced.parts.model, theirs)
    return {
        **flipped(own, theirs),
        "error": distance(gradients, plain),
        "error_with_the_same_signs": distance(gradients, forced.gradients()),
    }


def _rounded(spec: Spec, batches: Batches, plain: Gradients) -> dict[str, Any]:
    """The error if the compiler rounds after each operation, as the eager step does, and not only where it stores."""
    torch._dynamo.reset()
    compiler: Any = torch._inductor.config
    with compiler.patch(emulate_precision_casts=True):
        return distance(Side(FastStep, spec, batches).gradients(), plain)


def _tried(explain: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An explanation that fails leaves the error itself as it is."""
    try:
        return explain()
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:300]}


if __name__ == "__main__":
    work(prepare)
