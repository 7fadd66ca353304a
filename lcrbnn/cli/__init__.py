"""The command line: a file a command, and COMMANDS, which lists them."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn, TextIO, cast

from lcrbnn import __version__
from lcrbnn.errors import Failed, InputError, Repeated, Stopped, choose, describe_memory_error
from lcrbnn.runs.terminal import PrintableStream

# Command -> what it does. Each is a module beside this one with add_arguments(parser) and execute(args) -> int,
# loaded only when it is asked for.
COMMANDS = {
    "demo": "train a small binary network on digits, with and without retention",
    "train": "train a network into a run folder, or go on with an interrupted run",
    "eval": "read the accuracy of runs, or of networks of the zoo",
    "robustness": "read the error of runs, or of networks of the zoo, on corrupted test images",
    "export": "write a network as a .bnn or .onnx file, with one bit a binary weight",
    "predict": "name what is in pictures, by a .bnn file or the zoo, and the engine",
    "inspect": "show a .bnn file or a network of the zoo: graph, sizes, kernels, times",
    "bench": "time the engine against other runtimes, on a .bnn file or the zoo's",
    "study": "train the arms of a plan with the same seeds, and compare them",
    "reproduce": "make the paper's tables: run what has no record yet, show what is there",
    "plot": "draw accuracies and ratios over training, from the records of runs",
    "layers": "draw the latent weights and the likeness of maps of networks, layer by layer",
    "report": "write one page about runs, from their records",
    "zoo": "list the trained networks that come with the package",
    "recipes": "list the recipes, or show one",
    "data": "list the data sets, or fetch one",
    "methods": "list the binarisation methods, or draw their curves",
    "models": "list the networks, with their parameters and operations",
    "cost": "count what a network holds and what an image costs",
    "analyze": "measure norms, sensitivity, sign flips and ratios of runs, or of the zoo",
    "attack": "look for adversarial images of runs, or of networks of the zoo",
}


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        plain = action.default is None or action.default is False or action.default == [] or action.required
        if isinstance(action.default, list) and not plain:
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return action.help if plain else super()._get_help_string(action)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str]) -> int:
    """Run one command; return its exit code: 0 done, 1 failed, 2 for a user's mistake, or 128 + a signal's number."""
    try:
        return _dispatch(list(argv))
    except InputError as error:
        _say(f"lcrbnn: {error}")
        return 2
    except Repeated as error:
        return error.code
    except Failed as error:
        _say(f"lcrbnn: {error}")
        return 1
    except Stopped as stop:
        _say(f"lcrbnn: {stop}")
        return 128 + stop.number
    except ModuleNotFoundError as error:
        if (error.name or "lcrbnn").partition(".")[0] == "lcrbnn":
            raise
        _say(f"lcrbnn: {argv[0]} needs the package {error.name}, which is not installed here")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:  # a disk or a folder gone bad where nobody expected it
        where = f"{error.filename}: " if error.filename else ""
        _say(f"lcrbnn: {where}{error.strerror or error}")
        return 1
    except (MemoryError, RuntimeError) as error:
        sentence = describe_memory_error(error)
        if sentence is None:
            raise
        _say(f"lcrbnn: {sentence}")
        return 1
    except KeyboardInterrupt:
        _say("lcrbnn: interrupted")
        return 130


def _say(sentence: str) -> None:
    """What went wrong, to whoever reads it: the exit code tells it too."""
    with suppress(OSError):
        print(sentence, file=sys.stderr, flush=True)


def _open_streams() -> None:
    """Where one of the three was closed before the start, nobody reads it; the next file must not take its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _escape_output() -> None:
    """Escape control characters in all that this process prints: results, errors, warnings, logs and tracebacks."""
    sys.stdout = cast(TextIO, PrintableStream(sys.stdout))
    sys.stderr = cast(TextIO, PrintableStream(sys.stderr))
    os.environ["PYTHON_COLORS"] = "0"  # colours of newer versions of Python, in help and tracebacks, would be escaped


def run() -> NoReturn:
    """The console script."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal without ± is no reason to end
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    _escape_output()
    code = 0
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # somebody reads with `head`: not our failure, and nothing more to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get("WORLD_SIZE"):  # one of several: threads of lost connections would end it in their own way
        with suppress(OSError):  # its terminal is closed
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        rows = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
        more = "lcrbnn COMMAND --help tells more; lcrbnn --version says which this is"
        print(f"usage: lcrbnn COMMAND [options]\n\ncommands:\n{rows}\n\n{more}")
        return 0
    if argv[0] == "--version":
        print(f"lcrbnn {__version__}")
        return 0
    summary = choose(COMMANDS, argv[0], "command")
    if argv[0] != "train" and os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("WORLD_SIZE") != "1":
        raise InputError(f"torchrun starts several processes, and {argv[0]} is for one: only train shares its work")
    command = import_module(f"lcrbnn.cli.{argv[0]}")
    parser = _Parser(prog=f"lcrbnn {argv[0]}", description=summary, formatter_class=_Help)
    command.add_arguments(parser)
    return command.execute(parser.parse_args(argv[1:]))
