"""Check that the package works with this version of torch on this device. Only torch and NumPy are needed.

    python -m tools.smoke [--record FILE]

There are five groups of checks. First, every method trains a network for one step. Second, every variant of the LCR
loss is compared with the CPU in float64. Third, a complete step under torch.compile is compared with the eager step.
Fourth, fifty steps must reduce the loss. Fifth, runs with the eager and the compiled step are interrupted, resumed and
compared bit for bit. The exit code is 1 if a check fails.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

import lcrbnn
from lcrbnn.data.digits import load_digits
from lcrbnn.runs.record import describe_environment, write_record

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def check_methods_train() -> dict[str, Any]:
    """Check one step of every method and bit width on ResNet-20 with LCR. Loss and gradients must be finite."""
    losses = {}
    images, labels = torch.randn(8, 3, 32, 32, device=DEVICE), torch.arange(8, device=DEVICE) % 10
    for method in lcrbnn.METHODS.values():
        for bits in (b for b in method.supported_activation_bits if b in (1, 2, 32)):
            torch.manual_seed(0)
            model = lcrbnn.create_model("resnet20-double", method, bits=f"1/{bits}").to(DEVICE)
            lcrbnn.set_progress(model, 0.5)
            lcrbnn.start_epoch(model)
            retention = lcrbnn.Retention(model, reference="latent-weights" if bits == 32 else "pre-binarization")
            loss = F.cross_entropy(model(images), labels) + retention.loss()
            loss.backward()
            lcrbnn.project_weights(model)
            is_finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
            _check(is_finite and bool(torch.isfinite(loss)), f"{method.name} 1/{bits}: loss or gradient is not finite")
            losses[f"{method.name} 1/{bits}"] = round(loss.item(), 4)
    return losses


def check_lcr_equals_cpu() -> dict[str, Any]:
    """Compare the loss and gradient of every LCR variant in float32 on this device with float64 on the CPU."""
    from lcrbnn.lcr.lcr_variants import LCR_VARIANTS
    from lcrbnn.lcr.retention_loss import retention_loss
    from lcrbnn.lcr.spectral_norm import draw_start_vector

    max_errors = {}
    for (name, variant), num_images in itertools.product(
        LCR_VARIANTS.items(), (32, 256)
    ):  # use more than 128 images, because the kernels treat larger batches in another way
        draws = [torch.randn(num_images, c, s, s, dtype=torch.float64) for c, s in ((16, 16), (16, 16), (32, 8))]
        reference_draws = [
            torch.randn(num_images, c, s, s, dtype=torch.float64) for c, s in ((16, 16), (16, 16), (32, 8))
        ]

        def run(
            device: torch.device,
            dtype: torch.dtype,
            draws: list[Tensor] = draws,
            reference_draws: list[Tensor] = reference_draws,
            variant: Any = variant,
        ) -> tuple[Tensor, list[Tensor]]:
            maps = [m.to(device, dtype).requires_grad_() for m in draws]
            references = [m.to(device, dtype) for m in reference_draws]
            terms = retention_loss(
                list(itertools.pairwise(maps)),
                list(itertools.pairwise(references)),
                variant,
                draw_start_vector(64).to(device),
            )
            return terms.loss.detach().cpu().double(), [
                g.cpu().double() for g in torch.autograd.grad(terms.loss, maps, allow_unused=True) if g is not None
            ]

        on_device, on_cpu = run(DEVICE, torch.float32), run(torch.device("cpu"), torch.float64)
        errors = [float((on_device[0] - on_cpu[0]).abs() / on_cpu[0].abs())]
        errors += [float((a - b).norm() / b.norm()) for a, b in zip(on_device[1], on_cpu[1], strict=True)]
        max_errors[f"{name}, {num_images} images"] = max(errors)
        _check(
            max(errors) < 1e-4,
            f"{name}, {num_images} images: relative error {max(errors):.1e} against the CPU's float64",
        )
    return max_errors


def check_compiled_step() -> dict[str, Any]:
    """Check that torch.compile gives a single graph for a step with LCR, with the gradients of the eager step."""
    torch.manual_seed(0)
    model = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1).to(DEVICE)
    retention = lcrbnn.Retention(model, lcr_weight=10.0)
    images, labels = torch.randn(32, 1, 8, 8, device=DEVICE), torch.arange(32, device=DEVICE) % 10

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels) + retention.loss()

    def gradient() -> Tensor:
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
        return flat

    step(images).backward()
    eager_gradient = gradient()
    start_s = time.monotonic()
    torch.compile(step, fullgraph=True)(images).backward()
    seconds = time.monotonic() - start_s
    error = float((gradient() - eager_gradient).norm() / eager_gradient.norm())
    _check(error < 1e-3, f"compiled gradients differ by {error:.1e}")
    return {"relative_gradient_error": error, "compile_seconds": round(seconds, 1)}


def check_fifty_steps_learn() -> dict[str, Any]:
    """Check that fifty steps on digits halve the loss."""
    train, _ = load_digits()
    images, labels = torch.from_numpy(train.images).to(DEVICE), torch.from_numpy(train.labels).to(DEVICE)
    torch.manual_seed(0)
    model = lcrbnn.create_model("resnet8-double", "irnet", in_channels=1).to(DEVICE)
    retention = lcrbnn.Retention(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    losses = []
    for i in range(50):
        batch = torch.arange(i * 64, (i + 1) * 64, device=DEVICE) % len(labels)
        loss = F.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        (loss + retention.loss()).backward()
        optimizer.step()
        losses.append(loss.item())
    _check(losses[-1] < 0.5 * losses[0], f"the loss changed from {losses[0]:.2f} to {losses[-1]:.2f} only")
    return {"first_loss": round(losses[0], 3), "last_loss": round(losses[-1], 3)}


class _SimulatedCrash(BaseException):
    """Exception that ends a run like a kill signal."""


def check_resumed_run() -> dict[str, Any]:
    """Train on digits with each step mode, once without interruption and once stopped and resumed. Compare the bits."""
    from lcrbnn.evaluation.evaluate import evaluate
    from lcrbnn.runs.checkpoint import read_checkpoint
    from lcrbnn.runs.run_folder import RunFolder
    from lcrbnn.train.loop import TrainingLoop
    from lcrbnn.train.setup.options import RunOptions
    from lcrbnn.train.setup.spec import TrainSpec
    from lcrbnn.train.train import train

    results: dict[str, Any] = {}
    run_step = TrainingLoop._run_step

    def run_step_or_crash(self: TrainingLoop) -> None:
        run_step(self)
        if self.steps_done == 22:
            raise _SimulatedCrash

    def read_arrays(path: Path) -> dict[str, bytes]:
        newest = RunFolder(path).find_newest_checkpoint()
        assert newest is not None
        return {name: a.tobytes() for name, a in read_checkpoint(newest).arrays.items()}

    for step_mode in ("eager", "compiled"):
        spec = TrainSpec(epochs=2, lcr_weight=1.0)
        options = RunOptions(step_mode=step_mode, checkpoint_interval_s=0)
        with tempfile.TemporaryDirectory() as scratch:
            uninterrupted, interrupted = Path(scratch) / "straight", Path(scratch) / "broken"
            train(spec, uninterrupted, options)
            with patch.object(TrainingLoop, "_run_step", run_step_or_crash), suppress(_SimulatedCrash):
                train(spec, interrupted, options)
            train(spec, interrupted, options, resume=True)
            expected, resumed = read_arrays(uninterrupted), read_arrays(interrupted)
            different = [name for name in expected if expected[name] != resumed[name]]
            _check(not different, f"{step_mode}: {len(different)} arrays differ after a resume, {different[:3]}")
            accuracy = evaluate(uninterrupted, options).accuracy.top1
            _check(accuracy > 50, f"{step_mode}: {accuracy:.1f} % after two epochs")
            results[step_mode] = {"arrays": len(expected), "different": len(different), "valid": round(accuracy, 2)}
    return results


CHECKS: dict[str, Callable[[], dict[str, Any]]] = {  # dictionary: key of the check in the record -> function
    "each_method_trains": check_methods_train,
    "retention_equals_the_cpu": check_lcr_equals_cpu,
    "a_compiled_step_equals_the_plain_one": check_compiled_step,
    "fifty_steps_learn": check_fifty_steps_learn,
    "a_resumed_run_ends_with_the_same_bits": check_resumed_run,
}

_failures: list[str] = []


def _check(passed: bool, failure: str) -> None:
    if not passed:
        _failures.append(failure)


def main() -> int:
    """Run all checks, print one line per check and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    environment = describe_environment()
    print(f"torch {environment['torch']}, Python {environment['python']}, {environment['gpu'] or environment['cpu']}")
    figures: dict[str, Any] = {}
    for name, check in CHECKS.items():
        num_failures = len(_failures)
        figures[name] = check()
        print(f"{'ok  ' if len(_failures) == num_failures else 'FAIL'} {name.replace('_', ' ')}")
    for failure in _failures:
        print(f"     {failure}", file=sys.stderr)
    if args.record:
        write_record(args.record, "smoke", {"device": DEVICE.type}, {**figures, "failures": _failures})
    return 1 if _failures else 0


if __name__ == "__main__":
    sys.exit(main())
