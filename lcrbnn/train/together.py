"""Runs side by side in one process: a step of each in turn, until all have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from lcrbnn.errors import Failed, InputError, Repeated, Stopped
from lcrbnn.train.loop import Loop
from lcrbnn.train.ranks import Lost
from lcrbnn.train.signals import StopRequest


def run_together(loops: Sequence[Loop], finished: Callable[[Loop], None]) -> None:
    """Let runs go on side by side to their ends, and say so of each. Stopped by a signal, all save.

    A run that fails keeps its last good checkpoint and leaves the others alone; its failure is raised at the end. They
    begin parts of an epoch apart: while one closes an epoch, a GPU has steps of the others in hand.
    """
    failures: list[Exception] = []
    behind = {loop: i * loop.steps // len(loops) for i, loop in enumerate(loops)}
    with StopRequest(patient=any(loop.ranks.launched for loop in loops)) as stop:
        going = {loop: loop.march(stop) for loop in loops}
        try:
            while going:
                for loop in list(going):
                    behind[loop] -= 1
                    if behind[loop] >= 0:
                        continue
                    try:
                        next(going[loop])
                    except StopIteration:
                        del going[loop]
                        _attempt(partial(finished, loop), failures)
                    except Failed as failure:
                        del going[loop]
                        if isinstance(failure, Lost):
                            stop.check_lost()  # the signal ended the other process too, and is the reason
                        failures.append(failure)
            if not (failures and stop.patient):  # a launcher stops those that are left, and the failure is the reason
                stop.number = max((loop.ranks.most(stop.number or 0)[0] for loop in loops), default=0) or None
                stop.check()  # a signal that came too late for this run is not for the next one either
        except Stopped as stopped:
            for loop in going:
                _attempt(loop.save, failures)
            raise Stopped("; ".join(map(str, [stopped, *failures])), stopped.number) from None
        finally:
            for loop in loops:
                loop.progress.close()
    if failures:
        raise failures[0] if isinstance(failures[0], Repeated) else Failed("; ".join(map(str, failures)))


def _attempt(work: Callable[[], None], failures: list[Exception]) -> None:
    try:
        work()
    except (Failed, InputError) as failure:
        failures.append(failure)
