"""The command line runs one module per command. This module has the list of commands and the exit codes."""

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
from lcrbnn.errors import ErrorOnOtherRank, InputError, RunFailed, StopSignal, describe_memory_error, lookup
from lcrbnn.runs.old_names import reject_old_options
from lcrbnn.runs.terminal import PrintableStream

# Dictionary: command -> one-line description, in the groups of `lcrbnn --help`. Each command is a module of lcrbnn.cli
# with add_arguments(parser), execute(args) -> int and EXAMPLES. The module is imported only for this command.
COMMAND_GROUPS = {
    "train": {
        "train": "train a network into a run folder, or resume an interrupted run",
        "study": "train the variants of a plan with the same seeds and compare them",
        "demo": "train a small binary network on digits, with and without LCR",
    },
    "measure": {
        "eval": "measure the accuracy of runs or of networks of the zoo",
        "robustness": "measure the error of runs or of networks of the zoo on corrupted test images",
        "attack": "search for adversarial examples for runs or networks of the zoo",
        "analyze": "measure layer norms, sensitivity, sign flips and σ_B/σ_F of runs or of networks of the zoo",
        "layers": "draw latent weights and activation correlations of networks, layer by layer",
        "cost": "count parameters, stored bits and operations of networks",
        "plot": "draw accuracy and σ_B/σ_F during training, from the records of runs",
        "report": "write a page with all results of runs, from their records",
    },
    "deploy": {
        "export": "write a network as a .bnn file (one bit per binary weight) or an .onnx file",
        "predict": "classify images with a .bnn file or a network of the zoo",
        "inspect": "show graph, sizes, kernels and times of a .bnn file or a network of the zoo",
        "bench": "time the engine and other runtimes on a .bnn file or a network of the zoo",
    },
    "catalogue": {
        "recipes": "list the recipes, or show one recipe",
        "data": "list the data sets, or download one data set",
        "methods": "list the binarization methods, or draw their curves",
        "models": "list the networks with their parameters and operations",
        "zoo": "list the trained networks of the package",
        "reproduce": "train the missing runs of the paper's tables and print the tables",
    },
}
EXAMPLES_TITLE = "examples:"
COMMANDS = {name: summary for group in COMMAND_GROUPS.values() for name, summary in group.items()}


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Formatter that appends default values (except False and None) to help texts, and prints one example per line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES_TITLE) else super()._fill_text(text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_no_default = action.default is None or action.default is False or action.default == [] or action.required
        if isinstance(action.default, list) and not has_no_default:
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return action.help if has_no_default else super()._get_help_string(action)


class _ArgumentParser(argparse.ArgumentParser):
    """Parser that raises InputError instead of printing the usage and leaving the process."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str]) -> int:
    """Run one command. Return the exit code 0 (success), 1 (failure), 2 (invalid input), or 128 + N after signal N."""
    try:
        return _run_command(list(argv))
    except InputError as error:
        _print_error(f"lcrbnn: {error}")
        return 2
    except ErrorOnOtherRank as error:
        return error.exit_code
    except RunFailed as error:
        _print_error(f"lcrbnn: {error}")
        return 1
    except StopSignal as stop:
        _print_error(f"lcrbnn: {stop}")
        return 128 + stop.signal_number
    except ModuleNotFoundError as error:
        if (error.name or "lcrbnn").partition(".")[0] == "lcrbnn":
            raise
        _print_error(f"lcrbnn: {argv[0]} needs the package {error.name}, which is not installed here")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:  # an error such as a full disk; invalid files raise InputError instead
        location = f"{error.filename}: " if error.filename else ""
        _print_error(f"lcrbnn: {location}{error.strerror or error}")
        return 1
    except (MemoryError, RuntimeError) as error:
        memory_message = describe_memory_error(error)
        if memory_message is None:
            raise
        _print_error(f"lcrbnn: {memory_message}")
        return 1
    except KeyboardInterrupt:
        _print_error("lcrbnn: interrupted")
        return 130


def _print_error(message: str) -> None:
    """Print an error message. If stderr is closed, only the exit code reports the error."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def _open_closed_streams() -> None:
    """Open /dev/null for each standard stream that was closed before the start.

    Otherwise the next file that the process opens would get its descriptor, and printed text would go into that file.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # os.open returns the lowest free descriptor, which is `descriptor`
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8", closefd=False))


def _escape_control_characters() -> None:
    """Escape control characters in everything that this process prints, including errors, warnings and tracebacks."""
    sys.stdout = cast(TextIO, PrintableStream(sys.stdout))
    sys.stderr = cast(TextIO, PrintableStream(sys.stderr))
    # Newer versions of Python print help and tracebacks in color. The color codes would be escaped.
    os.environ["PYTHON_COLORS"] = "0"


def run() -> NoReturn:
    """Run the command of sys.argv and exit with its exit code. The console script calls this function."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):  # a terminal without ± must not stop the command
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    _escape_control_characters()
    code = 0
    try:
        code = main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if os.environ.get("WORLD_SIZE"):  # under torchrun, threads of lost connections would change the exit code
        with suppress(OSError):  # printing fails if the terminal is closed
            sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _run_command(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_render_help())
        return 0
    if argv[0] == "--version":
        print(f"lcrbnn {__version__}")
        return 0
    lookup(COMMANDS, argv[0], "command", "lcrbnn --help")
    if argv[0] != "train" and os.environ.get("TORCHELASTIC_RUN_ID") and os.environ.get("WORLD_SIZE") != "1":
        raise InputError(f"torchrun starts several processes, but only train can use them; got {argv[0]}")
    reject_old_options(argv[0], argv[1:])
    command = import_module(f"lcrbnn.cli.{argv[0]}")
    return command.execute(build_parser(argv[0]).parse_args(argv[1:]))


def build_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of the options of a command."""
    command = import_module(f"lcrbnn.cli.{name}")
    parser = _ArgumentParser(
        prog=f"lcrbnn {name}",
        description=COMMANDS[name],
        epilog="\n  ".join([EXAMPLES_TITLE, *command.EXAMPLES]),
        formatter_class=_HelpFormatter,
        allow_abbrev=False,  # so that a new option never changes the meaning of an existing command line
    )
    command.add_arguments(parser)
    return parser


def _render_help() -> str:
    width = max(map(len, COMMANDS))
    lines = ["usage: lcrbnn COMMAND [options]"]
    for group, commands in COMMAND_GROUPS.items():
        lines += ["", f"{group}:", *(f"  {name:<{width}}  {summary}" for name, summary in commands.items())]
    return "\n".join([*lines, "", "lcrbnn COMMAND --help shows the options of a command; lcrbnn --version the version"])
