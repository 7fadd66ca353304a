"""Compare accuracy, step time and memory of LCR with those of spectral normalization and defensive quantization.

    python -m bench.training.regularizer_comparison [--record FILE] [--rounds 15] [--epochs 15] [--seeds 3]

Accuracy: the network of the demo is trained on digits with paired seeds and evaluated on the 500 test digits. Step
time: ResNet-20 (double skip, IR-Net), batch size 128. The steps of all variants alternate, so that changes in machine
load affect all variants. A ratio is a quotient of medians. On a CPU, times are CPU seconds of the process, because
other programs disturb wall time. Memory: the bytes of all tensors that a step saves for its backward pass. On a GPU,
the peak of the allocator is measured too. Output change: how much a variant changes the output of a binary layer and
its batch norm. If a sign or a batch norm cancels the normalization, only the effect of the batch norm's eps remains.

The benchmark runs on CPU and GPU and needs only torch and NumPy.
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
from lcrbnn.evaluation.evaluate import evaluate
from lcrbnn.lcr.regularizers import REGULARIZERS
from lcrbnn.recipes.recipe import apply_lcr_default
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import write_record
from lcrbnn.train.setup.options import RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.train import train

BATCH_SIZE = 128
STEPS_PER_EPOCH = 21  # number of training steps per epoch: 1,297 digits in batches of 64
NUM_COMPARED_IMAGES = 8  # number of images for measuring the change of layer outputs
REGULARIZER_WEIGHT = 1e-4  # weight of the loss of defensive quantization
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

# Dictionary: variant name -> (key of REGULARIZERS, whether LCR is used).
VARIANTS: dict[str, tuple[str, bool]] = {
    "none": ("none", False),
    "retention (LCR, default)": ("none", True),
    "spectral, before the sign": ("spectral-norm-latent", False),
    "spectral, after the sign": ("spectral-norm-binary", False),
    "defensive": ("defensive-quantization", False),
}


class VariantTrainer:
    """Trainer of one variant on fixed images."""

    def __init__(self, name: str, uses_lcr: bool) -> None:
        """Build the network, whose initial weights are the same in every variant."""
        torch.manual_seed(0)
        self.model = lcrbnn.create_model("resnet20-double", "irnet").to(DEVICE)
        self.images = torch.randn(BATCH_SIZE, 3, 32, 32).to(DEVICE)
        self.labels = torch.randint(0, 10, (BATCH_SIZE,)).to(DEVICE)
        regularizer = REGULARIZERS[name]
        with torch.random.fork_rng():
            if regularizer.attach is not None:
                regularizer.attach(self.model)
        self.added_loss: Callable[[torch.nn.Module], Tensor] | None = regularizer.loss
        self.retention = lcrbnn.Retention(self.model) if uses_lcr else None
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)

    def compute_loss(self) -> Tensor:
        """Return the loss of one batch, including the loss added by the variant."""
        loss = F.cross_entropy(self.model(self.images), self.labels)
        loss = loss if self.added_loss is None else loss + REGULARIZER_WEIGHT * self.added_loss(self.model)
        return loss if self.retention is None else loss + self.retention.loss()

    def train_step(self) -> None:
        """Run one training step."""
        loss = self.compute_loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        lcrbnn.project_weights(self.model)

    def time_step(self) -> tuple[float, float]:
        """Run one step. Return its wall seconds and CPU seconds."""
        return time_call(self.train_step)

    def measure_saved_bytes(self) -> int:
        """Return the bytes of all tensors that are saved for the backward pass, without weights.

        Shared storage is counted once.
        """
        weights = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        bytes_by_storage: dict[int, int] = {}

        def record_storage(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                bytes_by_storage[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(record_storage, lambda tensor: tensor):
            loss = self.compute_loss()
        total = sum(bytes_by_storage.values())
        loss.backward()
        self.optimizer.zero_grad()
        return total

    def measure_peak_bytes(self) -> int | None:
        """Return how many bytes a step adds to the allocator's memory at its peak, or None on a CPU."""
        if DEVICE.type != "cuda":
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.time_step()
        return torch.cuda.max_memory_allocated() - before


def time_call(work: Callable[[], object]) -> tuple[float, float]:
    """Return the wall seconds (until the device has finished) and CPU seconds of a call."""
    _synchronize()
    wall_start_s, cpu_start_s = time.perf_counter(), time.process_time()
    work()
    _synchronize()
    return time.perf_counter() - wall_start_s, time.process_time() - cpu_start_s


