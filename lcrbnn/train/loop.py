"""The loop of a run: steps, epochs, log, checkpoints. Killed anywhere and resumed, it ends with the same bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from lcrbnn.errors import Failed, InputError, Repeated
from lcrbnn.layers import advance, start_epoch
from lcrbnn.runs.checkpoint import Checkpoint
from lcrbnn.runs.folder import RunFolder
from lcrbnn.runs.progress import Progress
from lcrbnn.train import state
from lcrbnn.train.batches import Source
from lcrbnn.train.build import RUNS, Parts, build
from lcrbnn.train.captured import Answers
from lcrbnn.train.checkpoint_content import SUMS_ARRAY, WITHOUT_MEMORY, check_facts, check_training_state
from lcrbnn.train.evaluate import Look, accuracy, look
from lcrbnn.train.finished import WHOLE
from lcrbnn.train.noise import noisy_accuracy
from lcrbnn.train.objective import SUMS
from lcrbnn.train.pace import Pace
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.schedule import learning_rate, looked_at, retention_weight
from lcrbnn.train.signals import StopRequest
from lcrbnn.train.spec import Spec
from lcrbnn.train.step_eager import BadNumbers, EagerStep

REPLAYED = 2000  # steps that are made again to find a bad number's layer, at most: others may wait for their turn
ROUNDING = 1e-6  # a share, at lambda = 1, that is no more than this is noise: as good as nothing is left to retain


@dataclass
class Place:
    """Where a run is: the next step of an epoch. At step 0 the epoch has not begun; after the last it is not closed."""

    epoch: int = 0
    step: int = 0


class Stepper(Protocol):
    """Goes through an epoch: EagerStep, FastStep."""

    sums: torch.Tensor
    captured: bool  # whether its steps are graphs on a GPU

    def begin(self, epoch: int, first: int, full: float) -> None:
        """Be ready for the steps of an epoch from the first on, with this lambda, but for the ramp."""

    def take(self) -> None:
        """One step."""

    def check(self) -> None:
        """Wait until all steps are made; raise BadNumbers if one had any."""

    def look(self) -> Look | None:
        """Ratios and share, if this stepper can tell better than evaluate.look."""


class Watcher(Protocol):
    """Is shown each line of the log."""

    def add(self, line: dict[str, Any]) -> None:
        """Take a line."""


class Loop:
    """One run from where it is to its end."""

    def __init__(
        self,
        spec: Spec,
        parts: Parts,
        step: Stepper,
        train: Source,
        valid: Source | None,
        folder: RunFolder,
        *,
        save_seconds: float,
        ranks: Ranks = ALONE,
    ) -> None:
        """Take the parts; nothing is computed. Of several processes only the first writes into the folder."""
        self.spec, self.parts, self.step, self.train, self.valid = spec, parts, step, train, valid
        self.folder, self.save_seconds, self.ranks = folder, save_seconds, ranks
        self.watchers: list[Watcher] = []
        self.broken: dict[str, str] = {}  # images left out, and why
        self.classes: tuple[str, ...] = ()  # their names, of images from files
        self.images = ""  # digest of the training images, if they are files
        self.about: dict[str, Any] = {}  # how images are read from files
        self.waited = 0.0  # share of the last epoch's steps in which there were no images yet
        self.runs = RUNS  # of studies, where the spec names one of them
        self.label = ""  # before each line about this run, where there are several
        self.steps = train.steps(spec.batch, spec.drop_last, spec.accumulate)
        self.answers = Answers(parts.model, spec, capture=step.captured)
        self.progress: Progress  # given by whoever lets it run
        self.place = Place()
        self.full = spec.weight  # lambda, but for the ramp
        self.seconds = 0.0  # spent on this epoch before it was interrupted
        self.noise: dict[str, float] | None = None  # accuracy under noise, known at the end
        device = train.labels.device
        where = f"{torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name(device)
        self.made = f"{type(step).__name__} on {f'{ranks.size} x ' if ranks.size > 1 else ''}{where}"
        self._clock = self._saved = time.monotonic()
        self._kept_place: Place | None = None  # of the newest checkpoint
        self._valid: float | None = None
        self._pace = Pace(ranks, each=save_seconds == 0)

    def march(self, stop: StopRequest) -> Iterator[None]:
        """Go on to the end, a step at a time; on a GPU a step is only ordered, so several runs can be side by side."""
        while self.place.epoch < self.spec.epochs:
            yield from self._steps(stop)
            self._close(stop)
        self.save()
        if self.valid is not None:
            self.noise = noisy_accuracy(self.answers, self.valid, self._between(stop), self.ranks)

    # -- an epoch ----------------------------------------------------------------------------------------------------

    def _steps(self, stop: StopRequest) -> Iterator[None]:
        place = self.place
        self._clock = time.monotonic()
        waited = self.train.waited
        self.enter(place.epoch, place.step)
        while place.step < self.steps:
            self._one()
            self.progress.advance(self._note)
            if self._pace.due(self.done) or self.place.step == self.steps:
                self._pause(stop)
            yield
        self._checked(self.step.check)
        self.waited = (self.train.waited - waited) / max(time.monotonic() - self._clock, 1e-9)

    def _pause(self, stop: StopRequest) -> None:
        """Save if it is time, end if a signal came: on all processes or on none."""
        late = time.monotonic() - self._saved >= self.save_seconds
        signal, due = self._pace.agree(self.done, stop.number or 0, late)
        stop.number = signal or None
        if due:
            self.save()
        stop.check()

    def _between(self, stop: StopRequest) -> Callable[[], None]:
        """What is done while images are read: several processes go on to the next step, where they can agree."""
        return stop.check if self.ranks.size == 1 else lambda: None

    def enter(self, epoch: int, step: int) -> None:
        """Be ready for the steps of an epoch; what happens once an epoch is done before its first."""
        advance(self.parts.model, epoch / self.spec.epochs)
        if self.ranks.size > 1:
            self.ranks.check_same(state.digest(self._arrays()), f"their weights before epoch {epoch + 1}")
        if step == 0:
            start_epoch(self.parts.model)
            state.spread(self.parts.model, self.ranks)  # a decomposition may differ in its last bits
        self.parts.model.train()
        if step == 0 and self.spec.share > 0 and looked_at(self.spec, epoch):
            share = self._look().share or 0.0
            self.full = self.spec.share / share if share > ROUNDING else 0.0
        self.step.begin(epoch, step, self.full)

    def _look(self) -> Look:
        return self.ranks.of_first(self.step.look() or look(self.spec, self.parts, self.train))

    def _one(self) -> None:
        self._checked(self.step.take)
        self.place.step += 1

    def _checked(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BadNumbers as bad:
            raise self._fault(bad if bad.rows is not None else self._replayed(bad)) from None

    def _replayed(self, bad: BadNumbers) -> BadNumbers:
        """A fast step knows only when it went wrong; eager steps from the last good checkpoint on show where.

        If that is further back than REPLAYED steps, it stays unknown.
        """
        self.progress.say(f"bad numbers at step {bad.epoch * self.steps + bad.step}: looking for the layer")
        parts = build(self.spec, self.train.labels.device, ranks=self.ranks, runs=self.runs)
        step = EagerStep(self.spec, parts, self.train, self.ranks)
        twin = Loop(self.spec, parts, step, self.train, None, self.folder, save_seconds=0, ranks=self.ranks)
        twin.reopen()
        far = bad.epoch * self.steps + bad.step - twin.done
        if far > REPLAYED:
            return BadNumbers(f"{bad}, {far} steps after the last checkpoint", bad.epoch, bad.step)
        try:
            for epoch in range(twin.place.epoch, bad.epoch + 1):
                twin.enter(epoch, first := twin.place.step)
                for _ in range(first, self.steps if epoch < bad.epoch else bad.step + 1):
                    twin.step.take()
                twin.place.step = 0
        except BadNumbers as named:
            return named
        return BadNumbers(f"{bad}; eager steps passed that point", bad.epoch, bad.step)

    def _close(self, stop: StopRequest) -> None:
        """Read the validation images, write the line, save."""
        line = self._line(stop)
        self._valid = line["valid"]
        if self.ranks.first:
            self._append(line)
        self.place.epoch, self.place.step = self.place.epoch + 1, 0
        self.step.sums.zero_()
        self.seconds = 0.0
        try:
            for watcher in self.watchers:
                watcher.add(line)
        except OSError as error:
            raise Failed(self._not_written("TensorBoard's file", error)) from None
        if self.ranks.most(time.monotonic() - self._saved >= self.save_seconds)[0]:
            self.save()
        self.progress.tell(self.label + _shown(line, self.spec.epochs))

    def _line(self, stop: StopRequest) -> dict[str, Any]:
        spec, place = self.spec, self.place
        means = self._means()
        read = None if self.valid is None else accuracy(self.answers, self.valid, self._between(stop), self.ranks)
        seen = self._look() if looked_at(spec, place.epoch) else Look(None, None)
        weight = retention_weight(spec, self.full, place.epoch, self.steps - 1, self.steps)
        now = time.monotonic()
        return {
            "epoch": place.epoch + 1,
            "steps": (place.epoch + 1) * self.steps,
            "lr": learning_rate(spec, place.epoch, self.steps - 1, self.steps),
            "weight": weight,
            "loss": means["loss"],
            "lip": means["lip"] if spec.retains else None,
            "train": 100 * means["correct"],
            "valid": None if read is None else read.top1,
            "valid_loss": None if read is None else read.loss,
            **({} if read is None or read.top5 is None else {"valid_top5": read.top5}),
            "ratios": seen.ratios,
            "share": None if seen.share is None else seen.share * weight,
            "seconds": round(self.seconds + now - self._clock, 3),
            **({"wait": round(self.waited, 4)} if self.train.streamed else {}),
        }

    def _means(self) -> dict[str, float]:
        values = self.step.sums.tolist()
        return {name: value / max(values[-1], 1) for name, value in zip(SUMS, values, strict=True)}

    def _note(self) -> str:
        means = self._means()
        lip = f"  L_Lip {means['lip']:.4f}" if self.spec.retains else ""
        valid = "" if self._valid is None else f"  valid {self._valid:.1f} %"  # of the epoch before
        train = f"train {100 * means['correct']:.1f} %{valid}"
        return f"{self.label}epoch {self.place.epoch + 1}  loss {means['loss']:.4f}{lip}  {train}"

    # -- what is kept ------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint of this very moment. A disk that does not take it ends the run; the last one is intact."""
        if self.place == self._kept_place:
            return
        self._checked(self.step.check)
        arrays = self._arrays()
        bad = state.first_bad(arrays)
        if bad is not None:
            raise self._fault(BadNumbers(f"{bad} is not finite", self.place.epoch, self.place.step))
        without = state.without_memory(self.parts.optimizer, self.parts.names)
        facts = {
            "spec": self.spec.digest(),
            "teacher": self.parts.teacher_digest,
            "made": self.made,
            "weight": self.full,
            "epoch": self.place.epoch,
            "step": self.place.step,
            "seconds": round(self.seconds + time.monotonic() - self._clock, 3) if self.place.step else 0.0,
            **({"images": self.images} if self.images else {}),
            **({WITHOUT_MEMORY: without} if without else {}),
        }
        try:
            if self.ranks.first:
                self.folder.save(self.done, Checkpoint(arrays, facts))
        except OSError as error:
            raise Failed(self._not_written("a checkpoint", error)) from None
        self._saved, self._kept_place = time.monotonic(), replace(self.place)

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self.folder.append(line)
        except OSError as error:
            raise Failed(self._not_written("the log", error)) from None

    @property
    def done(self) -> int:
        """Steps done since the beginning."""
        return self.place.epoch * self.steps + self.place.step

    def reopen(self) -> tuple[Path | None, list[str], Checkpoint | None]:
        """Go on from the newest good checkpoint of the folder; what RunFolder.last_good says, and that checkpoint.

        The first process reads it, so that the others need not see the folder.
        """
        used: list[Checkpoint] = []

        def use(checkpoint: Checkpoint, path: Path) -> None:
            self.restore(checkpoint, path)
            used.append(checkpoint)

        def read() -> tuple[Path | None, list[str], Checkpoint | None]:
            path, complaints = self.folder.last_good(use)
            return path, complaints, used[-1] if path else None

        path, complaints, checkpoint = self.ranks.told(read)
        if checkpoint is not None and path is not None and not self.ranks.first:
            self.restore(checkpoint, path)
        return path, complaints, checkpoint

    def restore(self, checkpoint: Checkpoint, path: Path) -> None:
        """Go back to where a checkpoint was made."""
        where = f"the checkpoint {path}"
        facts = checkpoint.facts
        check_facts(checkpoint, path)
        state.restore_module(self.parts.model, "model", checkpoint.arrays, where)
        if facts["spec"] != self.spec.digest():
            raise InputError(f"{where} is of a run with other settings than spec.json has")
        if facts["teacher"] != self.parts.teacher_digest:
            raise InputError(f"{where} was made with another teacher than the one now in {self.spec.teacher}")
        if self.images and facts.get("images", self.images) != self.images:
            raise InputError(f"{where} was made with other training images than those that are there now")
        if WHOLE in facts:
            raise InputError(f"{where} is a slim copy, which holds the network alone: no run goes on from it")
        if self.parts.retention is not None:
            state.restore_module(self.parts.retention, "retention", checkpoint.arrays, where)
        check_training_state(checkpoint, self.parts.names.values(), self.spec, path, self.steps)
        state.restore_optimizer(self.parts.optimizer, self.parts.names, checkpoint.arrays)
        self.step.sums.copy_(torch.from_numpy(checkpoint.arrays[SUMS_ARRAY].copy()))
        self.place = Place(facts["epoch"], facts["step"])
        self.seconds = facts["seconds"]
        self.full = facts["weight"]
        self._kept_place = replace(self.place)

    def _arrays(self) -> dict[str, Any]:
        parts = self.parts
        arrays = state.module_arrays(parts.model, "model")
        if parts.retention is not None:
            arrays |= state.module_arrays(parts.retention, "retention")
        arrays |= state.optimizer_arrays(parts.optimizer, parts.names)
        return arrays | {SUMS_ARRAY: state.array(self.step.sums)}

    def _fault(self, bad: BadNumbers) -> Failed:
        """A sentence about bad numbers; all details, with the rows of the batch, go to fault.json."""
        if not self.ranks.first:
            return Repeated(1)
        lr = learning_rate(self.spec, bad.epoch, min(bad.step, self.steps - 1), self.steps)
        step = bad.epoch * self.steps + bad.step
        details = {"step": step, "epoch": bad.epoch + 1, "lr": lr, "reason": str(bad), "rows": bad.rows}
        self.folder.write_fault(details)
        which = f"{self.label.strip()}: " if self.label else ""
        return Failed(
            f"{which}bad numbers at step {step} (epoch {bad.epoch + 1}, step {bad.step} of {self.steps}), "
            f"learning rate {lr:g}: {bad}; {self._kept()}"
        )

    def _not_written(self, what: str, error: OSError) -> str:
        return f"{what} cannot be written to {self.folder.path}: {error.strerror or error}; {self._kept()}"

    def _kept(self) -> str:
        newest = self.folder.newest()
        return "there is no checkpoint yet" if newest is None else f"the checkpoint {newest} is kept"


def _shown(line: dict[str, Any], epochs: int) -> str:
    lip = "" if line["lip"] is None else f"  L_Lip {line['lip']:.4f}"
    valid = "" if line["valid"] is None else f"  valid {line['valid']:.2f} %"
    wait = f"  waited {line['wait']:.0%}" if line.get("wait", 0) >= 0.05 else ""
    return (
        f"epoch {line['epoch']}/{epochs}  loss {line['loss']:.4f}{lip}  train {line['train']:.2f} %{valid}"
        f"  lr {line['lr']:.4g}{wait}"
    )
