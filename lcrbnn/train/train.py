"""Train one or several runs, after their settings are validated, their parts are built and their folders are locked."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lcrbnn.data.image_files.picture_split import PictureSplit
from lcrbnn.device import deterministic_run, find_device
from lcrbnn.errors import ErrorOnOtherRank, InputError, RunFailed, StopSignal, check_number, lookup
from lcrbnn.runs.progress import ProgressBar
from lcrbnn.runs.record import write_record
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.runs.stop_request import StopRequest
from lcrbnn.train.distributed.ranks import ProcessLost, Ranks
from lcrbnn.train.eager_step import EagerStep
from lcrbnn.train.fast.compiled_step import CompiledStep
from lcrbnn.train.loop import TrainingLoop
from lcrbnn.train.resume import start_or_resume
from lcrbnn.train.run_context import RunContext
from lcrbnn.train.run_figures import collect_run_figures
from lcrbnn.train.setup.build import TrainingParts, build_training_parts
from lcrbnn.train.setup.dataset import BrokenImages, find_broken_training_images, open_splits, read_picture_split
from lcrbnn.train.setup.options import STEP_MODES, RunOptions
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import (
    check_parallel_runs,
    check_referenced_run_images,
    check_run_folders,
    read_network_source,
    validate_jobs,
)
from lcrbnn.train.tensorboard import TensorboardWriter, check_tensorboard_installed

# function (total number of steps, number of finished steps) that returns a progress bar
ProgressFactory = Callable[[int, int], ProgressBar]


def train(
    spec: TrainSpec,
    path: Path,
    options: RunOptions | None = None,
    *,
    resume: bool = False,
    progress: ProgressFactory | None = None,
) -> Path:
    """Train a run into a folder and return the folder. With `resume`, continue an interrupted run in this folder.

    If the run is already finished, nothing happens. Invalid settings, data or folders raise InputError before anything
    is written.
    """
    train_parallel({path: spec}, options, resume=resume, progress=progress)
    return path


def train_parallel(
    jobs: Mapping[Path, TrainSpec],
    options: RunOptions | None = None,
    *,
    resume: bool = False,
    progress: ProgressFactory | None = None,
    on_finished: Callable[[Path], None] = lambda path: None,
    label_root: Path | None = None,
) -> None:
    """Train several runs in one process. A GPU is then faster, because one small network uses only a part of the GPU.

    The runs share data, precision and determinism. `on_finished` is called as soon as the record of a run is written.
    If there are several runs, each printed line names its run. If `label_root` is set, this is always so, and the names
    are relative to it.
    """
    options = options or RunOptions()
    valid_jobs = options.ranks.run_on_rank0(lambda: validate_jobs(jobs, options.data_folder, resume=resume))
    train_validated(
        valid_jobs, options, resume=resume, progress=progress, on_finished=on_finished, label_root=label_root
    )


def train_validated(
    jobs: Mapping[Path, TrainSpec],
    options: RunOptions,
    *,
    resume: bool,
    progress: ProgressFactory | None = None,
    on_finished: Callable[[Path], None] = lambda path: None,
    label_root: Path | None = None,
) -> None:
    """Train runs that `validate_jobs` has accepted. Otherwise this is the same as `train_parallel`.

    A command that trains several groups of runs validates all of them first. Then it calls this function for each
    group.
    """
    ranks = options.ranks
    check_number(options.checkpoint_interval_s, "checkpoint_interval_s", low=0)
    lookup(STEP_MODES, options.step_mode, "step mode")
    if options.tensorboard and ranks.is_first:
        check_tensorboard_installed()
    folders = ranks.run_on_rank0(lambda: _find_unfinished(jobs))
    if not folders:
        return
    specs = list(folders.values())
    check_parallel_runs(specs, options.ranks)
    labels = {folder: _make_label(folder.path, label_root, len(folders)) for folder in folders}
    with ExitStack() as stack:
        sources = ranks.run_on_rank0(lambda: [read_network_source(spec, run) for run, spec in folders.items()])
        parts = ranks.run_on_all_ranks(lambda: _build_all_parts(folders, options, labels, sources))
        broken_images = _find_broken_images(folders, options)
        picture_split = ranks.run_on_rank0(lambda: _read_picture_split(folders))
        runs = ranks.run_on_all_ranks(
            lambda: _make_contexts(folders, parts, options, stack, broken_images, picture_split, labels)
        )
        runs = _lock_and_check(runs, stack, jobs, resume)
        stack.enter_context(deterministic_run(specs[0].deterministic, specs[0].precision))
        loops = _start_loops(runs, ranks, progress)

        def finish(loop: TrainingLoop) -> None:
            if ranks.is_first:
                write_record(loop.folder.record_file, "train", loop.spec.to_dict(), collect_run_figures(loop))
            on_finished(loop.folder.path)

        _run_loops(loops, finish)


def _find_unfinished(jobs: Mapping[Path, TrainSpec]) -> dict[RunFolder, TrainSpec]:
    folders = {RunFolder(path): spec for path, spec in jobs.items()}
    return {folder: spec for folder, spec in folders.items() if not folder.record_file.exists()}


def _make_label(path: Path, label_root: Path | None, num_runs: int) -> str:
    if label_root is not None:
        return str(path.relative_to(label_root))
    return f"{path.parent.name}/{path.name}" if num_runs > 1 else ""


def _build_all_parts(
    folders: Mapping[RunFolder, TrainSpec],
    options: RunOptions,
    labels: Mapping[RunFolder, str],
    network_sources: Sequence[bytes | None],
) -> dict[RunFolder, TrainingParts]:
    """Build network, teacher, LCR loss and optimizer of each run. If there are several runs, an error names the run."""
    device = find_device(options.device)
    fused = options.is_compiled and device.type == "cuda"
    parts = {}
    for (folder, spec), network_source in zip(folders.items(), network_sources, strict=True):
        try:
            parts[folder] = build_training_parts(
                spec,
                device,
                fused=fused,
                ranks=options.ranks,
                runs_folder=options.runs_folder,
                network_source=network_source,
            )
        except InputError as error:
            raise InputError(f"{labels[folder]}: {error}" if labels[folder] else str(error)) from None
    return parts


def _find_broken_images(folders: Mapping[RunFolder, TrainSpec], options: RunOptions) -> BrokenImages:
    """Return the images that all processes leave out. To find them, each process reads a part of the images."""
    ranks, spec = options.ranks, next(iter(folders.values()))
    if not spec.skip_broken_images:
        return {}
    known_images = ranks.run_on_rank0(lambda: _read_broken_images(folders))
    if known_images is not None:
        return known_images
    device, rank_and_world_size = find_device(options.device), (ranks.rank, ranks.size)
    own_part = ranks.run_on_all_ranks(
        lambda: find_broken_training_images(spec, options.data_access, device, rank_and_world_size)
    )
    return {name: reason for part in ranks.all_gather_object(own_part) for name, reason in part.items()}


def _read_broken_images(folders: Iterable[RunFolder]) -> BrokenImages | None:
    """Return the images that the runs left out when they started. Return None if no run has started yet."""
    all_images = (folder.read_broken_images() for folder in folders if not folder.has_no_output())
    return next((images for images in all_images if images is not None), None)


def _read_picture_split(folders: Iterable[RunFolder]) -> PictureSplit | None:
    """Return the split of the pictures that one of the runs has stored, or None if none of them has."""
    splits = (read_picture_split(folder) for folder in folders if not folder.has_no_output())
    return next((split for split in splits if split is not None), None)


def _make_contexts(
    folders: Mapping[RunFolder, TrainSpec],
    parts: Mapping[RunFolder, TrainingParts],
    options: RunOptions,
    stack: ExitStack,
    broken_images: BrokenImages,
    picture_split: PictureSplit | None,
    labels: Mapping[RunFolder, str],
) -> list[RunContext]:
    """Open the images of all runs, and make their steps. Nothing is written. `stack` closes the image readers."""
    ranks, device = options.ranks, find_device(options.device)
    rank_and_world_size = (ranks.rank, ranks.size)
    all_splits = open_splits(
        list(folders.values()),
        options.data_access,
        device,
        stack,
        broken_images,
        rank_and_world_size,
        picture_split=picture_split,
    )
    runs = []
    for (folder, spec), splits in zip(folders.items(), all_splits, strict=True):
        step_class = CompiledStep if options.is_compiled else EagerStep
        step = step_class(spec, parts[folder], splits.train, ranks)
        check_referenced_run_images(spec, options.runs_folder, splits)
        runs.append(RunContext(spec, options, folder, parts[folder], splits, step, labels[folder]))
    return runs


def _lock_and_check(
    runs: list[RunContext], stack: ExitStack, jobs: Mapping[Path, TrainSpec], resume: bool
) -> list[RunContext]:
    """Lock the run folders, check them again, and return the runs that are not finished.

    The first check, in `validate_jobs`, reports a user's mistake before any work is done. Building the networks takes
    seconds to minutes. In this time, another process may start or finish one of the runs. Only a check under the locks
    is safe.
    """

    def lock() -> list[bool]:
        for run in runs:
            stack.enter_context(run.folder.lock())
        check_run_folders(jobs, resume)
        return [not run.folder.record_file.exists() for run in runs]

    is_unfinished = runs[0].ranks.run_on_rank0(lock)
    return [run for run, unfinished in zip(runs, is_unfinished, strict=True) if unfinished]


def _start_loops(runs: Sequence[RunContext], ranks: Ranks, progress: ProgressFactory | None) -> list[TrainingLoop]:
    """Start or resume the runs in their folders. Return their training loops, which share one progress bar."""
    started = []
    for run in runs:
        run_state, messages = start_or_resume(run)
        listeners = []
        if run.options.tensorboard and ranks.is_first:
            listeners.append(TensorboardWriter(run.folder.path / "tensorboard", run.folder.read_log()))
        started.append((run, run_state, messages, listeners))
    num_steps = sum(run.spec.epochs * run.step.steps_per_epoch for run in runs)
    num_done = sum(run_state.count_steps(run.step.steps_per_epoch) for run, run_state, _, _ in started)
    if not ranks.is_first:
        bar = ProgressBar(num_steps, io.StringIO(), num_done=num_done, print_tenths=False)
    elif progress is None:
        bar = ProgressBar(num_steps, num_done=num_done, print_tenths=False)
    else:
        bar = progress(num_steps, num_done)
    for _, _, messages, _ in started:
        for message in messages:
            bar.print_line(message)
    return [TrainingLoop(run, run_state, bar, listeners) for run, run_state, _, listeners in started]


def _run_loops(loops: Sequence[TrainingLoop], finish: Callable[[TrainingLoop], None]) -> None:
    """Train all runs until the end, one step of each run in turn. Call `finish` for each finished run.

    If a run fails, it keeps its last valid checkpoint, and the other runs continue. The failure is raised at the end.
    The runs start at different positions of an epoch. So while one of them validates, the GPU still has steps of the
    others. After a signal, all runs save.
    """
    failures: list[Exception] = []
    turns_to_wait = {loop: i * loop.steps_per_epoch // len(loops) for i, loop in enumerate(loops)}
    with StopRequest(ignore_repeated_sigint=any(loop.ranks.is_launched for loop in loops)) as stop:
        unfinished = {loop: loop.train_steps(stop) for loop in loops}
        try:
            while unfinished:
                for loop in list(unfinished):
                    turns_to_wait[loop] -= 1
                    if turns_to_wait[loop] >= 0:
                        continue
                    try:
                        next(unfinished[loop])
                    except StopIteration:
                        del unfinished[loop]
                        _collect_failure(partial(finish, loop), failures)
                    except RunFailed as failure:
                        del unfinished[loop]
                        if isinstance(failure, ProcessLost):
                            # The same signal has ended the other process. So report the signal and not the lost
                            # connection.
                            stop.raise_if_requested_without_checkpoint()
                        failures.append(failure)
            # If a run fails under a launcher, the launcher stops the other processes with a signal. This signal is not
            # the reason, so the failure is reported. Without a launcher, a signal that came too late for these runs
            # must still stop the runs after them.
            if not (failures and stop.ignore_repeated_sigint):
                signal_numbers = (loop.ranks.all_reduce_max(stop.signal_number or 0)[0] for loop in loops)
                stop.signal_number = max(signal_numbers, default=0) or None
                stop.raise_if_requested()
        except StopSignal as stopped:
            for loop in unfinished:
                _collect_failure(loop.save_checkpoint, failures)
            raise StopSignal("; ".join(map(str, [stopped, *failures])), stopped.signal_number) from None
        finally:
            for loop in loops:
                loop.progress.close()
    if failures:
        raise failures[0] if isinstance(failures[0], ErrorOnOtherRank) else RunFailed("; ".join(map(str, failures)))


def _collect_failure(work: Callable[[], None], failures: list[Exception]) -> None:
    try:
        work()
    except (RunFailed, InputError) as failure:
        failures.append(failure)