def _synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def time_variants(trainers: dict[str, VariantTrainer], rounds: int) -> dict[str, tuple[float, float]]:
    """Return the median wall and CPU seconds per step of each variant. The variants alternate."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trainers}
    for i in range(rounds + 1):
        for name, trainer in trainers.items():
            step_seconds = trainer.time_step()
            if i > 0:  # the first round is a warm-up and is not timed
                seconds[name].append(step_seconds)
    return {
        name: (
            statistics.median(wall for wall, _ in variant_seconds),
            statistics.median(cpu for _, cpu in variant_seconds),
        )
        for name, variant_seconds in seconds.items()
    }


@torch.no_grad()
def measure_output_change(name: str) -> float:
    """Return the largest relative change that a regularizer causes in the output of a binary layer and batch norm.

    Each layer is measured separately, on equal inputs and in float64. In a complete network, the eps of a batch norm is
    enough to flip a sign, and later layers amplify the difference.
    """
    plain, regularized = VariantTrainer("none", False).model.double(), VariantTrainer(name, False).model.double()
    largest = 0.0
    for block in plain.block_names:
        for conv, norm in (("conv1", "bn1"), ("conv2", "bn2")):
            plain_layers, regularized_layers = (
                [net.get_submodule(f"{block}.{part}") for part in (conv, norm)] for net in (plain, regularized)
            )
            depth = next(plain_layers[0].parameters()).shape[1]
            x = torch.randn(NUM_COMPARED_IMAGES, depth, 8, 8, dtype=torch.float64).to(DEVICE)
            plain_output, output = plain_layers[1](plain_layers[0](x)), regularized_layers[1](regularized_layers[0](x))
            largest = max(largest, float((output - plain_output).norm() / plain_output.norm()))
    return largest


def train_and_evaluate(name: str, uses_lcr: bool, epochs: int, seeds: int, progress: ProgressBar) -> list[float]:
    """Return the test accuracy of each seed. Training uses one thread, because that is fastest on digits."""
    accuracies = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    options = RunOptions(device=DEVICE.type, step_mode="eager")
    for seed in range(seeds):
        spec = TrainSpec(
            train_split="train+valid", epochs=epochs, regularizer=name, regularizer_weight=REGULARIZER_WEIGHT, seed=seed
        )
        with tempfile.TemporaryDirectory() as scratch:
            path = train(
                apply_lcr_default(spec, "default") if uses_lcr else spec,
                Path(scratch) / "run",
                options,
                progress=lambda total, steps_done: progress,
            )
            accuracies.append(evaluate(path, options, use_test_split=True).accuracy.top1)
    torch.set_num_threads(threads)
    return accuracies


def main() -> None:
    """Measure all variants and print one line per variant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--record", type=Path, help="write the results to this JSON file")
    parser.add_argument("--rounds", type=int, default=15, help="number of timed training steps per variant")
    parser.add_argument("--epochs", type=int, default=15, help="number of epochs of each training run on digits")
    parser.add_argument("--seeds", type=int, default=3, help="number of training runs on digits per variant")
    args = parser.parse_args()
    trainers = {name: VariantTrainer(*arguments) for name, arguments in VARIANTS.items()}
    seconds = time_variants(trainers, args.rounds)
    clock = 0 if DEVICE.type == "cuda" else 1
    figures: dict[str, Any] = {}
    progress = ProgressBar(len(VARIANTS) * args.seeds * args.epochs * STEPS_PER_EPOCH)
    print(f"{'':<26} step  ratio  kept for backward  digits %  layers move")
    for name, (regularizer, uses_lcr) in VARIANTS.items():
        accuracies = train_and_evaluate(regularizer, uses_lcr, args.epochs, args.seeds, progress)
        row: dict[str, Any] = {
            "step_seconds": seconds[name][0],
            "busy_seconds": seconds[name][1],
            "ratio": seconds[name][clock] / seconds["none"][clock],
            "kept_bytes": trainers[name].measure_saved_bytes(),
            "peak_bytes": trainers[name].measure_peak_bytes(),
            "accuracy": accuracies,
            "layers_move": measure_output_change(regularizer),
        }
        figures[name] = row
        print(
            f"{name:<26} {1e3 * row['step_seconds']:.0f} ms  {row['ratio']:.3f}  {row['kept_bytes'] / 2**20:.1f} MiB"
            f"  {statistics.fmean(accuracies):.2f}  {row['layers_move']:.1e}"
        )
    if args.record:
        settings = {
            "network": "resnet20-double",
            "method": "irnet",
            "batch": BATCH_SIZE,
            "rounds": args.rounds,
            "strength": REGULARIZER_WEIGHT,
            "digits": {"network": "resnet8-double", "epochs": args.epochs, "seeds": args.seeds},
            "threads": torch.get_num_threads(),
            "device": DEVICE.type,
        }
        write_record(args.record, "regularizers", settings, figures)
        print(f"record: {args.record}", file=sys.stderr)


if __name__ == "__main__":
    main()
