"""CASES contains the training steps that are measured on a GPU, with their targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lcrbnn.train.fast.fused_step import FusionOptions
from lcrbnn.train.setup.spec import TrainSpec

MAX_MEMORY_RATIO = 1.1  # maximum ratio of the GPU memory of a run with LCR to that of the same run without LCR

# Settings that add a loss to a step: variants of LCR or other regularizers. The lambda of the variant "paper" is so
# small that training never diverges.
ADDED_LOSSES: dict[str, dict[str, Any]] = {
    "none": {},
    "latent": {"lcr_weight": 1.0},
    "teacher": {"lcr_weight": 1.0, "lcr_options": ("reference=teacher", "activations=real")},
    "paper": {"lcr_variant": "paper", "lcr_weight": 1e-6},
    "paper-blocks": {"lcr_variant": "paper", "lcr_weight": 1e-6, "lcr_options": ("granularity=blocks",)},
    "official": {"lcr_variant": "official", "lcr_weight": 8.0},
    "spectral": {"regularizer": "spectral-norm-latent"},
    "spectral-signs": {"regularizer": "spectral-norm-binary"},
    "defensive": {"regularizer": "defensive-quantization"},
}

# Compiler settings (torch._inductor.config) that might speed up a step of many small kernels. Use cooperative
# reductions for single runs only. The programs of one such reduction wait for each other. The programs of several
# parallel runs may not fit on a GPU at the same time, and then they would deadlock.
COMPILER_SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "combo": {"combo_kernels": True},  # combine several independent kernels in one launch
    "cooperative": {"triton.cooperative_reductions": True},  # use one launch per reduction instead of two
    "tuned": {"coordinate_descent_tuning": True},  # try several block sizes per kernel
    # programmatic dependent launch: starts a kernel before the previous one has ended (Hopper and later)
    "pdl": {"triton.enable_pdl": True},
}


# Dictionary: case name -> fusion options. Cases without an entry use the default options of the package.
FUSION_OPTIONS: dict[str, FusionOptions] = {
    "wordy": FusionOptions(),
    "norms": FusionOptions(fuse_batch_norms=True, scale_weights=True),
    "together": FusionOptions(combine_kernels=True),
    "unclipped": FusionOptions(fuse_batch_norms=True, scale_weights=True, combine_kernels=True),
    "lean": FusionOptions(fuse_batch_norms=True, save_hardtanh_memory=True, scale_weights=True, combine_kernels=True),
}
COMPILER_SETTINGS |= {name: {} for name in FUSION_OPTIONS}


@dataclass(frozen=True)
class Case:
    """A row of CASES, with a training setup and its targets."""

    model: str
    dataset: str = "synthetic-32"  # name of the data set, a key of SYNTHETIC_SIZES
    added_loss: str = "none"  # name of the additional loss, a key of ADDED_LOSSES
    compiler: str = "plain"  # name of the compiler settings, a key of COMPILER_SETTINGS
    num_runs: int = 1  # number of runs that are trained in parallel in one process
    batch_size: int = 128
    precision: str = "bfloat16"
    min_images_per_s: float | None = None  # minimum number of images per second (a target); None = no target
    baseline: str | None = None  # name of the case with which this case is compared
    # Maximum ratio of the step time to that of the baseline case (a target); None = no target
    max_time_ratio: float | None = None

    @property
    def needs_teacher(self) -> bool:
        """Return whether the added loss needs a teacher network."""
        return self.added_loss in ("teacher", "official")

    @property
    def compile_key(self) -> tuple[object, ...]:
        """Return the key of the compiled step. Cases with equal keys use the same compiled code."""
        return (self.model, self.dataset, self.added_loss, self.compiler, self.precision, self.batch_size)

    def make_spec(self, teacher: str = "", seed: int = 0) -> TrainSpec:
        """Return the spec of one run.

        It has the settings of the recipes, but a learning rate that is stable on random labels.
        """
        return TrainSpec(
            dataset=self.dataset,
            train_split="train+valid",
            model=self.model,
            teacher=teacher,
            epochs=400,
            batch_size=self.batch_size,
            drop_last=True,
            lr=0.01,
            precision=self.precision,
            deterministic=False,
            seed=seed,
            **ADDED_LOSSES[self.added_loss],
        )


_IMAGENET = Case("resnet18-double-imagenet", dataset="synthetic-224")

CASES: dict[str, Case] = {
    "resnet20": Case("resnet20-double", min_images_per_s=100_000),
    "resnet20-four": Case("resnet20-double", num_runs=4, min_images_per_s=150_000),
    "resnet20-five": Case("resnet20-double", num_runs=5),
    "resnet20-latent": Case("resnet20-double", added_loss="latent", baseline="resnet20", max_time_ratio=1.15),
    "resnet20-teacher": Case("resnet20-double", added_loss="teacher", baseline="resnet20", max_time_ratio=1.30),
    **{
        f"resnet20-{name}": Case("resnet20-double", added_loss=name, baseline="resnet20")
        for name in ("paper", "paper-blocks", "official", "spectral", "spectral-signs", "defensive")
    },
    "resnet20-combo": Case("resnet20-double", compiler="combo", baseline="resnet20"),
    "resnet20-cooperative": Case("resnet20-double", compiler="cooperative", baseline="resnet20"),
    **{
        f"resnet20-five-{name}": Case("resnet20-double", compiler=name, num_runs=5, baseline="resnet20-five")
        for name in ("combo", "tuned", "pdl", *FUSION_OPTIONS)
    },
    "resnet20-pdl": Case("resnet20-double", compiler="pdl", baseline="resnet20"),
    "resnet20-five-paper": Case("resnet20-double", added_loss="paper", num_runs=5, baseline="resnet20-five"),
    "resnet18": Case("resnet18", min_images_per_s=60_000),
    "resnet18-three": Case("resnet18", num_runs=3),
    "resnet18-three-lean": Case("resnet18", compiler="lean", num_runs=3, baseline="resnet18-three"),
    "resnet20-five-latent": Case("resnet20-double", added_loss="latent", num_runs=5, baseline="resnet20-five"),
    "resnet20-five-latent-lean": Case(
        "resnet20-double", added_loss="latent", compiler="lean", num_runs=5, baseline="resnet20-five-latent"
    ),
    "resnet18-256": Case("resnet18", batch_size=256),
    "resnet18-256-unclipped": Case("resnet18", compiler="unclipped", batch_size=256, baseline="resnet18-256"),
    "resnet18-256-latent": Case("resnet18", added_loss="latent", batch_size=256, baseline="resnet18-256"),
    "resnet18-combo": Case("resnet18", compiler="combo", baseline="resnet18"),
    "resnet18-cooperative": Case("resnet18", compiler="cooperative", baseline="resnet18"),
    "resnet18-tuned": Case("resnet18", compiler="tuned", baseline="resnet18"),
    "resnet18-pdl": Case("resnet18", compiler="pdl", baseline="resnet18"),
    "resnet18-latent": Case("resnet18", added_loss="latent", baseline="resnet18", max_time_ratio=1.05),
    "resnet18-teacher": Case("resnet18", added_loss="teacher", baseline="resnet18", max_time_ratio=1.20),
    "resnet18-224": _IMAGENET,
    "resnet18-224-latent": replace(_IMAGENET, added_loss="latent", min_images_per_s=12_000, baseline="resnet18-224"),
}


def shrink_case(case: Case) -> Case:
    """Return the case with the smallest network and the smallest images, so that it can be tried on a CPU."""
    return replace(case, model="resnet8-double", dataset="synthetic-8")
