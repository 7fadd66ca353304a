"""Retention beside spectral normalisation and defensive quantisation: accuracy, step time and memory, in one run.

    python -m bench.regularizers [--record FILE] [--rounds 15] [--epochs 15] [--seeds 3]

Accuracy: the demo's network on digits, paired seeds, the 500 test digits. Step time: ResNet-20 (double skip, IR-Net),
batch 128, plain steps of all variants in turns, so that a drift of the machine meets all of them; a ratio of medians.
On a CPU that others use too, wall time says little: there the ratio is that of the process's own seconds.
Memory: what a step keeps for its way back, each tensor once; on a GPU the peak of the allocator too. Last, what a
variant changes at all: how far the output of a binary layer and its batch norm moves. A normalisation that a sign or a
batch norm undoes leaves no more than the batch norm's eps there.

Works on a CPU and on a GPU, with torch and NumPy alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import lcrbnn
from lcrbnn.regularizers import REGULARIZERS
from lcrbnn.runs.progress import Progress
from lcrbnn.runs.record import write_record
from lcrbnn.train import Spec
from lcrbnn.train.options import Options
from lcrbnn.train.reading import evaluate
from lcrbnn.train.run import train
from lcrbnn.train.strengths import retaining

BATCH = 128
STEPS = 21  # of an epoch: 1,297 digits in batches of 64
SOME = 8  # images that a layer is compared on
STRENGTH = 1e-4  # of defensive quantisation's loss
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Name -> row of REGULARIZERS, and whether retention takes part.
VARIANTS: dict[str, tuple[str, bool]] = {
    "none": ("none", False),
    "retention (LCR, default)": ("none", True),
    "spectral, before the sign": ("spectral", False),
    "spectral, after the sign": ("spectral-signs", False),
    "defensive": ("defensive", False),
}


class Trainer:
    """Steps of one variant on fixed images."""

    def __init__(self, name: str, retains: bool) -> None:
        """Make the network, the same weights in each variant."""
        torch.manual_seed(0)
        self.model = lcrbnn.network("resnet20-double", "irnet").to(DEVICE)
        self.images = torch.randn(BATCH, 3, 32, 32).to(DEVICE)
        self.labels = torch.randint(0, 10, (BATCH,)).to(DEVICE)
        row = REGULARIZERS[name]
        with torch.random.fork_rng():
            if row.attach is not None:
                row.attach(self.model)
        self.added: Callable[[torch.nn.Module], Tensor] | None = row.loss
        self.retention = lcrbnn.Retention(self.model) if retains else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)

    def loss(self) -> Tensor:
        """Of one batch, with what the variant adds."""
        loss = F.cross_entropy(self.model(self.images), self.labels)
        loss = loss if self.added is None else loss + STRENGTH * self.added(self.model)
        return loss if self.retention is None else loss + self.retention.loss()

    def learn(self) -> None:
        """One step."""
        loss = self.loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        lcrbnn.project(self.model)

    def step(self) -> tuple[float, float]:
        """One step, in seconds: of the clock, and of this process."""
        return timed(self.learn)

    def kept_bytes(self) -> int:
        """The memory of all tensors that a step keeps for its way back, each storage once, weights left out."""
        weights = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        seen: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = self.loss()
        total = sum(seen.values())
        loss.backward()
        self.optimizer.zero_grad()
        return total

    def peak_bytes(self) -> int | None:
        """The allocator's peak in a step, on a GPU; that of the other variants' networks is in it for all alike."""
        if DEVICE.type != "cuda":
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        return torch.cuda.max_memory_allocated() - before


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """The seconds of some work: of the clock, until the device has done it, and of this process."""
    _wait()
    began, busy = time.perf_counter(), time.process_time()
    work()
    _wait()
    return time.perf_counter() - began, time.process_time() - busy


def _wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def times(trainers: dict[str, Trainer], rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds of a step, of the clock and of the process, all variants in turns."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    for i in range(rounds + 1):
        for name, trainer in trainers.items():
            spent = trainer.step()
            if i > 0:  # the first round warms up
                seconds[name].append(spent)
    return {
        name: (statistics.median(wall for wall, _ in found), statistics.median(busy for _, busy in found))
        for name, found in seconds.items()
    }


@torch.no_grad()
def changed(name: str) -> float:
    """How far the output of a binary layer and its batch norm moves by this regulariser, relative; the largest.

    Layer by layer, each on the same input, in float64: through a whole network the eps of a batch norm is enough to
    turn a sign somewhere, and later layers make much of that.
    """
    plain, other = Trainer("none", False).model.double(), Trainer(name, False).model.double()
    furthest = 0.0
    for block in plain.blocks:
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            mine, theirs = ([net.get_submodule(f"{block}.{part}") for part in (conv, norm)] for net in (plain, other))
            depth = next(mine[0].parameters()).shape[1]
            x = torch.randn(SOME, depth, 8, 8, dtype=torch.float64).to(DEVICE)
            ours, his = mine[1](mine[0](x)), theirs[1](theirs[0](x))
            furthest = max(furthest, float((his - ours).norm() / ours.norm()))
    return furthest


def accuracies(name: str, retains: bool, epochs: int, seeds: int, progress: Progress) -> list[float]:
    """Test accuracy of each seed; one thread, since two only wait for each other on digits."""
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    options = Options(device=DEVICE.type, step="eager")
    for seed in range(seeds):
        spec = Spec(images="all", epochs=epochs, regularizer=name, strength=STRENGTH, seed=seed)
        with tempfile.TemporaryDirectory() as scratch:
            path = train(
                retaining(spec, "default") if retains else spec,
                Path(scratch) / "run",
                options,
                progress=lambda total, done: progress,
            )
            found.append(evaluate(path, options, final=True).accuracy.top1)
    torch.set_num_threads(threads)
    return found


def main() -> None:
    """Measure all variants and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the figures into this JSON file")
    parser.add_argument("--rounds", type=int, default=15, help="timed steps of each variant")
    parser.add_argument("--epochs", type=int, default=15, help="of each run on digits")
    parser.add_argument("--seeds", type=int, default=3, help="runs on digits of each variant")
    args = parser.parse_args()
    trainers = {name: Trainer(*how) for name, how in VARIANTS.items()}
    seconds = times(trainers, args.rounds)
    kind = 0 if DEVICE.type == "cuda" else 1
    figures: dict[str, Any] = {}
    progress = Progress(len(VARIANTS) * args.seeds * args.epochs * STEPS)
    print(f"{'':<26} step  ratio  kept for backward  digits %  layers move")
    for name, (regularizer, retains) in VARIANTS.items():
        scores = accuracies(regularizer, retains, args.epochs, args.seeds, progress)
        row: dict[str, Any] = {
            "step_seconds": seconds[name][0],
            "busy_seconds": seconds[name][1],
            "ratio": seconds[name][kind] / seconds["none"][kind],
            "kept_bytes": trainers[name].kept_bytes(),
            "peak_bytes": trainers[name].peak_bytes(),
            "accuracy": scores,
            "layers_move": changed(regularizer),
        }
        figures[name] = row
        print(
            f"{name:<26} {1e3 * row['step_seconds']:.0f} ms  {row['ratio']:.3f}  {row['kept_bytes'] / 2**20:.1f} MiB"
            f"  {statistics.fmean(scores):.2f}  {row['layers_move']:.1e}"
        )
    if args.record:
        settings = {
            "network": "resnet20-double",
            "method": "irnet",
            "batch": BATCH,
            "rounds": args.rounds,
            "strength": STRENGTH,
            "digits": {"network": "resnet8-double", "epochs": args.epochs, "seeds": args.seeds},
            "threads": torch.get_num_threads(),
            "device": DEVICE.type,
        }
        write_record(args.record, "regularizers", settings, figures)
        print(f"record: {args.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
