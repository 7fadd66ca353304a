"""`Retention`: the Lipschitz-retention loss of any network, in three lines of a user's own training loop."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from lcrbnn.errors import Failed, InputError, choose, number
from lcrbnn.layers import binary_layers, latent_weights
from lcrbnn.retention.capture import (
    NO_MAPS,
    Capture,
    Maps,
    Point,
    Span,
    across,
    check_points,
    remove_copied_hooks,
    weights_only,
)
from lcrbnn.retention.draws import drawing_again, plain_pass
from lcrbnn.retention.form import Form
from lcrbnn.retention.frozen import frozen_statistics
from lcrbnn.retention.look import check_order, check_shapes, one_signed, sentence_on
from lcrbnn.retention.loss import COEFFICIENTS, Pair, quantization_error, retention_loss
from lcrbnn.retention.presets import PRESETS
from lcrbnn.retention.spans import SPANS as SPANS  # for whoever looks for it here
from lcrbnn.retention.spans import module_names, spans_of
from lcrbnn.retention.spectral import random_start

_START = 4096  # numbers drawn for the start of the power iteration; longer vectors repeat them

_CLOSED = "this Retention is closed and reads no maps any more; make another"

_COPY_NO_MAPS = (
    "this Retention is a copy and has no maps to compare: it watches a copy of the network, its `model`; call that "
    "before each loss(), or copy both together, copy.deepcopy((model, retention))"
)


class Retention(nn.Module):
    """Watches a network's maps and turns them into lambda/2 L_Lip.

        retention = Retention(model, blocks=["layer1", "layer2"])
        loss = F.cross_entropy(model(images), labels) + retention.loss()   # after each forward pass
        retention.close()

    form       a preset ("default", "paper", "official") or a Form; further keywords change its fields (weight=4.0)
    blocks     names of modules, in forward order: a matrix from the input to the output of each (Eq. 10)
    layers     names of modules, in forward order: a matrix from the input of each to the input of the next (Eq. 8)
               Later ones weigh more: another order than the network's is refused at the first loss.
               Without either, a network of this package is measured where the form's `spans` says.
    teacher    the full-precision network of reference "teacher"; it is put into evaluation mode
    teacher_blocks   names of its blocks, if they differ
    seed       of the start vector of the power iteration
    check_overflow   raise `Failed`, with the name of the block, if the loss overflows although the maps are finite
               (not on a GPU or in a compiled step, where the check would have to wait for the device)

    With `scale`, `parameters()` holds the learnable factors: give them to the optimiser. At weight 0 nothing is hooked
    and the loss is exactly 0. `ratios` keeps sigma_B / sigma_F of each matrix from the latest loss, `lip` its L_Lip.
    Make it before the first call of a compiled model. Network and teacher are no submodules: neither moves with this
    module or is in its state_dict. `with Retention(...) as retention:` closes at the end. Copied or pickled together
    with its network it watches the copy; the maps of a pass are not copied.
    """

    start: Tensor

    def __init__(
        self,
        model: nn.Module,
        form: str | Form = "default",
        *,
        blocks: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
        teacher: nn.Module | None = None,
        teacher_blocks: Sequence[str] | None = None,
        seed: int = 0,
        check_overflow: bool = True,
        **changes: Any,
    ) -> None:
        """Check everything and hook the model."""
        super().__init__()
        self.check_overflow = check_overflow
        if not isinstance(model, nn.Module):
            raise InputError(f"Retention takes a torch.nn.Module; got {type(model).__name__}")
        model = _unwrapped(model)
        self.form = (form if isinstance(form, Form) else choose(PRESETS, form, "preset of the retention loss")).but(
            **changes
        )
        self.spans = spans_of(model, self.form, blocks, layers)
        check_points(model, _points(self.spans))
        self.ratios: Tensor | None = None
        self.lip: Tensor | None = None
        self._model = (model,)  # in a tuple: not a submodule
        self._weights_only = weights_only(model)
        self._check_reference(model, teacher)
        parameter = next(model.parameters(), torch.empty(0))
        number(seed, "seed", low=0, whole=True)
        if teacher_blocks is not None and (teacher is None or layers is not None):
            raise InputError(
                "teacher_blocks go with a teacher and with blocks; with layers its names must be the model's"
            )
        self.register_buffer("start", random_start(_START, seed).to(parameter.device), persistent=False)
        factors = torch.ones(len(self.spans) + 1, device=parameter.device)
        self.factors = nn.Parameter(factors) if self.form.scale else None
        self._closed = self._looked = False
        self._no_maps = NO_MAPS
        self._capture: Capture | None = None
        self._teacher: tuple[nn.Module, Capture | None, list[Span]] | None = None
        if self.form.weight > 0:  # the teacher first: should it be refused, the model has no hooks yet
            if teacher is not None:
                self._teacher = self._watch(_unwrapped(teacher), teacher_blocks)
            self._capture = self._watching()

    @property
    def model(self) -> nn.Module:
        """The network that is watched; what wraps it is not part of it."""
        return self._model[0]

    def __enter__(self) -> Self:
        """Nothing happens at the start of a with statement."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close at its end."""
        self.close()

    def __copy__(self) -> NoReturn:
        """Two of them would share their parts and their hooks."""
        raise InputError("a Retention is copied with its network: copy.deepcopy((model, retention))")

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle holds: no hooks and no maps."""
        teacher = self._teacher and (self._teacher[0], None, self._teacher[2])
        return {**self.__dict__, "_capture": None, "_teacher": teacher, "_no_maps": _COPY_NO_MAPS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Hook the copied network, and the copied teacher."""
        super().__setstate__(state)
        networks = [self._model[0], *([self._teacher[0]] if self._teacher else [])]
        if self.form.weight == 0 or self._closed or not all(_whole(network) for network in networks):
            return
        for network in networks:
            remove_copied_hooks(network)
        if self._teacher is not None:
            teacher, _, spans = self._teacher
            self._teacher = (teacher, Capture(teacher, _points(spans), signs=False, marked=True), spans)
        self._capture = self._watching(marked=True)

    def _watching(self, *, marked: bool = False) -> Capture:
        return Capture(
            self._model[0],
            _points(self.spans),
            signs=self.form.maps == "binary",
            draws=self.form.reference == "weights",
            marked=marked,
        )

    def loss(self, weight: float | Tensor | None = None) -> Tensor:
        """The term to add to the loss of the latest forward pass; `weight` stands in for the form's lambda (a ramp).

        Uses up the maps of that pass. A tensor `weight` lets a compiled step ramp without compiling again.
        """
        if weight is not None and not isinstance(weight, Tensor):
            number(weight, "the weight given to loss()", low=0)
        total = self._weighted(weight)
        if self.form.quantization > 0:
            latent = [layer.weight_binarizer.latent(layer.weight) for _, layer in binary_layers(self._model[0])]
            total = total + self.form.quantization * quantization_error(latent)
        return total

    def _weighted(self, weight: float | Tensor | None) -> Tensor:
        if self._capture is None:
            return self._unwatched(weight)
        if self._closed:
            raise InputError(_CLOSED)
        maps = self._capture.take()
        maps.check(_points(self.spans), self._no_maps)
        binary = self._binary(maps)
        self._check_graph(binary)
        reference = self._reference(maps)
        if plain_pass() and not self._looked:
            self._look(maps, binary, reference)
        retained = retention_loss(binary, reference, self.form, self.start)
        self.ratios = retained.ratios()
        self.lip = retained.loss.detach()
        if self.check_overflow and plain_pass() and self.lip.device.type == "cpu" and not self.lip.isfinite():
            pairs = [*binary, *reference]
            if all(x.isfinite().all() for pair in pairs for x in pair):
                raise Failed(self.describe_overflow())
        batch = maps.real[self.spans[0][0]].shape[0]
        weight = self.form.weight if weight is None else weight
        return weight * COEFFICIENTS[self.form.coefficient](batch) * retained.loss

    def describe_overflow(self) -> str:
        """Return a sentence that names the block whose ratio of norms made the latest loss infinite or NaN."""
        ratios = [] if self.ratios is None else (self.ratios / self.form.beta).square().isfinite().tolist()
        named = next((str(back) for (_, back), finite in zip(self.spans, ratios, strict=False) if not finite), None)
        where = f" at {named}" if named else ""
        return (
            f"the retention loss overflows{where}: the feature maps are finite, but their norms or the ratio of these "
            'does not fit the number type; normalization="unit" or "centered" prevents this'
        )

    def _unwatched(self, weight: float | Tensor | None) -> Tensor:
        """The loss of a network without hooks: 0, if that is what was asked for."""
        if self.form.weight > 0:
            copied = "this Retention was copied inside the network that it watches, and watches nothing; make another"
            raise InputError(_CLOSED if self._closed else copied)
        if weight is not None and (isinstance(weight, Tensor) or weight > 0):
            raise InputError(
                "this Retention was made with weight 0 and hooks nothing; make it with weight > 0 to ramp it"
            )
        return torch.zeros((), device=self.start.device)

    def _look(self, maps: Maps, binary: Sequence[Pair], reference: Sequence[Pair]) -> None:
        """At the first loss: refuse what cannot be compared, and warn of maps that say nothing."""
        check_order(maps, self.spans)
        check_shapes(binary, self.spans, self.form.matrix)
        if self._teacher is not None:
            check_shapes(reference, self._teacher[2], self.form.matrix, " of the teacher")
        self._looked = True
        found = []
        if self.form.maps == "binary" and not self._weights_only:
            found = one_signed(maps, _points(self.spans))
        if found:
            warnings.warn(sentence_on(found), stacklevel=4)  # where loss() is called

    def _check_graph(self, binary: Sequence[Pair]) -> None:
        """Raise if a network in training would not hear of this loss: its pass was made without gradients."""
        model = self._model[0]
        if not (torch.is_grad_enabled() and model.training):
            return
        for (front, back), (_, after) in zip(self.spans, binary, strict=True):
            trained = any(p.requires_grad for p in model.get_submodule(front.module).parameters())
            if trained and not after.requires_grad:
                raise InputError(
                    f"the map at {back.module!r} has no gradient, though {front.module!r} is trained: the latest pass "
                    "was made under no_grad, or in a checkpoint with use_reentrant=True (False keeps the gradient)"
                )

    def close(self) -> None:
        """Remove all hooks; the model is as it was before."""
        self._closed = True
        for capture in (self._capture, self._teacher[1] if self._teacher else None):
            if capture is not None:
                capture.close()

    def _binary(self, maps: Maps) -> list[Pair]:
        def at(point: Point) -> Tensor:
            if self.form.maps == "real":
                return maps.real[point]
            return maps.binarised(point, weights_only=self._weights_only)

        seen = {point: at(point) for point in _points(self.spans)}
        if self.factors is None:
            return [(seen[front], seen[back]) for front, back in self.spans]
        factors = self.factors
        return [(seen[f] * factors[k], seen[b] * factors[k + 1]) for k, (f, b) in enumerate(self.spans)]

    def _reference(self, maps: Maps) -> list[Pair]:
        return _pairs(*REFERENCES[self.form.reference](self, maps))

    def _latent(self, maps: Maps) -> tuple[Maps, list[Span]]:
        return maps, self.spans

    @torch.no_grad()
    def _weights(self, maps: Maps) -> tuple[Maps, list[Span]]:
        assert self._capture is not None
        model = self._model[0]
        self._capture.expects_latent = True
        try:
            with latent_weights(model), frozen_statistics(model), drawing_again(model, maps.draws):
                model(*maps.inputs, **maps.keywords)
        finally:
            self._capture.expects_latent = False
        return self._capture.take(), self.spans

    @torch.no_grad()
    def _taught(self, maps: Maps) -> tuple[Maps, list[Span]]:
        assert self._teacher is not None
        teacher, capture, spans = self._teacher
        assert capture is not None
        if any(module.training for module in teacher.modules()):
            teacher.eval()
        kind = next((p.dtype for p in teacher.parameters() if p.is_floating_point()), None)
        teacher(*[_cast(x, kind) for x in maps.inputs], **{name: _cast(x, kind) for name, x in maps.keywords.items()})
        return capture.take(), spans

    def _watch(self, teacher: nn.Module, names: Sequence[str] | None) -> tuple[nn.Module, Capture, list[Span]]:
        spans = self.spans if names is None else across(module_names(names, "teacher_blocks", teacher))
        if len(spans) != len(self.spans):
            raise InputError(
                f"the teacher has {len(spans)} blocks to compare and the model {len(self.spans)}; name as many of each"
            )
        return teacher.eval(), Capture(teacher, _points(spans), signs=False), spans

    def _check_reference(self, model: nn.Module, teacher: nn.Module | None) -> None:
        reference, binary = self.form.reference, any(True for _ in binary_layers(model))
        if reference == "latent" and self.form.maps == "real":
            raise InputError(
                "reference 'latent' compares maps with what they become; with maps 'real' the loss is exactly 0"
            )
        if reference == "latent" and self._weights_only:
            raise InputError(
                "reference 'latent' compares activations with their signs, and this network binarises weights only "
                "(1/32): the loss would be exactly 0; choose reference 'weights' or 'teacher'"
            )
        if reference == "weights" and not binary:
            raise InputError(
                "reference 'weights' runs the network with latent weights, and it has no binary layer of this package"
            )
        if self.form.quantization > 0 and not binary:
            raise InputError(
                "the quantisation-error loss needs binary layers of this package, and the network has none"
            )
        if reference == "teacher" and not isinstance(teacher, nn.Module):
            raise InputError("reference 'teacher' needs a teacher, a full-precision network")
        if teacher is not None and _unwrapped(teacher) is model:
            raise InputError("the teacher is the model itself; give another network")
        if reference != "teacher" and teacher is not None:
            raise InputError(f"a teacher is given, and the form's reference is {reference!r}; say reference='teacher'")


