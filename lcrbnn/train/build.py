"""From a spec to its parts: network, teacher, retention, optimiser. Whatever a spec gets wrong is refused here."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lcrbnn.errors import InputError, choose, refuse_unknown
from lcrbnn.layers import BinaryLayer
from lcrbnn.methods import Method
from lcrbnn.methods import method as find_method
from lcrbnn.methods.reactnet import ReactActivation
from lcrbnn.models import MODELS, Network, network
from lcrbnn.models.blocks import RPReLU
from lcrbnn.models.table import REAL
from lcrbnn.regularizers import REGULARIZERS
from lcrbnn.retention import PRESETS, Form, Retention
from lcrbnn.runs.checkpoint import Checkpoint, read_checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.checkpoint_content import check_facts, check_training_state
from lcrbnn.train.dataset import data_row
from lcrbnn.train.finished import check_recorded, digest_checkpoint
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.seeds import derive
from lcrbnn.train.shared_norm import share_norms
from lcrbnn.train.spec import Spec, option_values
from lcrbnn.train.state import array, module_arrays, restore_module


class Parts(NamedTuple):
    """What a step works on. `names` has every trained parameter, with a name that is stable."""

    model: Network
    teacher: Network | None
    teacher_digest: str | None  # of the teacher's checkpoint: a run goes on only with the same teacher
    retention: Retention | None
    optimizer: torch.optim.Optimizer
    names: dict[Tensor, str]


STUDY = "study:"  # before PLAN/ARM/seed-N, a run of a study, where a spec names a run
RUNS = Path("runs")  # where the runs of studies lie unless another folder is said: a folder a plan


def run_named(text: str, runs: Path = RUNS) -> RunFolder:
    """The run that a spec starts from or learns from: its folder, or study:PLAN/ARM/seed-N."""
    return RunFolder(runs / text.removeprefix(STUDY) if text.startswith(STUDY) else Path(text))


def build(spec: Spec, device: torch.device, *, fused: bool = False, ranks: Ranks = ALONE, runs: Path = RUNS) -> Parts:
    """Make everything that a spec names; the network's start depends on the seed alone.

    A fused optimiser takes its learning rate from the device, as a captured step needs it. Runs of studies that the
    spec names lie in `runs`.
    """
    check_others(spec, runs)
    check_spec(spec)
    model = build_network(spec)
    if spec.start:
        _start(spec, model, run_named(spec.start, runs))
    model = model.to(device)
    if ranks.launched and spec.batch_norm == "sync":
        share_norms(model)
    teacher, digest = (None, None) if not spec.teacher else _teacher(spec, device, run_named(spec.teacher, runs))
    retention = _retention(spec, model, teacher)
    names: dict[Tensor, str] = {p: f"model/{n}" for n, p in model.named_parameters()}
    if retention is not None:
        names |= {p: f"retention/{n}" for n, p in retention.named_parameters()}
    return Parts(model, teacher, digest, retention, _optimizer(spec, model, names, fused), names)


def chosen_form(spec: Spec) -> Form:
    """The form of the retention loss, with the spec's changes and lambda."""
    changes = option_values(spec.form_options, "form_options")
    if "weight" in changes:
        raise InputError("form_options do not hold the weight: lambda is a setting of its own, weight")
    return choose(PRESETS, spec.form, "preset of the retention loss").but(
        weight=1.0 if spec.share > 0 else spec.weight, **changes
    )


def check_spec(spec: Spec) -> None:
    """Raise what is wrong with a spec by itself: without its network, its images and the runs that it names."""
    data_row(spec)
    choose(MODELS, spec.model, "network")
    form, method = chosen_form(spec), _method(spec)
    if form.weight > 0 and method is None:
        raise InputError("a full-precision network has nothing to retain: weight and share go with a method")
    if spec.teacher and spec.distill == 0 and not (_active(form) and form.reference == "teacher"):
        raise InputError("a teacher is given and nothing uses it: say distill, or form_options reference=teacher")


# What each of these settings goes with, and whether a spec has that: without it nothing uses the setting.
GOES_WITH: dict[str, tuple[str, Callable[[Spec], bool]]] = {
    "start_with": ("start, the run whose weights are taken", lambda spec: bool(spec.start)),
    "ramp": ("a weight or share of more than 0", lambda spec: spec.retains),
    "strength": (
        "regularizer " + " or ".join(row.name for row in REGULARIZERS.values() if row.loss is not None),
        lambda spec: REGULARIZERS[spec.regularizer].loss is not None,
    ),
    "temperature": ("distill of more than 0", lambda spec: spec.distill > 0),
    "milestones": ("schedule step", lambda spec: spec.schedule == "step"),
    "gamma": ("schedule step", lambda spec: spec.schedule == "step"),
}


