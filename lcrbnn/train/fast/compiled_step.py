"""The compiled training step. On a GPU, a whole step is one CUDA graph, from the choice of images to the update.

For each epoch, the host fills tables (image order, augmentation draws, learning rates, lambdas). After that, it only
replays the graph. A counter on the device selects the row of the tables. The eager step is the reference. Both have the
same random draws, the same optimizer state and the same checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from lcrbnn.data.loading.batches import BatchSource
from lcrbnn.errors import InputError, RunFailed
from lcrbnn.nn.model_hooks import project_weights
from lcrbnn.train.cuda_graph import CapturedCall
from lcrbnn.train.distributed.gradient_all_reduce import StepReducer
from lcrbnn.train.distributed.ranks import SINGLE_PROCESS, Ranks
from lcrbnn.train.eager_step import EagerStep, NonFiniteError
from lcrbnn.train.fast.batch_inputs import make_batch_inputs
from lcrbnn.train.fast.fused_step import GPU_FUSIONS, FusionOptions
from lcrbnn.train.objective import (
    SUM_NAMES,
    accumulate_gradient,
    clip_gradients,
    collect_gradients,
    compute_gradients,
    compute_objective,
)
from lcrbnn.train.schedule import compute_lcr_weight, compute_learning_rate
from lcrbnn.train.setup.build import TrainingParts
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.state import initialize_optimizer_state
from lcrbnn.train.validation import LcrMeasurement, measure_lcr

# A study compiles one step per combination of settings, all in the same process. torch's default limit is too small for
# this.
MAX_RECOMPILATIONS = 10**6
NO_BAD_STEP = 2**62  # number of the first step with a non-finite value, if there was no such step
WARM_UP_STEPS = 2  # number of steps that run before the capture; their effects are undone
# lambda is multiplied by this factor for the measurement of the LCR gradient, so that rounding does not matter
MEASUREMENT_LCR_FACTOR = 100


class CompiledStep:
    """Run the steps of an epoch like EagerStep, but compiled. On a CPU, for tests only, no step is captured."""

    def __init__(
        self, spec: TrainSpec, parts: TrainingParts, train: BatchSource, ranks: Ranks = SINGLE_PROCESS
    ) -> None:
        """Allocate the tables. The step is compiled and captured in the first epoch."""
        self.spec, self.parts, self.train, self.ranks = spec, parts, train, ranks
        self.device = train.labels.device
        self.steps_per_epoch = train.count_steps(spec.batch_size, spec.drop_last, spec.gradient_accumulation_steps)
        num_parts = ranks.size * spec.gradient_accumulation_steps
        if spec.batch_size % num_parts:
            raise InputError(
                f"a compiled step has parts of equal size, and a batch of {spec.batch_size} cannot be cut into "
                f"{ranks.size} x {spec.gradient_accumulation_steps} (processes x gradient_accumulation_steps); choose "
                f"a multiple of {num_parts}, or --step-mode eager"
            )
        # Number of full batches per epoch; an incomplete last batch runs as an eager step
        self.full_batches = len(train) // spec.batch_size
        self.sums = torch.zeros(len(SUM_NAMES), dtype=torch.float64, device=self.device)
        self.stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        # Name in all existing records and checkpoints; with the same name, new ones are comparable
        self.record_name = "FastStep"
        self.is_captured = self.stream is not None
        # NCCL's threads may call CUDA during the capture, which the default mode forbids
        self._capture_error_mode = "thread_local" if ranks.is_launched else "global"
        self.batch_inputs, device = make_batch_inputs(spec, train), self.device
        self._learning_rates, self._lcr_weights = torch.zeros(2, self.steps_per_epoch, device=device)
        self._step_counter = torch.zeros(1, dtype=torch.int64, device=device)
        self._first_bad_step = torch.full((1,), NO_BAD_STEP, dtype=torch.int64, device=device)
        self._lr = torch.zeros((), device=device)
        size = min(spec.batch_size // num_parts, len(train))  # number of images per forward pass
        self._part_starts = [torch.tensor([i * size], device=device) for i in range(spec.gradient_accumulation_steps)]
        self._part_fraction = 1 / num_parts
        self._step_reducer = StepReducer(parts.model, ranks)
        self._graph: Any = None
        self._epoch = self._step = 0
        self._full_lcr_weight = 0.0
        compiler: Any = torch._dynamo.config
        compiler.recompile_limit = compiler.accumulated_recompile_limit = MAX_RECOMPILATIONS
        enable_compiler_cache()
        self._fusion = GPU_FUSIONS if self.is_captured else FusionOptions()
        self._compiled_objective = torch.compile(
            self._compute_part_objective, fullgraph=True, options=self._fusion.compiler_options() or None
        )
        self._compiled_bookkeeping = torch.compile(self._record_step, fullgraph=True)
        self._eager_step = EagerStep(spec, parts, train, ranks)
        self._batch_counters: list[tuple[Any, Tensor]] = [
            (m, m.num_batches_tracked)
            for m in parts.model.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm)
            and m.num_batches_tracked is not None
            # If momentum is None, torch computes the running statistics from the batch counter
            and m.momentum is not None
        ]
        if self.is_captured:
            _to_channels_last(parts.model)

    def begin_epoch(self, epoch: int, first_step: int, full_lcr_weight: float) -> None:
        """Fill the tables of an epoch. After this, the host does not wait for the device until the end of the epoch."""
        spec = self.spec
        self._epoch, self._step, self._full_lcr_weight = epoch, first_step, full_lcr_weight
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with self._on_stream():
            self.batch_inputs.begin_epoch(epoch, first_step, self.full_batches)
            positions = [(epoch, step, self.steps_per_epoch) for step in range(self.steps_per_epoch)]
            self._learning_rates.copy_(torch.tensor([compute_learning_rate(spec, *p) for p in positions]))
            self._lcr_weights.copy_(torch.tensor([compute_lcr_weight(spec, full_lcr_weight, *p) for p in positions]))
            self._step_counter.fill_(first_step)
            if self._graph is None and first_step < self.full_batches:
                self._prepare()

    def run_step(self) -> None:
        """Run the next step. On a GPU, the step is only added to the queue of the device."""
        with self._on_stream():
            if self._step >= self.full_batches:  # the incomplete last batch does not have the shape of the graph
                self._run_incomplete_batch()
            else:
                self.batch_inputs.load_batch()
                self._replay()
        self._step += 1

    def _replay(self) -> None:
        if self.is_captured:
            self._graph.replay()
        else:
            self._run_step_body()

    def check_finite(self) -> None:
        """Wait for the device. If a loss or gradient of this epoch was not finite, raise NonFiniteError."""
        if self.stream is not None:
            self.stream.synchronize()
        first_bad_step = int(self._first_bad_step)
        if first_bad_step != NO_BAD_STEP:
            raise NonFiniteError("loss or gradient is not finite", self._epoch, first_bad_step)

    def measure_lcr(self) -> LcrMeasurement | None:
        """Return sigma ratios and gradient ratio, measured between epochs.

        Return None before the first step or without LCR. The loss is linear in lambda. So the LCR gradient is (gradient
        at a large lambda - gradient without LCR) / lambda. Both gradients come from the compiled step.
        """
        if self._graph is None or not self.spec.uses_lcr:
            return None
        with (
            self._ordered_with_current_stream(),
            self._on_stream(),
            _restored_afterwards(self._tensors_changed_by_forward()),
        ):
            self.batch_inputs.load_sample()
            self._step_counter.zero_()
            large_weight = MEASUREMENT_LCR_FACTOR * max(self._full_lcr_weight, 1e-6)
            gradients, sigma_ratios = [], self.sums
            for weight in (0.0, large_weight):
                self._lcr_weights[0] = weight
                gradient, sigma_ratios = self._captured_gradient()
                gradients.append(gradient.clone())
            task, task_and_lcr = gradients
            lcr_norm = (task_and_lcr - task).norm() / large_weight
            gradient_ratio = (lcr_norm / task.norm().clamp_min(1e-30)).item()
            return LcrMeasurement([round(r, 6) for r in sigma_ratios.tolist()], gradient_ratio)

    def _compute_gradient_and_ratios(self) -> tuple[Tensor, Tensor]:
        """Return the gradient of all parameters for one batch as one vector, and the sigma ratios."""
        parts = self.parts
        parts.optimizer.zero_grad(set_to_none=True)
        with self._prepared_for_compiler():
            loss, _ = self._compiled_objective(self._step_counter, self._part_starts[0])
        gradients = compute_gradients(self.spec, loss, parts.model.parameters())
        assert parts.retention is not None
        assert parts.retention.sigma_ratios is not None
        sigma_ratios = parts.retention.sigma_ratios.clone()
        return torch.cat([g.flatten() for g in gradients]), sigma_ratios

    def _run_incomplete_batch(self) -> None:
        self.check_finite()  # wait for earlier steps, so that the eager step reports only its own batch
        self._eager_step.begin_epoch(self._epoch, self._step, self._full_lcr_weight)
        self._eager_step.sums.zero_()
        self._eager_step.run_step()
        self.sums += self._eager_step.sums
        self._use_lr_tensor()

    # -- the captured body -------------------------------------------------------------------------------------------

    def _compute_part_objective(self, step: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        # This method is compiled. It runs once per part of a batch.
        images, labels = self.batch_inputs.select_part(step, start)
        if self.is_captured:
            images = images.contiguous(memory_format=torch.channels_last)
        loss, sums = compute_objective(self.spec, self.parts, images, labels, self._lcr_weights[step].squeeze(0))
        return loss, sums

    def _run_step_body(self) -> None:
        # The body of the CUDA graph. Everything below runs on the device, with fixed addresses. With gradient
        # accumulation, each part has its own forward and backward pass, and the gradients are added.
        parts = self.parts
        parts.optimizer.zero_grad(set_to_none=True)
        part_sums = []
        for start in self._part_starts:
            with self._prepared_for_compiler():
                loss, sums = self._compiled_objective(self._step_counter, start)
            accumulate_gradient(self.spec, loss, self._part_fraction)
            part_sums.append(sums)
        # Only the objective and the bookkeeping are compiled. Everything else below runs as it is, inside the graph.
        gradients = collect_gradients(self.spec, parts.parameter_names)
        sums = part_sums[0] if len(part_sums) == 1 else torch.stack(part_sums).sum(0)
        sums = self._step_reducer(gradients, sums, 1 / self.ranks.size)
        norms = torch.stack(torch._foreach_norm(gradients))
        self._compiled_bookkeeping(norms, sums)
        clip_gradients(self.spec, gradients, norms)
        parts.optimizer.step()
        project_weights(parts.model)
        if self._batch_counters:
            torch._foreach_add_([counter for _, counter in self._batch_counters], self.spec.gradient_accumulation_steps)

    def _record_step(self, norms: Tensor, sums: Tensor) -> None:
        """Update the first bad step, learning rate, sums and step counter on the device.

        Without compilation, this takes 20 launches.
        """
        is_finite = torch.isfinite(sums[0]) & torch.isfinite(torch.linalg.vector_norm(norms))
        self._first_bad_step.copy_(
            torch.where(is_finite, self._first_bad_step, torch.minimum(self._first_bad_step, self._step_counter))
        )
        self._lr.copy_(self._learning_rates[self._step_counter].squeeze(0))
        self.sums += sums
        self._step_counter += 1

    def _prepare(self) -> None:
        """Compile and capture the step. Steps that run for this purpose are undone afterwards."""
        retention = self.parts.retention
        if self.spec.uses_lcr and retention is not None and not retention.has_checked_maps:
            # An eager pass finds the feature maps with only one sign, which the compiled loss leaves out.
            measure_lcr(self.spec, self.parts, self.train)
        self._use_lr_tensor()
        initialize_optimizer_state(self.parts.optimizer)
        with _restored_afterwards(self._tensors_changed_by_step()):
            try:
                self._warm_up_and_capture()
            except (TorchDynamoException, InductorError) as error:
                reason = str(error).strip().splitlines()[0]
                raise RunFailed(
                    f"the step cannot be compiled here ({reason}); --step-mode eager needs no compiler"
                ) from None

    def _warm_up_and_capture(self) -> None:
        self._graph = True
        self._warm_up(1 + WARM_UP_STEPS if self.is_captured else 1)
        if self.is_captured:
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self.stream, capture_error_mode=self._capture_error_mode):
                self._run_step_body()
        self._captured_gradient = CapturedCall(
            self._compute_gradient_and_ratios, self._graph, self.stream, self._capture_error_mode
        )

    def _warm_up(self, times: int) -> None:
        for _ in range(times):
            self._run_step_body()
            # Run the same step again, because it may be the last step of this epoch.
            self._step_counter.fill_(self._step)

    def _use_lr_tensor(self) -> None:
        for group in self.parts.optimizer.param_groups:
            group["lr"] = self._lr

    def _tensors_changed_by_step(self) -> list[Tensor]:
        """Return all tensors that a step changes, such as parameters, buffers, optimizer state and bookkeeping."""
        optimizer_state = [v for s in self.parts.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        modules = [self.parts.model, *([] if self.parts.retention is None else [self.parts.retention])]
        module_tensors = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        return [*module_tensors, *optimizer_state, self.sums, self._step_counter, self._first_bad_step]

    def _tensors_changed_by_forward(self) -> list[Tensor]:
        lcr_buffers = [] if self.parts.retention is None else self.parts.retention.buffers()
        return [*self.parts.model.buffers(), *lcr_buffers, self._step_counter, self._first_bad_step]

    @contextmanager
    def _prepared_for_compiler(self) -> Iterator[None]:
        """Inside this context, the network has the fused modules, and batch norms do not count batches."""
        with _batch_counting_disabled(self._batch_counters), self._fusion.apply(self.parts.model, self.spec.precision):
            yield

    @contextmanager
    def _ordered_with_current_stream(self) -> Iterator[None]:
        """Inside this context, the step's stream runs after earlier and before later work of the current stream."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        try:
            yield
        finally:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)

    def _on_stream(self) -> Any:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def enable_compiler_cache() -> None:
    """Let torch's compiler store traced steps on disk, so that a later start is faster.

    By default, torch does not store steps with autocast or with custom autograd functions. Both are safe here, because
    the cache key contains the arguments of autocast and the code of the functions.
    """
    inductor, functorch = cast(Any, torch._inductor.config), cast(Any, torch._functorch.config)
    inductor.unsafe_marked_cacheable_functions = {
        f"torch.amp.autocast_mode.{name}": torch.__version__ for name in ("_enter_autocast", "_exit_autocast")
    }
    functorch.autograd_cache_allow_custom_autograd_functions = True


@contextmanager
def _batch_counting_disabled(counters: list[tuple[Any, Tensor]]) -> Iterator[None]:
    """Inside this context, batch norms do not count batches, because each count is a kernel.

    The step updates all counters in a single kernel.
    """
    for norm, _ in counters:
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, counter in counters:
            norm.num_batches_tracked = counter


@torch.no_grad()
def _to_channels_last(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


@contextmanager
def _restored_afterwards(tensors: list[Tensor]) -> Iterator[None]:
    """Restore the tensors to their old values at the end of the context. Their addresses do not change."""
    copies = [t.detach().clone() for t in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy)
