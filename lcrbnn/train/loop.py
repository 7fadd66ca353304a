"""The training loop, with epochs, log lines and checkpoints.

If a run is interrupted and resumed, it ends with the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from lcrbnn.errors import ErrorOnOtherRank, RunFailed
from lcrbnn.nn.model_hooks import set_progress, start_epoch
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.stop_request import StopRequest
from lcrbnn.train import state
from lcrbnn.train.cuda_graph import GraphPredictor
from lcrbnn.train.distributed.ranks import SyncInterval
from lcrbnn.train.eager_step import EagerStep, NonFiniteError
from lcrbnn.train.objective import SUM_NAMES
from lcrbnn.train.resume import collect_arrays, make_checkpoint, restore_newest_checkpoint
from lcrbnn.train.run_context import RunContext, RunState
from lcrbnn.train.schedule import compute_lcr_weight, compute_learning_rate, is_measured_epoch
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.validation import LcrMeasurement, compute_accuracy, compute_noisy_accuracy, measure_lcr

# Maximum number of steps that are repeated eagerly to find a non-finite layer. Parallel runs wait until this ends.
MAX_REPLAYED_STEPS = 2000
# Smallest usable ratio of LCR gradient to task gradient at lambda = 1; smaller ratios are rounding noise
MIN_GRADIENT_RATIO = 1e-6
# Smallest fraction of an epoch's time spent waiting for images that the line on the terminal shows
MIN_SHOWN_DATA_TIME = 0.05


class LogListener(Protocol):
    """An object that receives each line of the log."""

    def add_log_line(self, line: dict[str, Any]) -> None:
        """Process a line of the log."""


class TrainingLoop:
    """The loop that trains one run from its current state until its end."""

    def __init__(
        self, context: RunContext, run_state: RunState, progress: ProgressBar, listeners: Sequence[LogListener] = ()
    ) -> None:
        """Store the parts of the run. Nothing is computed.

        With several processes, only rank 0 writes into the folder.
        """
        self.context, self.state, self.progress, self.listeners = context, run_state, progress, listeners
        self.spec, self.parts, self.step, self.splits = context.spec, context.parts, context.step, context.splits
        self.folder, self.ranks, self.label = context.folder, context.ranks, context.label
        self.steps_per_epoch = context.step.steps_per_epoch
        # Dictionary: noise level -> validation accuracy; it is measured at the end of the run
        self.noise_top1: dict[str, float] | None = None
        self._checkpoint_interval_s = context.options.checkpoint_interval_s
        self._predictor = GraphPredictor(context.parts.model, context.spec, capture=context.step.is_captured)
        self._data_time_fraction = 0.0  # fraction of the last epoch's time in which a step waited for images
        self._epoch_start_time = self._last_save_time = time.monotonic()
        self._last_valid_top1: float | None = None
        self._sync_interval = SyncInterval(self.ranks, every_step=self._checkpoint_interval_s == 0)

    def train_steps(self, stop: StopRequest) -> Iterator[None]:
        """Train until the end. Each iteration of this generator is one step.

        So several runs can take turns on one GPU.
        """
        while self.state.epoch < self.spec.epochs:
            yield from self._train_epoch(stop)
            self._finish_epoch(stop)
        self.save_checkpoint()
        if self.splits.valid is not None:
            after_batch = self._stop_check(stop)
            self.noise_top1 = compute_noisy_accuracy(self._predictor, self.splits.valid, after_batch, self.ranks)

    @property
    def steps_done(self) -> int:
        """Return the number of steps since the beginning of the run."""
        return self.state.count_steps(self.steps_per_epoch)

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def _train_epoch(self, stop: StopRequest) -> Iterator[None]:
        self._epoch_start_time = time.monotonic()
        loading_time_s = self.splits.train.loading_time_s
        self.begin_epoch(self.state.epoch, self.state.step)
        while self.state.step < self.steps_per_epoch:
            self._run_step()
            self.progress.advance(self._describe_progress)
            if self._sync_interval.is_due(self.steps_done) or self.state.step == self.steps_per_epoch:
                self._save_or_stop(stop)
            yield
        self._check_finite()
        loading_time_s = self.splits.train.loading_time_s - loading_time_s
        self._data_time_fraction = loading_time_s / max(time.monotonic() - self._epoch_start_time, 1e-9)

    def _save_or_stop(self, stop: StopRequest) -> None:
        """Save if a checkpoint is due, and stop after a signal. All processes do the same."""
        is_save_due = time.monotonic() - self._last_save_time >= self._checkpoint_interval_s
        signal_number, is_save_due_anywhere = self._sync_interval.synchronize(
            self.steps_done, stop.signal_number or 0, is_save_due
        )
        stop.signal_number = signal_number or None
        if is_save_due_anywhere:
            self.save_checkpoint()
        stop.raise_if_requested()

    def _stop_check(self, stop: StopRequest) -> Callable[[], None]:
        """Return the function to call after each validation batch. With a single process, it stops after a signal.

        With several processes, the run continues until the next training step. There, all of them learn of the signal.
        """
        return stop.raise_if_requested if self.ranks.size == 1 else lambda: None

    def begin_epoch(self, epoch: int, first_step: int) -> None:
        """Prepare an epoch from `first_step` on. At step 0, also do the work that is done once per epoch."""
        set_progress(self.parts.model, epoch / self.spec.epochs)
        if self.ranks.size > 1:
            digest = state.digest_arrays(collect_arrays(self.context))
            self.ranks.check_same(digest, f"their weights before epoch {epoch + 1}")
        if first_step == 0:
            start_epoch(self.parts.model)
            # The result of rank 0 is used, because a method's matrix decomposition may differ between machines in the
            # last bits.
            state.broadcast_module(self.parts.model, self.ranks)
        self.parts.model.train()
        if first_step == 0 and self.spec.lcr_gradient_ratio > 0 and is_measured_epoch(self.spec, epoch):
            ratio = self._measure_lcr().gradient_ratio or 0.0
            is_measurable = ratio > MIN_GRADIENT_RATIO
            self.state.full_lcr_weight = self.spec.lcr_gradient_ratio / ratio if is_measurable else 0.0
        self.step.begin_epoch(epoch, first_step, self.state.full_lcr_weight)

    def _measure_lcr(self) -> LcrMeasurement:
        measurement = self.step.measure_lcr() or measure_lcr(self.spec, self.parts, self.splits.train)
        return self.ranks.broadcast_object(measurement)

    def _finish_epoch(self, stop: StopRequest) -> None:
        """Validate, write the log line, and save a checkpoint if one is due."""
        line = self._make_log_line(stop)
        self._last_valid_top1 = line["valid_top1"]
        if self.ranks.is_first:
            self._append_to_log(line)
        self.state.epoch, self.state.step, self.state.seconds = self.state.epoch + 1, 0, 0.0
        self.step.sums.zero_()
        try:
            for listener in self.listeners:
                listener.add_log_line(line)
        except OSError as error:
            raise RunFailed(self._explain_write_error("TensorBoard's file", error)) from None
        is_save_due = time.monotonic() - self._last_save_time >= self._checkpoint_interval_s
        if self.ranks.all_reduce_max(is_save_due)[0]:
            self.save_checkpoint()
        self.progress.print_status(self.context.line_prefix + _format_log_line(line, self.spec.epochs))

    def _make_log_line(self, stop: StopRequest) -> dict[str, Any]:
        spec, epoch, last_step = self.spec, self.state.epoch, self.steps_per_epoch - 1
        means = self._compute_means()
        accuracy = None
        if self.splits.valid is not None:
            accuracy = compute_accuracy(self._predictor, self.splits.valid, self._stop_check(stop), self.ranks)
        measurement = self._measure_lcr() if is_measured_epoch(spec, epoch) else LcrMeasurement(None, None)
        lcr_weight = compute_lcr_weight(spec, self.state.full_lcr_weight, epoch, last_step, self.steps_per_epoch)
        ratio = measurement.gradient_ratio  # ratio of LCR gradient to task gradient at lambda = 1
        seconds = self.state.seconds + time.monotonic() - self._epoch_start_time
        return {
            "epoch": epoch + 1,
            "steps": (epoch + 1) * self.steps_per_epoch,
            "lr": compute_learning_rate(spec, epoch, last_step, self.steps_per_epoch),
            "lcr_weight": lcr_weight,
            "train_loss": means["loss"],
            "lcr_loss": means["lip"] if spec.uses_lcr else None,
            "train_top1": 100 * means["correct"],
            "valid_top1": None if accuracy is None else accuracy.top1,
            "valid_loss": None if accuracy is None else accuracy.loss,
            **({} if accuracy is None or accuracy.top5 is None else {"valid_top5": accuracy.top5}),
            "sigma_ratios": measurement.sigma_ratios,
            "lcr_gradient_ratio": None if ratio is None else ratio * lcr_weight,
            "seconds": round(seconds, 3),
            **({"data_time_fraction": round(self._data_time_fraction, 4)} if self.splits.train.is_streamed else {}),
        }

    def _append_to_log(self, line: dict[str, Any]) -> None:
        try:
            self.folder.append_log_line(line)
        except OSError as error:
            raise RunFailed(self._explain_write_error("the log", error)) from None

    def _compute_means(self) -> dict[str, float]:
        """Return the mean of each of the SUM_NAMES over the images of this epoch so far."""
        sums = self.step.sums.tolist()
        return {name: value / max(sums[-1], 1) for name, value in zip(SUM_NAMES, sums, strict=True)}

    def _describe_progress(self) -> str:
        means = self._compute_means()
        lcr_loss = f"  L_Lip {means['lip']:.4f}" if self.spec.uses_lcr else ""
        # validation accuracy of the last epoch
        valid = "" if self._last_valid_top1 is None else f"  valid {self._last_valid_top1:.1f} %"
        train = f"train {100 * means['correct']:.1f} %{valid}"
        return f"{self.context.line_prefix}epoch {self.state.epoch + 1}  loss {means['loss']:.4f}{lcr_loss}  {train}"

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def save_checkpoint(self) -> None:
        """Write a checkpoint of the current state. If writing fails, raise RunFailed.

        Older checkpoints do not change.
        """
        position = (self.state.epoch, self.state.step)
        if position == self.state.saved_position:
            return
        self._check_finite()
        arrays = collect_arrays(self.context)
        non_finite_name = state.find_non_finite(arrays)
        if non_finite_name is not None:
            raise self._make_failure(NonFiniteError(f"{non_finite_name} is not finite", *position))
        seconds = self.state.seconds + time.monotonic() - self._epoch_start_time if self.state.step else 0.0
        checkpoint = make_checkpoint(self.context, self.state, arrays, round(seconds, 3))
        try:
            if self.ranks.is_first:
                self.folder.save_checkpoint(self.steps_done, checkpoint)
        except OSError as error:
            raise RunFailed(self._explain_write_error("a checkpoint", error)) from None
        self._last_save_time, self.state.saved_position = time.monotonic(), position

    # -- failures ----------------------------------------------------------------------------------------------------

    def _run_step(self) -> None:
        try:
            self.step.run_step()
        except NonFiniteError as error:
            raise self._locate_non_finite(error) from None
        self.state.step += 1

    def _check_finite(self) -> None:
        try:
            self.step.check_finite()
        except NonFiniteError as error:
            raise self._locate_non_finite(error) from None

    def _locate_non_finite(self, error: NonFiniteError) -> RunFailed:
        """Return the failure of the run, with the first non-finite layer if an eager step finds this layer."""
        return self._make_failure(error if error.rows is not None else self._replay(error))

    def _replay(self, error: NonFiniteError) -> NonFiniteError:
        """Repeat the steps since the last checkpoint eagerly. Return an error that names the non-finite layer.

        A compiled step only knows in which step a value became non-finite. If the last checkpoint is more than
        MAX_REPLAYED_STEPS steps back, the layer stays unknown.
        """
        failed_step = error.epoch * self.steps_per_epoch + error.step
        self.progress.print_line(f"non-finite values at step {failed_step}: looking for the layer")
        runs_folder = self.context.options.runs_folder
        parts = build_training_parts(self.spec, self.context.device, ranks=self.ranks, runs_folder=runs_folder)
        step = EagerStep(self.spec, parts, self.splits.train, self.ranks)
        context = replace(self.context, parts=parts, step=step)
        replay = TrainingLoop(context, restore_newest_checkpoint(context).state, self.progress)
        distance = failed_step - replay.steps_done
        if distance > MAX_REPLAYED_STEPS:
            return NonFiniteError(f"{error}, {distance} steps after the last checkpoint", error.epoch, error.step)
        first_step = replay.state.step
        try:
            for epoch in range(replay.state.epoch, error.epoch + 1):
                replay.begin_epoch(epoch, first_step)
                for _ in range(first_step, self.steps_per_epoch if epoch < error.epoch else error.step + 1):
                    step.run_step()
                first_step = 0
        except NonFiniteError as located_error:
            return located_error
        return NonFiniteError(f"{error}; eager steps passed that point", error.epoch, error.step)

    def _make_failure(self, error: NonFiniteError) -> RunFailed:
        """Return the failure of the run as one sentence.

        All details, with the row numbers of the batch, are in fault.json.
        """
        if not self.ranks.is_first:
            return ErrorOnOtherRank(1)
        steps, epoch = self.steps_per_epoch, error.epoch
        lr = compute_learning_rate(self.spec, epoch, min(error.step, steps - 1), steps)
        failed_step = epoch * steps + error.step
        details = {"step": failed_step, "epoch": epoch + 1, "lr": lr, "reason": str(error), "rows": error.rows}
        self.folder.write_fault(details)
        label = f"{self.label}: " if self.label else ""
        return RunFailed(
            f"{label}non-finite values at step {failed_step} (epoch {epoch + 1}, step {error.step} of {steps}), "
            f"learning rate {lr:g}: {error}; {self._describe_newest_checkpoint()}"
        )

    def _explain_write_error(self, file: str, error: OSError) -> str:
        reason = error.strerror or error
        return f"{file} cannot be written to {self.folder.path}: {reason}; {self._describe_newest_checkpoint()}"

    def _describe_newest_checkpoint(self) -> str:
        newest = self.folder.find_newest_checkpoint()
        return "there is no checkpoint yet" if newest is None else f"the checkpoint {newest} is kept"


def _format_log_line(line: dict[str, Any], epochs: int) -> str:
    lcr_loss = "" if line["lcr_loss"] is None else f"  L_Lip {line['lcr_loss']:.4f}"
    valid = "" if line["valid_top1"] is None else f"  valid {line['valid_top1']:.2f} %"
    data_time = line.get("data_time_fraction", 0)
    shown_data_time = f"  waited {data_time:.0%}" if data_time >= MIN_SHOWN_DATA_TIME else ""
    train = f"loss {line['train_loss']:.4f}{lcr_loss}  train {line['train_top1']:.2f} %{valid}"
    return f"epoch {line['epoch']}/{epochs}  {train}  lr {line['lr']:.4g}{shown_data_time}"