def refuse_unused(spec: Spec, said: Iterable[str], processes: int = 1) -> None:
    """Raise if nothing uses one of the settings that were `said`, unless it has the value that it would have anyway.

    Only what was said for this very run: a setting of its recipe may be left over where the run changes another.
    """
    given = set(said)
    several = ("several processes (torchrun)", lambda spec: processes > 1)
    for name, (needed, there) in {**GOES_WITH, "batch_norm": several}.items():
        value = getattr(spec, name)
        if name in given and value != getattr(Spec(), name) and not there(spec):
            values = value if isinstance(value, tuple) else (value,)
            shown = ", ".join(one if isinstance(one, str) else f"{one:g}" for one in values)
            raise InputError(f"{name} {shown} is given and nothing uses it: it goes with {needed}")


def _active(form: Form) -> bool:
    return form.weight > 0 or form.quantization > 0


def _retention(spec: Spec, model: Network, teacher: Network | None) -> Retention | None:
    form = chosen_form(spec)
    if not _active(form):  # a run without retention has nothing of it, whatever its form could not do
        return None
    taught = teacher if form.reference == "teacher" else None
    # A step finds an overflow itself, on all processes alike.
    return Retention(model, form, teacher=taught, seed=spec.seed, check_overflow=False)


def build_network(spec: Spec) -> Network:
    """The network of a spec, freshly initialised by its seed, on the CPU."""
    row = data_row(spec)
    if row.classes == 0:
        raise InputError(f"the number of classes of {row.name} is not known yet: say classes")
    method = _method(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(spec.seed, "start"))
        model = network(
            spec.model,
            method,
            classes=row.classes,
            in_channels=row.channels,
            image=row.image,
        )
        attach = REGULARIZERS[spec.regularizer].attach
        if attach is not None:
            attach(model)
    if spec.norm_start != 1.0:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, spec.norm_start)
    if spec.precision == "float64":
        _widen(model)
    return model


def _widen(model: nn.Module) -> None:
    model.double().register_forward_pre_hook(lambda module, given: tuple(x.double() for x in given))


def _method(spec: Spec) -> Method | None:
    options = option_values(spec.method_options, "method_options")
    if spec.method == REAL:
        if options or spec.bits:
            raise InputError("full precision has neither bits nor method_options")
        if spec.regularizer != "none":
            raise InputError("a full-precision network has no binary layers for a regularizer")
        return None
    row = find_method(spec.method)
    refuse_unknown(options, row.option_names(), f"option of {row.name}")
    return row.configure(spec.bits or None, **options)


def read_spec(folder: RunFolder) -> Spec:
    """The spec of the run in a folder."""
    try:
        return Spec.of(folder.read_spec())
    except InputError as error:
        said = str(error)
        raise InputError(said if str(folder.path) in said else f"{folder.spec}: {said}") from None


def load_network(folder: RunFolder) -> tuple[Spec, Network, str]:
    """The network of a run as its newest checkpoint has it, with the spec and the checkpoint's digest.

    Of a checkpoint that is a part of another one it is the digest of that: a slim copy counts as its run. If the run is
    finished, the checkpoint must be the one of its record.
    """
    spec, model, digest, _ = load_run(folder)
    return spec, model, digest


def load_finished(folder: RunFolder) -> tuple[Spec, Network, str]:
    """The same of a finished run, as its record has it: whoever reads test images reads those of such a run."""
    if folder.exists() and not folder.record.exists():
        raise InputError(f"the run in {folder.path} is not finished: the test split is for finished runs")
    return load_network(folder)


def load_run(folder: RunFolder) -> tuple[Spec, Network, str, dict[str, Any]]:
    """The same, and the checkpoint's facts: `images` is the digest of training images that are files."""
    spec = read_spec(folder)
    newest = folder.newest()
    if newest is None:
        raise InputError(f"the run in {folder.path} has no checkpoint yet")
    checkpoint = read_checkpoint(newest)
    check_facts(checkpoint, newest)
    model = build_network(spec)
    restore_module(model, "model", checkpoint.arrays, f"the checkpoint {newest}")
    if checkpoint.facts["spec"] != spec.digest():
        raise InputError(f"the checkpoint {newest} is of a run with other settings than spec.json has")
    check_training_state(checkpoint, _trained_arrays(model, checkpoint), spec, newest)
    digest = digest_checkpoint(newest, checkpoint)
    check_recorded(folder, digest)
    return spec, model, digest, checkpoint.facts


def _trained_arrays(model: Network, checkpoint: Checkpoint) -> list[str]:
    """The names of the parameters' arrays; the retention's are those of which the optimiser has a memory."""
    memory = (name.removeprefix("optimizer/").rpartition("/")[0] for name in checkpoint.arrays)
    retention = {name for name in memory if name.startswith("retention/") and name in checkpoint.arrays}
    return [*(f"model/{name}" for name, _ in model.named_parameters()), *sorted(retention)]


def others(spec: Spec, runs: Path = RUNS) -> dict[str, RunFolder]:
    """The runs that a spec starts from or learns from, by the beginning of a sentence about them."""
    named = {"a run starts from a finished one": spec.start, "a teacher is a finished run": spec.teacher}
    return {what: run_named(name, runs) for what, name in named.items() if name}


