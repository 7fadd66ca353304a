"""TrainSpec has every setting that decides the outcome of a training run, as one flat, frozen value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from lcrbnn.errors import InputError, check_known_names, check_number, lookup
from lcrbnn.runs.old_names import (
    SCHEMA,
    SETTINGS,
    check_schema,
    downgrade_settings,
    reject_old_lcr_options,
    reject_old_names,
    reject_old_values,
    upgrade_settings,
)

# Dictionaries from the allowed values of text fields to explanations. Tables in other modules have the same keys.
TRAIN_SPLIT_CHOICES = {
    "train": "the training images without the validation images",
    "train+valid": "all training images, without validation",
}
AUGMENTATION_CHOICES = {
    "standard": "the usual augmentation of the data set",
    "none": "unchanged images",
    "crop-flip": "zero padding of 4 pixels, random crop, random horizontal flip",
    "random-resized-crop": "RandomResizedCrop of 8 to 100 % and random flip while files are decoded",
    "random-resized-crop-on-device": "random-resized-crop, but on the device, so that decoded images can be cached",
    "cutout": "crop-flip, then a black square with half the side length of the image",
    "randaugment": "crop-flip, then two random operations",
    "augmix": "crop-flip, then a mixture of chains of random operations (AugMix)",
    "augmix-views": "three views of each image for --consistency-weight: the crop and two AugMix versions of the crop",
}
OPTIMIZER_CHOICES = {"sgd": "SGD with momentum", "adam": "Adam"}
LR_SCHEDULE_CHOICES = {
    "cosine": "half a cosine period down to 0",
    "linear": "linear decay to 0",
    "linear-last-epoch-zero": "linear decay that reaches 0 in the last epoch, as in ReActNet's code",
    "multistep": "multiplied by --lr-gamma at each of --lr-milestones",
    "constant": "constant learning rate",
}
INIT_PARAMETER_CHOICES = {
    "all": "all parameters",
    "non-latent": "all except the latent weights of binary layers, as ReActNet-A's released code does",
}
REGULARIZER_CHOICES = {
    "none": "no regularizer",
    "spectral-norm-latent": "spectral normalization of the latent weights, before the sign",
    "spectral-norm-binary": "spectral normalization of the binary weights, after the sign",
    "defensive-quantization": "loss that makes the rows of latent weights orthogonal",
}
MIN_IMAGE_SIZE = 8  # smallest side length of an image, in pixels, that the networks accept
LR_UPDATE_INTERVAL_CHOICES = {"epoch": "once per epoch, as in the published codes", "step": "once per step"}
WEIGHT_DECAY_CHOICES = {
    "all": "all parameters, as in IR-Net, RBNN and LCR",
    "non-latent": "all except the latent weights of binary layers, as in Bi-Real Net and ReActNet's second step",
    "reactnet": "convolution weights and learned shifts, as in ReActNet's first step",
    "conv-linear-weights": "only weights of convolution and linear layers, without biases, batch norms and scales",
}
BATCH_NORM_CHOICES = {
    "local": "each process normalizes its own part of the batch and running statistics are averaged after the step",
    "sync": "each process normalizes with the statistics of all processes (SyncBatchNorm)",
}
PRECISION_CHOICES = {
    "float32": "full precision",
    "tf32": "float32 with TF32 matrix products on a GPU",
    "bfloat16": "autocast to bfloat16; sums of signs are exact up to 256",
    "float64": "double precision, for comparisons on a CPU",
    "float16": "autocast to float16; sums of signs are exact up to 2048",
}


def _text(default: str, group: str, metavar: str, about: str, choices: Mapping[str, str] | None = None) -> Any:
    return field(default=default, metadata=_metadata(group, metavar, about) | {"choices": choices})


def _choice(default: str, group: str, about: str, choices: Mapping[str, str]) -> Any:
    return _text(default, group, f"{{{','.join(choices)}}}", about, choices)


def _count(default: int, group: str, metavar: str, about: str, low: int = 1, high: int = 10**9) -> Any:
    return field(
        default=default, metadata=_metadata(group, metavar, about) | {"low": low, "high": high, "integer": True}
    )


def _real(default: float, group: str, metavar: str, about: str, low: float = 0.0, high: float = float("inf")) -> Any:
    return field(default=default, metadata=_metadata(group, metavar, about) | {"low": low, "high": high})


def _flag(default: bool, group: str, about: str) -> Any:
    return field(default=default, metadata=_metadata(group, "", about))


def _list(group: str, metavar: str, about: str, numbers: bool = False, separator: str = "") -> Any:
    metadata = _metadata(group, metavar, about) | {"numbers": numbers, "separator": separator}
    return field(default=(), metadata=metadata)


def _metadata(group: str, metavar: str, about: str) -> dict[str, Any]:
    return {"group": group, "metavar": metavar, "about": about}


@dataclass(frozen=True)
class TrainSpec:
    """The settings of a training run. The metadata of each field has its help text and allowed values."""

    dataset: str = _text("digits", "data", "NAME", "data set, one of `lcrbnn data`")
    train_split: str = _choice("train", "data", "images that the run trains on", TRAIN_SPLIT_CHOICES)
    augmentation: str = _text("standard", "data", "NAME", "training augmentation", AUGMENTATION_CHOICES)
    image_size: int = _count(
        0, "data", "PIXELS", "side length of images that are read from files (0 = that of the data set)", 0, 4096
    )
    num_classes: int = _count(
        0, "data", "N", "number of classes of the data set 'folder' (0 = number of class folders)", low=0
    )
    split_seed: int = _count(
        0, "data", "N", "seed of the 80/10/10 split of class folders without train and val", 0, 2**63 - 1
    )
    skip_broken_images: bool = _flag(
        False,
        "data",
        "check all image files before training and skip unreadable files; the record lists the skipped files",
    )
    model: str = _text(
        "resnet8-double",
        "model",
        "NAME",
        "network, one of `lcrbnn models`, or FILE.py:FUNCTION, which returns your own network (executes the file)",
    )
    model_sha256: str = _text(
        "", "model", "SHA256", "SHA-256 that the file of --model must have (filled in when a run starts)"
    )
    method: str = _text(
        "irnet",
        "model",
        "NAME",
        "binarization method, one of `lcrbnn methods`; WEIGHTS/ACTIVATIONS for two methods; real = full precision",
    )
    bits: str = _text(
        "",
        "model",
        "W/A",
        "bit widths of weights and activations, such as 1/1 or 1/32 (empty = the bit widths of the method)",
    )
    method_options: tuple[str, ...] = _list(
        "model", "NAME=VALUE", "options of the binarization method, such as t_min=0.1"
    )
    init_from: str = _text(
        "", "model", "RUN", "finished run with the initial weights: its folder, or study:PLAN/VARIANT/seed-N"
    )
    init_parameters: str = _choice(
        "all", "model", "which parameters are copied from the run of --init-from", INIT_PARAMETER_CHOICES
    )
    bn_gamma_init: float = _real(1.0, "model", "X", "initial weight (gamma) of all BatchNorm2d layers (RBNN: 1e-8)")
    lcr_weight: float = _real(0.0, "LCR", "LAMBDA", "weight λ of the LCR loss (0 = train without LCR)")
    lcr_gradient_ratio: float = _real(
        0.0,
        "LCR",
        "R",
        "choose λ during training so that ‖∇ LCR loss‖ / ‖∇ task loss‖ = R, instead of --lcr-weight (0 = off)",
    )
    lcr_variant: str = _text("default", "LCR", "NAME", "variant of the LCR loss: default, paper or official")
    lcr_options: tuple[str, ...] = _list(
        "LCR", "NAME=VALUE", "changed settings of the LCR variant, such as matrix=cross-gram beta=1"
    )
    lcr_blocks: tuple[str, ...] = _list(
        "LCR",
        "NAME",
        "modules whose inputs and outputs LCR compares, such as layer1.0,layer1.1; empty = all blocks of the network",
        separator=",",
    )
    lcr_warmup_epochs: float = _real(0.0, "LCR", "N", "epochs of linear warm-up of λ from 0")
    regularizer: str = _text(
        "none", "model", "NAME", "weight regularizer in addition to LCR or instead of it", REGULARIZER_CHOICES
    )
    regularizer_weight: float = _real(
        1e-4, "model", "W", "weight of the regularizer loss; only defensive-quantization has such a loss"
    )
    teacher: str = _text("", "model", "RUN", "finished run used as teacher: its folder, or study:PLAN/VARIANT/seed-N")
    distillation_alpha: float = _real(
        0.0,
        "model",
        "A",
        "weight of the distillation loss, 0 to 1; cross-entropy with the labels has weight 1 - A",
        high=1.0,
    )
    distillation_temperature: float = _real(1.0, "model", "T", "softmax temperature of the distillation loss", low=1e-3)
    epochs: int = _count(15, "optimizer", "N", "number of passes over the training images")
    batch_size: int = _count(64, "data", "N", "number of images per optimizer step, summed over all processes", low=2)
    gradient_accumulation_steps: int = _count(
        1,
        "optimizer",
        "N",
        "number of forward and backward passes per optimizer step; each process splits its part of the batch into N "
        "parts (the batch size does not change)",
    )
    batch_norm: str = _choice(
        "local", "distributed", "statistics of batch norms in distributed training", BATCH_NORM_CHOICES
    )
    drop_last: bool = _flag(False, "data", "drop the last batch of an epoch if it is incomplete")
    optimizer: str = _choice("sgd", "optimizer", "optimizer", OPTIMIZER_CHOICES)
    lr: float = _real(0.05, "optimizer", "LR", "learning rate at the start of training, or after the warm-up")
    momentum: float = _real(0.9, "optimizer", "M", "momentum of SGD, or beta1 of Adam", high=1.0)
    nesterov: bool = _flag(False, "optimizer", "use Nesterov momentum in SGD")
    weight_decay: float = _real(1e-4, "optimizer", "W", "factor of the weight decay")
    max_gradient_norm: float = _real(
        0.0, "optimizer", "NORM", "clip the total gradient norm to this value (0 = no clipping)"
    )
    weight_decay_parameters: str = _text(
        "all", "optimizer", "SET", "which parameters have weight decay", WEIGHT_DECAY_CHOICES
    )
    lr_schedule: str = _text("cosine", "optimizer", "NAME", "learning-rate schedule", LR_SCHEDULE_CHOICES)
    lr_update_interval: str = _choice(
        "epoch", "optimizer", "interval between updates of the learning rate", LR_UPDATE_INTERVAL_CHOICES
    )
    lr_milestones: tuple[float, ...] = _list(
        "optimizer", "EPOCH", "epochs at which the multistep schedule reduces the learning rate", numbers=True
    )
    lr_gamma: float = _real(
        0.1,
        "optimizer",
        "F",
        "factor by which the multistep schedule multiplies the learning rate at each milestone",
        high=1.0,
    )
    lr_warmup_epochs: float = _real(
        0.0, "optimizer", "N", "number of epochs in which the learning rate increases linearly"
    )
    label_smoothing: float = _real(0.0, "optimizer", "S", "label smoothing, 0 to 1", high=1.0)
    consistency_weight: float = _real(
        0.0,
        "data",
        "W",
        "weight of the Jensen-Shannon divergence between the outputs for three views of an image; needs augmentation "
        "augmix-views (AugMix paper: 12)",
    )
    precision: str = _text("float32", "precision", "NAME", "arithmetic of training and evaluation", PRECISION_CHOICES)
    deterministic: bool = _flag(True, "precision", "use only deterministic GPU kernels")
    seed: int = _count(
        0, "run", "N", "random seed of initialization, data order and augmentation", low=0, high=2**63 - 1
    )

    def __post_init__(self) -> None:
        """Raise InputError for invalid values. Names of data sets, networks and methods are looked up later."""
        reject_old_values(self.__dict__)
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(column.default, tuple) and isinstance(value, list):
                value = tuple(value)
            _check_value(column.name, value, column.default, dict(column.metadata))
            object.__setattr__(self, column.name, _to_builtin(value, column.default, dict(column.metadata)))
        reject_old_lcr_options(self.lcr_options)
        if self.lr_schedule == "multistep" and not self.lr_milestones:
            raise InputError("lr_schedule 'multistep' needs lr_milestones, the epochs at which the learning rate falls")
        if list(self.lr_milestones) != sorted(set(self.lr_milestones)):
            raise InputError(f"lr_milestones must increase; got {', '.join(f'{m:g}' for m in self.lr_milestones)}")
        if self.lcr_gradient_ratio > 0 and self.lcr_weight > 0:
            raise InputError("give lcr_weight (a fixed λ) or lcr_gradient_ratio (which chooses λ), not both")
        if self.distillation_alpha > 0 and not self.teacher:
            raise InputError("distillation_alpha needs a teacher, the folder of a finished run")
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise InputError("nesterov needs optimizer sgd and a momentum of more than 0")
        if self.optimizer == "adam" and self.momentum == 1:
            raise InputError("momentum must be less than 1 with adam")
        if self.consistency_weight > 0 and self.augmentation != "augmix-views":
            raise InputError("consistency_weight needs several views of an image: augmentation augmix-views")
        if 0 < self.image_size < MIN_IMAGE_SIZE:
            raise InputError(
                f"image_size must be 0 (the size of the data set) or at least {MIN_IMAGE_SIZE}; got {self.image_size}"
            )
        if self.lr_warmup_epochs > self.epochs or self.lcr_warmup_epochs > self.epochs:
            raise InputError(
                f"lr_warmup_epochs ({self.lr_warmup_epochs:g}) and lcr_warmup_epochs ({self.lcr_warmup_epochs:g}) must "
                f"be at most epochs ({self.epochs})"
            )

    def replace(self, /, **changes: Any) -> TrainSpec:
        """Return a copy with some fields changed. Lists are accepted for tuples."""
        reject_old_names(changes, SETTINGS)
        columns = {column.name: column for column in fields(self)}
        check_known_names(changes, columns, "setting of a run", "lcrbnn train --help")
        converted: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) and isinstance(columns[name].default, tuple) else v
            for name, v in changes.items()
        }
        return replace(self, **converted)

    def difference(self, other: TrainSpec) -> tuple[str, str, str] | None:
        """Return name and both values, as text, of the first field in which the other spec differs.

        A number of classes that the other spec leaves to the image folder is no difference, and neither is a SHA-256
        that it leaves open.
        """
        for column in fields(self):
            own_value, other_value = getattr(self, column.name), getattr(other, column.name)
            if own_value != other_value and (column.name, other_value) not in _OPEN_VALUES:
                return column.name, _format_value(own_value), _format_value(other_value)
        return None

    @property
    def uses_lcr(self) -> bool:
        """Return whether the run is trained with the LCR loss."""
        return self.lcr_weight > 0 or self.lcr_gradient_ratio > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the spec as JSON values, with its schema number."""
        return {"schema": SCHEMA, **{k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> TrainSpec:
        """Return the spec of a `to_dict` of schema 1 or 2. Missing fields, which are newer, get their defaults."""
        if "schema" not in stored:
            raise InputError("a spec without a schema number was not written by lcrbnn")
        check_schema(stored)
        return cls().replace(**{k: v for k, v in upgrade_settings(stored).items() if k != "schema"})

    def digest(self) -> str:
        """Return a short digest of the settings that differ from the defaults. New fields do not change the digest."""
        return _digest(SCHEMA, self._non_default_settings())

    def matches_digest(self, digest: Any) -> bool:
        """Return whether this is the digest of these settings, under the names of schema 2 or of schema 1.

        Checkpoints of runs that were started under schema 1 contain the digest of the old names.
        """
        return digest in (self.digest(), _digest(1, downgrade_settings(self._non_default_settings())))

    def _non_default_settings(self) -> dict[str, Any]:
        return {c.name: getattr(self, c.name) for c in fields(self) if getattr(self, c.name) != c.default}


# Settings that are filled in when a run starts, with the value that leaves them open.
_OPEN_VALUES = (("num_classes", 0), ("model_sha256", ""))


def _digest(schema: int, settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([schema, settings], sort_keys=True).encode()).hexdigest()[:16]


def parse_options(pairs: Sequence[str], what: str) -> dict[str, Any]:
    """Return a dictionary from texts NAME=VALUE: {"beta": 1} for ["beta=1"]. Numbers and booleans are converted."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise InputError(f"{what} are written name=value; got {pair!r}")
        if name in values:
            raise InputError(f"{what} name {name!r} twice")
        values[name] = _parse_value(text)
    return values


def _parse_value(text: str) -> Any:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else repr(value)


def _to_builtin(value: Any, default: Any, metadata: dict[str, Any]) -> Any:
    """Return a checked value as a builtin of the type of its field. Then equal specs are stored in the same way."""
    if isinstance(default, tuple):
        return tuple(float(v) + 0.0 for v in value) if metadata["numbers"] else value
    if isinstance(default, bool | str):
        return value
    return float(value) + 0.0 if isinstance(default, float) else int(value)  # the sum with 0.0 turns -0.0 into 0.0


def _check_value(name: str, value: Any, default: Any, metadata: dict[str, Any]) -> None:
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InputError(f"{name} must be true or false; got {value!r}")
    elif isinstance(default, str):
        if not isinstance(value, str):
            raise InputError(f"{name} must be a text; got {value!r}")
        if metadata["choices"] is not None:
            lookup(metadata["choices"], value, f"choice for {name}", "lcrbnn train --help")
    elif isinstance(default, tuple):
        if not isinstance(value, tuple):
            raise InputError(f"{name} must be a list; got {value!r}")
        for item in value:
            if metadata["numbers"]:
                check_number(item, f"each of {name}", low=0)
            elif not isinstance(item, str):
                raise InputError(f"{name} must be a list of texts such as 'name=value'; got {item!r}")
    else:
        check_number(value, name, low=metadata["low"], high=metadata["high"], integer=metadata.get("integer", False))
