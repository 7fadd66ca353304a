"""A spec: everything that decides the outcome of a run, as one flat, frozen value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from lcrbnn.errors import InputError, choose, number, refuse_unknown

SCHEMA = 1

# What the text fields may say, with a word of explanation; code elsewhere keys its tables by these names.
IMAGES = {"train": "without the validation split", "all": "every training image; nothing is left for validation"}
AUGMENTATIONS = {
    "usual": "as is usual for the data set",
    "none": "images as they are",
    "crop-flip": "4 pixels of black around it, a random crop, mirrored or not",
    "resized-crop": "a random part of 8 to 100 %, resized, mirrored or not; for images that are read from files",
    "zoom-flip": "the same on the device, of images as they are held: small ones can be cached",
    "cutout": "crop-flip, then a black square of half the side",
    "randaugment": "crop-flip, then two random operations",
    "augmix": "crop-flip, then chains of random operations, mixed (AugMix)",
    "augmix-views": "the crop and two such mixtures of it, for consistency",
}
OPTIMIZERS = {"sgd": "with momentum", "adam": "Kingma and Ba's"}
SCHEDULES = {
    "cosine": "half a cosine down to 0",
    "linear": "a straight line down to 0",
    "linear-ahead": "the same, an epoch ahead: the last one has a learning rate of 0, as ReActNet's code",
    "step": "times `gamma` at each of `milestones`",
    "constant": "lr as it is",
}
STARTS = {
    "all": "every weight",
    "real": "all but the latent weights of binary layers, as ReActNet-A's released code, where their names differ",
}
REGULARIZERS = {
    "none": "nothing",
    "spectral": "spectral normalisation of latent weights, before the sign",
    "spectral-signs": "of binary weights, after it",
    "defensive": "defensive quantisation's orthogonal rows",
}
SMALLEST = 8  # side of an image that networks take
PACES = {"epoch": "constant inside an epoch, as in the published codes", "step": "a little at each step"}
DECAYS = {
    "all": "every parameter, as IR-Net, RBNN and LCR",
    "real": "all but the latent weights of binary layers, as Bi-Real and ReActNet's last step",
    "reactnet": "weights of convolutions and learned shifts, as ReActNet's first step",
    "matrices": "weights of layers only: no biases, batch norms, scales",
}
NORMS = {
    "local": "each process normalises by its own images of a step; running statistics are averaged after it",
    "sync": "over the images of all processes, as one process would",
}
PRECISIONS = {
    "float32": "no shortcuts",
    "tf32": "float32 with 10-bit products on a GPU's matrix units",
    "bfloat16": "autocast: 16 bits where torch allows; sums of signs are exact up to 256",
    "float64": "twice the digits, slowly: for comparisons on a CPU",
    "float16": "autocast: 16 bits of which 11 count, not 8; sums of signs are exact up to 2048",
}


def _text(default: str, about: str, choices: Mapping[str, str] | None = None) -> Any:
    return field(default=default, metadata={"about": about, "choices": choices})


def _count(default: int, about: str, low: int = 1, high: int = 10**9) -> Any:
    return field(default=default, metadata={"about": about, "low": low, "high": high, "whole": True})


def _real(default: float, about: str, low: float = 0.0, high: float = float("inf")) -> Any:
    return field(default=default, metadata={"about": about, "low": low, "high": high})


def _flag(default: bool, about: str) -> Any:
    return field(default=default, metadata={"about": about})


def _list(about: str, numbers: bool = False) -> Any:
    return field(default=(), metadata={"about": about, "numbers": numbers})


@dataclass(frozen=True)
class Spec:
    """The settings of a run; the metadata of each field explains it and says what it may be."""

    data: str = _text("digits", "data set (lcrbnn data lists them)")
    images: str = _text("train", "training images to use", IMAGES)
    augment: str = _text("usual", "what happens to training images", AUGMENTATIONS)
    side: int = _count(
        0, "side of an image in pixels, where images are read from files; 0: the data set's own", low=0, high=4096
    )
    classes: int = _count(0, "classes of the data set 'folder'; 0: as many as it has when the run starts", low=0)
    skip_broken: bool = _flag(False, "read every image first and leave out the broken ones; the record lists them")
    model: str = _text("resnet8-double", "network (lcrbnn models lists them)")
    method: str = _text("irnet", "binarisation method (lcrbnn methods lists them), WEIGHTS/ACTIVATIONS of two, or real")
    bits: str = _text("", "weights/activations, such as 1/1 or 1/32; the method's own if empty")
    method_options: tuple[str, ...] = _list("options of the method, such as t_min=0.1")
    start: str = _text(
        "", "folder of a finished run of the same network, whose weights this one starts from; or study:PLAN/ARM/seed-N"
    )
    start_with: str = _text("all", "what is taken from there", STARTS)
    norm_start: float = _real(1.0, "gamma of the 2-d batch norms at the start (RBNN: 1e-8)")
    weight: float = _real(0.0, "lambda of the retention loss; 0 leaves it out")
    share: float = _real(0.0, "instead of weight: lambda such that retention's gradient is this share of the task's")
    form: str = _text("default", "form of the retention loss: default, paper, official")
    form_options: tuple[str, ...] = _list("changes of the form, such as matrix=batch beta=1")
    ramp: float = _real(0.0, "epochs over which lambda rises from 0 in a straight line")
    regularizer: str = _text("none", "another regulariser beside retention, or in its place", REGULARIZERS)
    strength: float = _real(1e-4, "of that regulariser's loss, where it has one")
    teacher: str = _text("", "folder of a finished run whose network teaches this one; or study:PLAN/ARM/seed-N")
    distill: float = _real(0.0, "share of the loss that compares outputs with the teacher's", high=1.0)
    temperature: float = _real(1.0, "softening of both outputs in that comparison", low=1e-3)
    epochs: int = _count(15, "passes over the training images")
    batch: int = _count(64, "images a step, over all processes", low=2)
    accumulate: int = _count(1, "parts into which a process cuts its images of a step, one after another")
    batch_norm: str = _text("local", "batch norm where several processes train", NORMS)
    drop_last: bool = _flag(False, "leave out the images of an incomplete last batch")
    optimizer: str = _text("sgd", "optimiser", OPTIMIZERS)
    lr: float = _real(0.05, "learning rate at the start, or after the warm-up")
    momentum: float = _real(0.9, "momentum of sgd, or the first beta of adam", high=1.0)
    nesterov: bool = _flag(False, "Nesterov's momentum, with sgd")
    weight_decay: float = _real(1e-4, "weight decay")
    max_gradient_norm: float = _real(0.0, "scale the gradient of all parameters down to this norm; 0: never")
    decay: str = _text("all", "which parameters decay", DECAYS)
    schedule: str = _text("cosine", "how the learning rate falls", SCHEDULES)
    pace: str = _text("epoch", "how often it changes", PACES)
    milestones: tuple[float, ...] = _list("epochs at which the step schedule falls", numbers=True)
    gamma: float = _real(0.1, "factor of the step schedule", high=1.0)
    warmup: float = _real(0.0, "epochs in which the learning rate first rises in a straight line")
    label_smoothing: float = _real(0.0, "share of each label spread over all classes", high=1.0)
    consistency: float = _real(0.0, "weight of the divergence between the answers to three views (AugMix: 12)")
    precision: str = _text("float32", "arithmetic", PRECISIONS)
    deterministic: bool = _flag(True, "only kernels that give the same bits twice (on a GPU)")
    seed: int = _count(0, "of the start, the order of images and the augmentation", low=0, high=2**63 - 1)

    def __post_init__(self) -> None:
        """Refuse what no run could have; whether the names exist is seen when they are looked up."""
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(one.default, tuple) and isinstance(value, list):
                value = tuple(value)
            _check(one.name, value, one.default, dict(one.metadata))
            object.__setattr__(self, one.name, _plain(value, one.default, dict(one.metadata)))
        if self.schedule == "step" and not self.milestones:
            raise InputError("schedule 'step' needs milestones, the epochs at which the learning rate falls")
        if list(self.milestones) != sorted(set(self.milestones)):
            raise InputError(f"milestones must rise; got {', '.join(f'{m:g}' for m in self.milestones)}")
        if self.share > 0 and self.weight > 0:
            raise InputError("say weight, a fixed lambda, or share, which sets lambda; not both")
        if self.distill > 0 and not self.teacher:
            raise InputError("distill needs a teacher, the folder of a finished run")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise InputError("nesterov goes with sgd and a momentum of more than 0")
        if self.optimizer == "adam" and self.momentum == 1:
            raise InputError("momentum must be less than 1 with adam")
        if self.consistency > 0 and self.augment != "augmix-views":
            raise InputError("consistency needs several views of an image: augment augmix-views")
        if 0 < self.side < SMALLEST:
            raise InputError(f"side must be 0, the data set's own, or at least {SMALLEST}; got {self.side}")
        if self.warmup > self.epochs or self.ramp > self.epochs:
            raise InputError(
                f"warmup ({self.warmup:g}) and ramp ({self.ramp:g}) must end within the epochs, of which there are "
                f"{self.epochs}"
            )

    def but(self, /, **changes: Any) -> Spec:
        """The same spec with some fields changed; lists may be given for tuples."""
        known = {one.name: one for one in fields(self)}
        refuse_unknown(changes, known, "setting of a run")
        fitting: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) and isinstance(known[name].default, tuple) else v
            for name, v in changes.items()
        }
        return replace(self, **fitting)

    def difference(self, other: Spec) -> tuple[str, str, str] | None:
        """The first field in which another spec differs, with both values as a sentence shows them.

        One that leaves the number of classes to the images differs from none that was found in them.
        """
        for one in fields(self):
            mine, theirs = getattr(self, one.name), getattr(other, one.name)
            if mine != theirs and (one.name, theirs) != ("classes", 0):
                return one.name, _word(mine), _word(theirs)
        return None

    @property
    def retains(self) -> bool:
        """Whether the retention loss takes part."""
        return self.weight > 0 or self.share > 0

    def stored(self) -> dict[str, Any]:
        """The spec as JSON values, with the version of this list of fields."""
        return {"schema": SCHEMA, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}}

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Spec:
        """The spec that `stored` gave; a field that it lacks did not exist then, and has its default."""
        schema = stored.get("schema")
        if schema != SCHEMA or isinstance(schema, bool):
            raise InputError(
                f"a spec of schema {schema!r} was written by another version of lcrbnn; this one has {SCHEMA}"
            )
        return cls().but(**{k: v for k, v in stored.items() if k != "schema"})

    def digest(self) -> str:
        """A short name of the settings: equal only for equal ones, and the same once there are more fields."""
        chosen = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        return hashlib.sha256(json.dumps([SCHEMA, chosen], sort_keys=True).encode()).hexdigest()[:16]


def option_values(pairs: Sequence[str], what: str) -> dict[str, Any]:
    """{"beta": 1} from ["beta=1"]: numbers, True and False are read as such, anything else stays text."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise InputError(f"{what} are written name=value; got {pair!r}")
        if name in values:
            raise InputError(f"{what} name {name!r} twice")
        values[name] = _value(text)
    return values


def _value(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)


def _plain(value: Any, default: Any, about: dict[str, Any]) -> Any:
    """A checked value as a built-in one of its field's type, so that equal specs are stored alike."""
    if isinstance(default, tuple):
        return tuple(float(v) + 0.0 for v in value) if about["numbers"] else value
    if isinstance(default, bool | str):
        return value
    return float(value) + 0.0 if isinstance(default, float) else int(value)  # + 0.0: there is no minus zero


def _check(name: str, value: Any, default: Any, about: dict[str, Any]) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InputError(f"{name} is true or false; got {value!r}")
    elif isinstance(default, str):
        if not isinstance(value, str):
            raise InputError(f"{name} is a text; got {value!r}")
        if about["choices"] is not None:
            choose(about["choices"], value, f"choice for {name}")
    elif isinstance(default, tuple):
        if not isinstance(value, tuple):
            raise InputError(f"{name} is a list; got {value!r}")
        for item in value:
            if about["numbers"]:
                number(item, f"each of {name}", low=0)
            elif not isinstance(item, str):
                raise InputError(f"{name} is a list of texts such as 'name=value'; got {item!r}")
    else:
        number(value, name, low=about["low"], high=about["high"], whole=about.get("whole", False))