def check_others(spec: Spec, runs: Path = RUNS, made: Container[Path] = ()) -> None:
    """Raise unless those runs are finished, or are `made` before this one, in these folders."""
    for what, folder in others(spec, runs).items():
        if not folder.record.exists() and folder.path.absolute() not in made:
            raise InputError(f"{what}, and {folder.path.absolute()} has no record.json")


def _check_unseen(spec: Spec, theirs: Spec, where: str) -> None:
    """Raise if a run is judged by images that it can know from the run it starts or learns from."""
    if spec.images != "all" and theirs.images == "all":
        raise InputError(
            f"{where} learned from all training images, and this run is judged by some of them: "
            "make that one with images train, or this one with images all"
        )


def check_images(folder: RunFolder, digest: str, what: str) -> None:
    """Raise if a run was made of other training images: which of them it has seen is then not known."""
    theirs = load_run(folder)[3].get("images", "")
    if digest and theirs and theirs != digest:
        raise InputError(
            f"{what} in {folder.path} learned from other training images than are there now (files were added, removed "
            "or renamed): images that it has seen would count as validation images"
        )


@contextmanager
def finding_images(spec: Spec) -> Iterator[None]:
    """Inside, what is wrong with images that lie where a user says is told with the option that says it."""
    try:
        yield
    except InputError as error:
        if data_row(spec).tree is None or "--data-folder" in str(error):
            raise
        raise InputError(
            f"{error}; say --data-folder as in training: a run does not keep where its images lie"
        ) from None


def _start(spec: Spec, model: Network, folder: RunFolder) -> None:
    """Give a fresh network the weights of a finished run."""
    theirs, other, _ = load_network(folder)
    _check_unseen(spec, theirs, f"the run in {folder.path}")
    if (theirs.data, theirs.model) != (spec.data, spec.model):
        raise InputError(
            f"the run in {folder.path} is of {theirs.model} on {theirs.data}, this one of {spec.model} on {spec.data}"
        )
    left = _latent(model) if spec.start_with == "real" else set()
    fresh = {name: p for name, p in model.named_parameters() if p in left}
    arrays = module_arrays(other, "model") | {f"model/{name}": array(p) for name, p in fresh.items()}
    restore_module(model, "model", arrays, f"the run in {folder.path}")


def _teacher(spec: Spec, device: torch.device, folder: RunFolder) -> tuple[Network, str]:
    theirs, model, digest = load_network(folder)
    if theirs.data != spec.data:
        raise InputError(f"the teacher in {folder.path} learned {theirs.data}, and this run is to learn {spec.data}")
    known, wanted = data_row(theirs).classes, data_row(spec).classes
    if known != wanted:
        raise InputError(f"the teacher in {folder.path} knows {known} classes, and this run has {wanted}")
    _check_unseen(spec, theirs, f"the teacher in {folder.path}")
    if spec.precision == "float64" != theirs.precision:
        _widen(model)  # its maps are compared with the network's
    return model.to(device).eval().requires_grad_(False), digest


def _optimizer(spec: Spec, model: Network, names: dict[Tensor, str], fused: bool) -> torch.optim.Optimizer:
    decays = DECAYING[spec.decay](model)
    groups = [
        {"params": [p for p in names if p in decays], "weight_decay": spec.weight_decay},
        {"params": [p for p in names if p not in decays], "weight_decay": 0.0},
    ]
    return MAKERS[spec.optimizer](spec, [g for g in groups if g["params"]], fused)


def _parameters(model: nn.Module) -> set[Tensor]:
    return set(model.parameters())


def _layers(model: nn.Module) -> set[Tensor]:
    return {m.weight for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)}


def _convolutions(model: nn.Module) -> set[Tensor]:
    return {m.weight for m in model.modules() if isinstance(m, nn.Conv2d)}


def _shifts(model: nn.Module) -> set[Tensor]:
    activations = [shift for m in model.modules() if isinstance(m, RPReLU) for shift in (m.front, m.back)]
    return {*activations, *(m.shift for m in model.modules() if isinstance(m, ReactActivation))}


def _latent(model: nn.Module) -> set[Tensor]:
    return {m.weight for m in model.modules() if isinstance(m, BinaryLayer)}


DECAYING: dict[str, Callable[[nn.Module], set[Tensor]]] = {
    "all": _parameters,
    "real": lambda model: _parameters(model) - _latent(model),
    "reactnet": lambda model: _convolutions(model) | _shifts(model),
    "matrices": _layers,
}

MAKERS: dict[str, Callable[[Spec, list[dict], bool], torch.optim.Optimizer]] = {
    "sgd": lambda spec, groups, fused: torch.optim.SGD(
        groups, spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused or None
    ),
    "adam": lambda spec, groups, fused: torch.optim.Adam(
        groups, spec.lr, betas=(spec.momentum, 0.999), fused=fused or None, capturable=fused
    ),
}