REFERENCES = {"latent": Retention._latent, "weights": Retention._weights, "teacher": Retention._taught}


def _cast(x: Any, kind: torch.dtype | None) -> Any:
    """A real tensor in the type that a network computes in; anything else as it is."""
    return x.to(kind) if kind is not None and isinstance(x, Tensor) and x.is_floating_point() else x


def _whole(module: nn.Module) -> bool:
    """Whether a network that is being copied has all its parts: not, while a part of it is copied."""
    children = vars(module).get("_modules")
    return children is not None and all(_whole(child) for child in children.values() if child is not None)


def _points(spans: Sequence[Span]) -> list[Point]:
    return list(dict.fromkeys(point for span in spans for point in span))


def _pairs(maps: Maps, spans: Sequence[Span]) -> list[Pair]:
    return [(maps.real[front].detach(), maps.real[back].detach()) for front, back in spans]


def _unwrapped(model: nn.Module) -> nn.Module:
    # torch.compile and DistributedDataParallel wrap the network that carries the names.
    if isinstance(model, nn.DataParallel):
        raise InputError("the replicas of DataParallel would share one set of hooks; use DistributedDataParallel")
    for kind, inner in (("OptimizedModule", "_orig_mod"), ("DistributedDataParallel", "module")):
        if type(model).__name__ == kind:
            return _unwrapped(getattr(model, inner))
    return model
