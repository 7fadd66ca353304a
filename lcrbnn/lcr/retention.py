"""`Retention` adds the LCR loss of any network to a training loop in three lines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, Self

import torch
from torch import Tensor, nn

from lcrbnn.device import is_eager
from lcrbnn.errors import InputError, RunFailed, check_number
from lcrbnn.lcr.capture import (
    NO_MAPS_MESSAGE,
    CapturedMaps,
    FeatureMapCapture,
    ModulePort,
    Span,
    check_modules_exist,
    is_fully_copied,
    is_weights_only,
    make_block_spans,
    remove_copied_hooks,
    unique_ports,
)
from lcrbnn.lcr.input_checks import (
    check_map_shapes,
    check_span_order,
    describe_one_signed_maps,
    find_excluded_spans,
    find_one_signed_maps,
)
from lcrbnn.lcr.lcr_variants import LcrVariant, build_variant
from lcrbnn.lcr.measurement_points import check_module_names, find_spans, unwrap_model
from lcrbnn.lcr.retention_loss import (
    COEFFICIENTS,
    describe_overflow,
    has_overflowed,
    quantization_error,
    retention_loss,
)
from lcrbnn.lcr.retention_matrix import Pair
from lcrbnn.lcr.second_pass import cast_float_tensor, freeze_running_statistics, replay_rng
from lcrbnn.lcr.spectral_norm import draw_start_vector
from lcrbnn.nn.model_hooks import iter_binary_layers, use_latent_weights

# Number of random numbers for the start of the power iteration; they are repeated for longer vectors
START_VECTOR_LENGTH = 4096

_CLOSED_MESSAGE = "this Retention is closed and captures no feature maps any more; create another one"

_COPY_NO_MAPS_MESSAGE = (
    "this Retention is a copy and has no feature maps to compare: its hooks are on a copy of the network, `.model`; "
    "call that network before each loss(), or copy both together: copy.deepcopy((model, retention))"
)


class Retention(nn.Module):
    """Compute the LCR loss, lambda/2 * L_Lip, from the feature maps of a network, which hooks capture.

        retention = Retention(model, blocks=["layer1", "layer2"])
        loss = F.cross_entropy(model(images), labels) + retention.loss()   # after each forward pass
        retention.close()

    variant: "default", "paper", "official" or an LcrVariant. Further keywords change its fields (matrix="cross-gram").
    blocks: names of modules in forward order. Each gives one retention matrix, from its input to its output (Eq. 10).
    layers: names of modules in forward order. Each but the last gives one retention matrix, from its input to the input
        of the next one (Eq. 8). Later matrices have a larger weight, so the first loss() raises InputError if the names
        are not in the order of the forward pass. Without blocks and layers, the variant's `granularity` decides
        (networks of this package only).
    lcr_weight: lambda, the weight of the LCR loss (default: the weight of the variant).
    teacher: the full-precision network of reference "teacher". It is set to evaluation mode.
    teacher_blocks: names of the teacher's blocks, if they differ from those of the model.
    seed: random seed of the start vector of the power iteration.
    check_overflow: raise RunFailed with the name of the block if the loss is not finite although the feature maps are.
        There is no check on a GPU or in a compiled step, where it would have to wait for the device.

    With `learnable_scale`, `parameters()` returns the learnable factors; pass them to the optimizer. With lcr_weight 0
    there are no hooks and the loss is exactly 0. After each loss(), `sigma_ratios` holds sigma_B / sigma_F of each
    matrix, and `lcr_loss` holds L_Lip. If a binary feature map has only one sign, as after a ReLU, its ratio is NaN and
    its part of the loss and of the gradient is exactly 0. A compiled loss() uses the result of the last loss() outside
    the compiler for this. Create a Retention before the first call of a compiled model. The network and
    the teacher are not submodules: they neither move with this module nor appear in its state_dict. A `with` statement
    removes the hooks at its end. If a Retention is copied or pickled together with its network, the copy has its hooks
    on the copied network. The captured feature maps are not copied.
    """

    start_vector: Tensor

    def __init__(
        self,
        model: nn.Module,
        variant: str | LcrVariant = "default",
        *,
        blocks: Sequence[str] | None = None,
        layers: Sequence[str] | None = None,
        lcr_weight: float | None = None,
        teacher: nn.Module | None = None,
        teacher_blocks: Sequence[str] | None = None,
        seed: int = 0,
        check_overflow: bool = True,
        **changes: Any,
    ) -> None:
        """Check all arguments and register the hooks."""
        super().__init__()
        self.check_overflow = check_overflow
        if not isinstance(model, nn.Module):
            raise InputError(f"Retention takes a torch.nn.Module; got {type(model).__name__}")
        model = unwrap_model(model)
        self.variant = build_variant(variant, lcr_weight, changes)
        self.variant.reject_retired_choices()
        self.spans = find_spans(model, self.variant, blocks, layers)
        check_modules_exist(model, unique_ports(self.spans))
        self.sigma_ratios: Tensor | None = None
        self.lcr_loss: Tensor | None = None
        self._model = (model,)  # a tuple hides the model from nn.Module, so that the model is not a submodule
        self._is_weights_only = is_weights_only(model)
        self._check_reference(model, teacher)
        parameter = next(model.parameters(), torch.empty(0))
        check_number(seed, "seed", low=0, integer=True)
        if teacher_blocks is not None and (teacher is None or layers is not None):
            raise InputError(
                "teacher_blocks needs a teacher and cannot be combined with layers; with layers, the modules of the "
                "teacher must have the names of the model's modules"
            )
        start_vector = draw_start_vector(START_VECTOR_LENGTH, seed).to(parameter.device)
        self.register_buffer("start_vector", start_vector, persistent=False)
        factors = torch.ones(len(self.spans) + 1, device=parameter.device)
        self.factors = nn.Parameter(factors) if self.variant.learnable_scale else None
        self._is_closed = self._has_checked_maps = False
        self._excluded_spans: frozenset[int] = frozenset()  # indices of the spans with a map that has only one sign
        self._no_maps_message = NO_MAPS_MESSAGE
        self._capture: FeatureMapCapture | None = None
        self._teacher: tuple[nn.Module, FeatureMapCapture | None, list[Span]] | None = None
        if self.variant.weight > 0:
            # The teacher comes first: if its checks raise an error, the model has no hooks yet.
            if teacher is not None:
                self._teacher = self._hook_teacher(unwrap_model(teacher), teacher_blocks)
            self._capture = self._hook_model()

    @property
    def has_checked_maps(self) -> bool:
        """Whether a loss() outside the compiler has checked the feature maps."""
        return self._has_checked_maps

    @property
    def model(self) -> nn.Module:
        """The network whose feature maps are captured, without the wrappers of torch.compile and DDP."""
        return self._model[0]

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(self, *error: object) -> None:
        """Remove all hooks at the end of a with statement."""
        self.close()

    def __copy__(self) -> NoReturn:
        """Raise InputError, because a shallow copy would share its state and its hooks with the original."""
        raise InputError("a Retention can only be copied together with its network: copy.deepcopy((model, retention))")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without hooks and feature maps."""
        teacher = self._teacher and (self._teacher[0], None, self._teacher[2])
        return {**self.__dict__, "_capture": None, "_teacher": teacher, "_no_maps_message": _COPY_NO_MAPS_MESSAGE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state and register hooks on the copied network and the copied teacher."""
        super().__setstate__(state)
        networks = [self._model[0], *([self._teacher[0]] if self._teacher else [])]
        if self.variant.weight == 0 or self._is_closed or not all(is_fully_copied(network) for network in networks):
            return
        for network in networks:
            remove_copied_hooks(network)
        if self._teacher is not None:
            teacher, _, spans = self._teacher
            capture = FeatureMapCapture(teacher, unique_ports(spans), capture_binary=False, layers_marked=True)
            self._teacher = (teacher, capture, spans)
        self._capture = self._hook_model(layers_marked=True)

    def _hook_model(self, *, layers_marked: bool = False) -> FeatureMapCapture:
        return FeatureMapCapture(
            self._model[0],
            unique_ports(self.spans),
            capture_binary=self.variant.activations == "binary",
            save_rng=self.variant.reference == "latent-weights",
            layers_marked=layers_marked,
        )

    def loss(self, lcr_weight: float | Tensor | None = None) -> Tensor:
        """Return the term to add to the task loss of the latest forward pass. It can be called once per forward pass.

        `lcr_weight` replaces the weight lambda of the variant, for a warm-up of lambda. With a tensor `lcr_weight`, a
        compiled step is not compiled again when the weight changes.
        """
        if lcr_weight is not None and not isinstance(lcr_weight, Tensor):
            check_number(lcr_weight, "the lcr_weight of loss()", low=0)
        total = self._compute_lcr_loss(lcr_weight)
        if self.variant.quantization_error_weight > 0:
            layers = [layer for _, layer in iter_binary_layers(self._model[0])]
            if any(hasattr(layer.weight, "full_tensor") for layer in layers):
                raise InputError(
                    "quantization_error_weight needs whole weights, but fully_shard leaves a part of each weight to "
                    "this process; use DistributedDataParallel or set quantization_error_weight to 0"
                )
            weights = [layer.weight_binarizer.pre_sign_weight(layer.weight) for layer in layers]
            total = total + self.variant.quantization_error_weight * quantization_error(weights)
        return total

    def _compute_lcr_loss(self, lcr_weight: float | Tensor | None) -> Tensor:
        if self._capture is None:
            return self._loss_without_hooks(lcr_weight)
        if self._is_closed:
            raise InputError(_CLOSED_MESSAGE)
        maps = self._capture.take_maps()
        maps.check_complete(unique_ports(self.spans), self._no_maps_message)
        binary = self._collect_binary_pairs(maps)
        self._check_gradient_reaches_maps(maps, binary)
        reference = self._collect_reference_pairs(maps)
        if is_eager():
            self._check_maps(maps, binary, reference)
        # The pure function could name only the number of a pair. The check below names the block.
        result = retention_loss(
            binary,
            reference,
            self.variant,
            self.start_vector,
            check_overflow=False,
            excluded=self._excluded_spans,
        )
        self.sigma_ratios = result.sigma_ratios()
        self.lcr_loss = result.loss.detach()
        if self.check_overflow and has_overflowed(result, [*binary, *reference]):
            raise RunFailed(self.describe_overflow())
        batch_size = maps.real[self.spans[0][0]].shape[0]
        lcr_weight = self.variant.weight if lcr_weight is None else lcr_weight
        return lcr_weight * COEFFICIENTS[self.variant.coefficient](batch_size) * result.loss

    def describe_overflow(self) -> str:
        """Return a sentence that names the first block whose ratio of spectral norms is infinite or NaN."""
        ratios = torch.empty(0) if self.sigma_ratios is None else self.sigma_ratios
        measured = [i for i in range(len(ratios)) if i not in self._excluded_spans]
        return describe_overflow(ratios[measured], self.variant, [str(self.spans[i][1]) for i in measured])

    def _loss_without_hooks(self, lcr_weight: float | Tensor | None) -> Tensor:
        """Return the loss of a network without hooks, which is 0. Raise InputError if another loss is expected."""
        if self.variant.weight > 0:
            message = (
                "this Retention was copied as a part of its own network, so it has no hooks on the copy; "
                "create another one"
            )
            raise InputError(_CLOSED_MESSAGE if self._is_closed else message)
        if lcr_weight is not None and (isinstance(lcr_weight, Tensor) or lcr_weight > 0):
            raise InputError(
                "this Retention was created with lcr_weight 0 and has no hooks; create it with a positive lcr_weight"
            )
        return torch.zeros((), device=self.start_vector.device)

    def _check_maps(self, maps: CapturedMaps, binary: Sequence[Pair], reference: Sequence[Pair]) -> None:
        """Find the maps with only one sign. The first call also raises InputError for maps that cannot be compared.

        On a GPU, later calls only check whether excluded maps still have one sign: reading the signs of all maps would
        wait for the device in each step.
        """
        is_first_check = not self._has_checked_maps
        if is_first_check:
            check_span_order(maps, self.spans)
            check_map_shapes(binary, self.spans, self.variant.matrix)
            if self._teacher is not None:
                check_map_shapes(reference, self._teacher[2], self.variant.matrix, " of the teacher")
            self._has_checked_maps = True
        if self.variant.activations != "binary" or self._is_weights_only:
            return
        if not is_first_check and self.start_vector.device.type != "cpu" and not self._excluded_spans:
            return
        one_signed_ports = find_one_signed_maps(maps, unique_ports(self.spans))
        self._excluded_spans = find_excluded_spans(self.spans, one_signed_ports, self.variant.matrix)
        if one_signed_ports and is_first_check:
            excluded_blocks = [self.spans[i][1].module for i in sorted(self._excluded_spans)]
            message = describe_one_signed_maps(one_signed_ports, excluded_blocks)
            warnings.warn(message, stacklevel=4)  # where loss() is called

    def _check_gradient_reaches_maps(self, maps: CapturedMaps, binary: Sequence[Pair]) -> None:
        """Raise InputError if the network is in training mode but no gradient of this loss can reach it."""
        model = self._model[0]
        if not (torch.is_grad_enabled() and model.training):
            return
        for (front, back), (front_map, back_map) in zip(self.spans, binary, strict=True):
            is_trained = any(p.requires_grad for p in model.get_submodule(front.module).parameters())
            is_front_lost = maps.real[front].requires_grad and not front_map.requires_grad
            if is_trained and not back_map.requires_grad:
                self._raise_no_gradient(back, f"{front.module!r} is trained")
            if is_front_lost and self.variant.matrix != "gram":  # this matrix reads only the map behind a block
                self._raise_no_gradient(front, "modules before it are trained")

    def _raise_no_gradient(self, port: ModulePort, reason: str) -> NoReturn:
        raise InputError(
            f"the feature map at {port.module!r} has no gradient, although {reason}: the latest forward pass ran under "
            "no_grad, or in a checkpoint with use_reentrant=True (False keeps the gradient)"
        )

    def close(self) -> None:
        """Remove all hooks from the model and the teacher."""
        self._is_closed = True
        for capture in (self._capture, self._teacher[1] if self._teacher else None):
            if capture is not None:
                capture.close()

    def _collect_binary_pairs(self, maps: CapturedMaps) -> list[Pair]:
        def get_map(port: ModulePort) -> Tensor:
            if self.variant.activations == "real":
                return maps.real[port]
            return maps.get_binary_map(port, weights_only=self._is_weights_only)

        maps_by_port = {port: get_map(port) for port in unique_ports(self.spans)}
        if self.factors is None:
            return [(maps_by_port[front], maps_by_port[back]) for front, back in self.spans]
        factors = self.factors
        return [(maps_by_port[f] * factors[k], maps_by_port[b] * factors[k + 1]) for k, (f, b) in enumerate(self.spans)]

    def _collect_reference_pairs(self, maps: CapturedMaps) -> list[Pair]:
        maps, spans = REFERENCES[self.variant.reference](self, maps)
        # The maps keep their gradient here, because retention_loss detaches them
        return [(maps.real[front], maps.real[back]) for front, back in spans]

    def _use_maps_of_same_pass(self, maps: CapturedMaps) -> tuple[CapturedMaps, list[Span]]:
        return maps, self.spans

    @torch.no_grad()
    def _run_with_latent_weights(self, maps: CapturedMaps) -> tuple[CapturedMaps, list[Span]]:
        assert self._capture is not None
        model = self._model[0]
        self._capture.expects_latent_pass = True
        try:
            with use_latent_weights(model), freeze_running_statistics(model), replay_rng(model, maps.rng_states):
                model(*maps.inputs, **maps.keyword_inputs)
        finally:
            self._capture.expects_latent_pass = False
        return self._capture.take_maps(), self.spans

    @torch.no_grad()
    def _run_teacher(self, maps: CapturedMaps) -> tuple[CapturedMaps, list[Span]]:
        assert self._teacher is not None
        teacher, capture, spans = self._teacher
        assert capture is not None
        if any(module.training for module in teacher.modules()):
            teacher.eval()
        dtype = next((p.dtype for p in teacher.parameters() if p.is_floating_point()), None)
        inputs = [cast_float_tensor(x, dtype) for x in maps.inputs]
        keyword_inputs = {name: cast_float_tensor(x, dtype) for name, x in maps.keyword_inputs.items()}
        teacher(*inputs, **keyword_inputs)
        return capture.take_maps(), spans

    def _hook_teacher(
        self, teacher: nn.Module, names: Sequence[str] | None
    ) -> tuple[nn.Module, FeatureMapCapture, list[Span]]:
        spans = self.spans if names is None else make_block_spans(check_module_names(names, "teacher_blocks", teacher))
        if len(spans) != len(self.spans):
            raise InputError(
                f"teacher_blocks must name as many blocks as the model has; got {len(spans)} for the teacher and "
                f"{len(self.spans)} for the model"
            )
        return teacher.eval(), FeatureMapCapture(teacher, unique_ports(spans), capture_binary=False), spans

    def _check_reference(self, model: nn.Module, teacher: nn.Module | None) -> None:
        reference, binary = self.variant.reference, any(True for _ in iter_binary_layers(model))
        if reference == "pre-binarization" and self.variant.activations == "real":
            raise InputError(
                "reference 'pre-binarization' compares feature maps before and after the sign; with activations='real' "
                "the loss would be exactly 0"
            )
        if reference == "pre-binarization" and self._is_weights_only:
            raise InputError(
                "reference 'pre-binarization' compares activations with their signs, but this network binarizes "
                "weights only (1/32), so the loss would be exactly 0; choose reference 'latent-weights' or 'teacher'"
            )
        if reference == "latent-weights" and not binary:
            raise InputError("reference 'latent-weights' needs binary layers of this package, but the network has none")
        if self.variant.quantization_error_weight > 0 and not binary:
            raise InputError("quantization_error_weight needs binary layers of this package, but the network has none")
        if reference == "teacher" and not isinstance(teacher, nn.Module):
            raise InputError("reference 'teacher' needs the argument teacher, a full-precision network")
        if teacher is not None and unwrap_model(teacher) is model:
            raise InputError("the teacher must be another network than the model; got the model itself")
        if reference != "teacher" and teacher is not None:
            raise InputError(f"the argument teacher needs reference='teacher'; the reference is {reference!r}")


# Functions that return the feature maps of the reference, by `LcrVariant.reference`.
REFERENCES = {
    "pre-binarization": Retention._use_maps_of_same_pass,
    "latent-weights": Retention._run_with_latent_weights,
    "teacher": Retention._run_teacher,
}
