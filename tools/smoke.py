"""Does the package run here? On any supported torch, CPU or CUDA, from a bare source tree with torch and NumPy alone.

    python -m tools.smoke [--record FILE]

Every method on a network, forward and backward; every form of the retention loss, compared with the CPU in float64;
a whole step under torch.compile against the plain one; fifty steps that must learn; runs of the trainer, with the plain
and the fast step, that are interrupted, resumed and compared bit for bit. Exits with 1 if anything is off.
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
from lcrbnn.data import load_digits
from lcrbnn.runs.record import environment, write_record

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def each_method_trains() -> dict[str, Any]:
    """One step of every method and bit width on ResNet-20: finite loss and gradients, with retention."""
    done = {}
    images, labels = torch.randn(8, 3, 32, 32, device=DEVICE), torch.arange(8, device=DEVICE) % 10
    for row in lcrbnn.METHODS.values():
        for bits in (b for b in row.activation_bits if b in (1, 2, 32)):
            torch.manual_seed(0)
            model = lcrbnn.network("resnet20-double", row, bits=f"1/{bits}").to(DEVICE)
            lcrbnn.advance(model, 0.5)
            lcrbnn.start_epoch(model)
            retention = lcrbnn.Retention(model, reference="weights" if bits == 32 else "latent")
            loss = F.cross_entropy(model(images), labels) + retention.loss()
            loss.backward()
            lcrbnn.project(model)
            finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
            _demand(finite and bool(torch.isfinite(loss)), f"{row.name} 1/{bits}: loss or gradient not finite")
            done[f"{row.name} 1/{bits}"] = round(loss.item(), 4)
    return done


def retention_equals_the_cpu() -> dict[str, Any]:
    """The loss and its gradient of every preset on the same maps, here in float32 and on the CPU in float64."""
    from lcrbnn.retention import PRESETS, retention_loss
    from lcrbnn.retention.spectral import random_start

    worst = {}
    for (name, form), images in itertools.product(PRESETS.items(), (32, 256)):  # kernels cut more than 128 in two
        draws = [torch.randn(images, c, s, s, dtype=torch.float64) for c, s in ((16, 16), (16, 16), (32, 8))]
        theirs = [torch.randn(images, c, s, s, dtype=torch.float64) for c, s in ((16, 16), (16, 16), (32, 8))]

        def run(
            device: torch.device,
            dtype: torch.dtype,
            draws: list[Tensor] = draws,
            theirs: list[Tensor] = theirs,
            form: Any = form,
        ) -> tuple[Tensor, list[Tensor]]:
            maps = [m.to(device, dtype).requires_grad_() for m in draws]
            other = [m.to(device, dtype) for m in theirs]
            retained = retention_loss(
                list(itertools.pairwise(maps)), list(itertools.pairwise(other)), form, random_start(64).to(device)
            )
            return retained.loss.detach().cpu().double(), [
                g.cpu().double() for g in torch.autograd.grad(retained.loss, maps, allow_unused=True) if g is not None
            ]

        here, there = run(DEVICE, torch.float32), run(torch.device("cpu"), torch.float64)
        errors = [float((here[0] - there[0]).abs() / there[0].abs())]
        errors += [float((a - b).norm() / b.norm()) for a, b in zip(here[1], there[1], strict=True)]
        worst[f"{name}, {images} images"] = max(errors)
        _demand(
            max(errors) < 1e-4, f"{name}, {images} images: relative error {max(errors):.1e} against the CPU's float64"
        )
    return worst


def a_compiled_step_equals_the_plain_one() -> dict[str, Any]:
    """One graph, the same loss and gradients, retention included."""
    torch.manual_seed(0)
    model = lcrbnn.network("resnet8-double", "irnet", in_channels=1).to(DEVICE)
    retention = lcrbnn.Retention(model, weight=10.0)
    images, labels = torch.randn(32, 1, 8, 8, device=DEVICE), torch.arange(32, device=DEVICE) % 10

    def step(images: Tensor) -> Tensor:
        return F.cross_entropy(model(images), labels) + retention.loss()

    def gradient() -> Tensor:
        flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
        return flat

    step(images).backward()
    plain = gradient()
    began = time.monotonic()
    torch.compile(step, fullgraph=True)(images).backward()
    seconds = time.monotonic() - began
    error = float((gradient() - plain).norm() / plain.norm())
    _demand(error < 1e-3, f"compiled gradients differ by {error:.1e}")
    return {"relative_gradient_error": error, "compile_seconds": round(seconds, 1)}


def fifty_steps_learn() -> dict[str, Any]:
    """Digits: the loss halves."""
    train, _ = load_digits()
    images, labels = torch.from_numpy(train.images).to(DEVICE), torch.from_numpy(train.labels).to(DEVICE)
    torch.manual_seed(0)
    model = lcrbnn.network("resnet8-double", "irnet", in_channels=1).to(DEVICE)
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
    _demand(losses[-1] < 0.5 * losses[0], f"the loss went from {losses[0]:.2f} to {losses[-1]:.2f}")
    return {"first_loss": round(losses[0], 3), "last_loss": round(losses[-1], 3)}


class _Crash(BaseException):
    """Ends a run as a kill would."""


def a_resumed_run_ends_with_the_same_bits() -> dict[str, Any]:
    """Digits through the trainer, with each kind of step: undisturbed, and stopped in the middle of an epoch."""
    from lcrbnn.runs.checkpoint import read_checkpoint
    from lcrbnn.runs.folder import RunFolder
    from lcrbnn.train import Spec
    from lcrbnn.train.loop import Loop
    from lcrbnn.train.options import Options
    from lcrbnn.train.reading import evaluate
    from lcrbnn.train.run import train

    done: dict[str, Any] = {}
    whole = Loop._one

    def one(self: Loop) -> None:
        whole(self)
        if self.done == 22:
            raise _Crash

    def arrays(path: Path) -> dict[str, bytes]:
        newest = RunFolder(path).newest()
        assert newest is not None
        return {name: a.tobytes() for name, a in read_checkpoint(newest).arrays.items()}

    for kind in ("eager", "fast"):
        spec = Spec(epochs=2, weight=1.0)
        options = Options(step=kind, save_seconds=0)
        with tempfile.TemporaryDirectory() as scratch:
            straight, broken = Path(scratch) / "straight", Path(scratch) / "broken"
            train(spec, straight, options)
            with patch.object(Loop, "_one", one), suppress(_Crash):
                train(spec, broken, options)
            train(spec, broken, options, resume=True)
            mine, theirs = arrays(straight), arrays(broken)
            different = [name for name in mine if mine[name] != theirs[name]]
            _demand(not different, f"{kind}: {len(different)} arrays differ after a resume, {different[:3]}")
            accuracy = evaluate(straight, options).accuracy.top1
            _demand(accuracy > 50, f"{kind}: {accuracy:.1f} % after two epochs")
            done[kind] = {"arrays": len(mine), "different": len(different), "valid": round(accuracy, 2)}
    return done


CHECKS: list[Callable[[], dict[str, Any]]] = [
    each_method_trains,
    retention_equals_the_cpu,
    a_compiled_step_equals_the_plain_one,
    fifty_steps_learn,
    a_resumed_run_ends_with_the_same_bits,
]

_failures: list[str] = []


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        _failures.append(otherwise)


def main() -> int:
    """Run all checks, print a line each, write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    where = environment()
    print(f"torch {where['torch']}, Python {where['python']}, {where['gpu'] or where['cpu']}")
    figures: dict[str, Any] = {}
    for check in CHECKS:
        before = len(_failures)
        figures[check.__name__] = check()
        print(f"{'ok  ' if len(_failures) == before else 'FAIL'} {check.__name__.replace('_', ' ')}")
    for failure in _failures:
        print(f"     {failure}", file=sys.stderr)
    if args.record:
        write_record(args.record, "smoke", {"device": DEVICE.type}, {**figures, "failures": _failures})
    return 1 if _failures else 0


if __name__ == "__main__":
    sys.exit(main())
