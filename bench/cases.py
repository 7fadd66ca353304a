"""CASES: what the GPU's training step is measured on, and what it should reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lcrbnn.train import Spec
from lcrbnn.train.lean import Lean

MEMORY = 1.1  # of the base's: what retention may take at most

# What is added to a step: retention in its forms (the paper's at a lambda that ends no run), or what stands beside it.
RETENTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "latent": {"weight": 1.0},
    "teacher": {"weight": 1.0, "form_options": ("reference=teacher", "maps=real")},
    "paper": {"form": "paper", "weight": 1e-6},
    "paper-blocks": {"form": "paper", "weight": 1e-6, "form_options": ("spans=blocks",)},
    "official": {"form": "official", "weight": 8.0},
    "spectral": {"regularizer": "spectral"},
    "spectral-signs": {"regularizer": "spectral-signs"},
    "defensive": {"regularizer": "defensive"},
}

# Settings of the compiler (torch._inductor.config) that might make a step of many small kernels faster. Cooperative
# reductions are for a run by itself: the programs of one wait for each other, and those of several runs, together more
# than a GPU holds at once, could wait for ever.
COMPILERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "combo": {"combo_kernels": True},  # independent kernels in one launch
    "cooperative": {"triton.cooperative_reductions": True},  # a reduction in one launch instead of two
    "tuned": {"coordinate_descent_tuning": True},  # block sizes by trial
    "pdl": {"triton.enable_pdl": True},  # a kernel is started before the one it waits for has ended (Hopper and later)
}


# Steps with all, some or none of what saves launches; the other rows have what the package has chosen.
LEANS: dict[str, Lean] = {
    "wordy": Lean(),
    "norms": Lean(norms=True, scales=True),
    "together": Lean(together=True),
    "unclipped": Lean(norms=True, scales=True, together=True),
    "lean": Lean(norms=True, clips=True, scales=True, together=True),
}
COMPILERS |= {name: {} for name in LEANS}


@dataclass(frozen=True)
class Case:
    """A row of CASES: what is trained, and what is asked of it."""

    model: str
    data: str = "synthetic-32"  # a row of SYNTHETIC
    retention: str = "none"  # a row of RETENTIONS
    compiler: str = "plain"  # a row of COMPILERS
    seeds: int = 1  # runs side by side
    batch: int = 128
    precision: str = "bfloat16"
    rate: float | None = None  # images a second, at least
    base: str | None = None  # the case that it is compared with
    slower: float | None = None  # than the base: a step takes at most this many times as long

    @property
    def taught(self) -> bool:
        """Whether it needs a teacher."""
        return self.retention in ("teacher", "official")

    @property
    def compiled(self) -> tuple[object, ...]:
        """What its step is compiled for: cases with the same answer find each other's."""
        return (self.model, self.data, self.retention, self.compiler, self.precision, self.batch)

    def spec(self, teacher: str = "", seed: int = 0) -> Spec:
        """The settings of one of its runs: those of the recipes, with a rate that no random label can blow up."""
        return Spec(
            data=self.data,
            images="all",
            model=self.model,
            teacher=teacher,
            epochs=400,
            batch=self.batch,
            drop_last=True,
            lr=0.01,
            precision=self.precision,
            deterministic=False,
            seed=seed,
            **RETENTIONS[self.retention],
        )


_IMAGENET = Case("resnet18-double-imagenet", data="synthetic-224")

CASES: dict[str, Case] = {
    "resnet20": Case("resnet20-double", rate=100_000),
    "resnet20-four": Case("resnet20-double", seeds=4, rate=150_000),
    "resnet20-five": Case("resnet20-double", seeds=5),
    "resnet20-latent": Case("resnet20-double", retention="latent", base="resnet20", slower=1.15),
    "resnet20-teacher": Case("resnet20-double", retention="teacher", base="resnet20", slower=1.30),
    **{
        f"resnet20-{name}": Case("resnet20-double", retention=name, base="resnet20")
        for name in ("paper", "paper-blocks", "official", "spectral", "spectral-signs", "defensive")
    },
    "resnet20-combo": Case("resnet20-double", compiler="combo", base="resnet20"),
    "resnet20-cooperative": Case("resnet20-double", compiler="cooperative", base="resnet20"),
    **{
        f"resnet20-five-{name}": Case("resnet20-double", compiler=name, seeds=5, base="resnet20-five")
        for name in ("combo", "tuned", "pdl", *LEANS)
    },
    "resnet20-pdl": Case("resnet20-double", compiler="pdl", base="resnet20"),
    "resnet20-five-paper": Case("resnet20-double", retention="paper", seeds=5, base="resnet20-five"),
    "resnet18": Case("resnet18", rate=60_000),
    "resnet18-three": Case("resnet18", seeds=3),
    "resnet18-three-lean": Case("resnet18", compiler="lean", seeds=3, base="resnet18-three"),
    "resnet20-five-latent": Case("resnet20-double", retention="latent", seeds=5, base="resnet20-five"),
    "resnet20-five-latent-lean": Case(
        "resnet20-double", retention="latent", compiler="lean", seeds=5, base="resnet20-five-latent"
    ),
    "resnet18-256": Case("resnet18", batch=256),
    "resnet18-256-unclipped": Case("resnet18", compiler="unclipped", batch=256, base="resnet18-256"),
    "resnet18-256-latent": Case("resnet18", retention="latent", batch=256, base="resnet18-256"),
    "resnet18-combo": Case("resnet18", compiler="combo", base="resnet18"),
    "resnet18-cooperative": Case("resnet18", compiler="cooperative", base="resnet18"),
    "resnet18-tuned": Case("resnet18", compiler="tuned", base="resnet18"),
    "resnet18-pdl": Case("resnet18", compiler="pdl", base="resnet18"),
    "resnet18-latent": Case("resnet18", retention="latent", base="resnet18", slower=1.05),
    "resnet18-teacher": Case("resnet18", retention="teacher", base="resnet18", slower=1.20),
    "resnet18-224": _IMAGENET,
    "resnet18-224-latent": replace(_IMAGENET, retention="latent", rate=12_000, base="resnet18-224"),
}


def rehearsed(case: Case) -> Case:
    """The same with the smallest network on the smallest images: it shows on a CPU that everything runs."""
    return replace(case, model="resnet8-double", data="synthetic-8")
