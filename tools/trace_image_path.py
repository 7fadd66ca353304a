"""Count the modules of lcrbnn that process an image, from training with LCR through export to prediction.

    python -m tools.trace_image_path [--epochs 1] [--list modules|pairs]

The run is `lcrbnn train digits --lcr default` on the CPU, then `lcrbnn export` and `lcrbnn predict` for one image.
A module counts if one of its functions is called. A pair of modules counts if a function of the first one calls a
function of the second one, directly or through other packages, such as the forward pass of a PyTorch module. Code that
runs while a module is imported does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

PACKAGE = "lcrbnn"
IMAGE_SIZE = 16  # side length of the image in pixels


class CallTracer:
    """Tracer that records which modules of a package are called, and which module calls which."""

    def __init__(self, package: str) -> None:
        """Start without recorded modules and pairs of modules."""
        self.package = package
        self.modules: set[str] = set()
        self.pairs: set[tuple[str, str]] = set()
        self._local = threading.local()  # number of imports that are in progress, separately for each thread

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Inside this context, record the calls of the current thread and of all threads that it starts."""
        threading.setprofile(self._handle_event)
        sys.setprofile(self._handle_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _handle_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event not in ("call", "return"):
            return
        num_imports = getattr(self._local, "num_imports", 0)
        if frame.f_code.co_name == "<module>":
            self._local.num_imports = num_imports + (1 if event == "call" else -1)
        elif event == "call" and num_imports == 0 and (module := self._find_module(frame)):
            self.modules.add(module)
            caller = self._find_caller(frame)
            if caller and caller != module:
                self.pairs.add((caller, module))

    def _find_module(self, frame: FrameType) -> str:
        """Return the name of the module whose function runs in this frame. Return "" if it is not in the package."""
        name = str(frame.f_globals.get("__name__", ""))
        return name if name == self.package or name.startswith(f"{self.package}.") else ""

    def _find_caller(self, frame: FrameType) -> str:
        """Return the module of the nearest caller that is in the package. Return "" if there is none."""
        caller = frame.f_back
        while caller is not None:
            if module := self._find_module(caller):
                return module
            caller = caller.f_back
        return ""


def trace_image_path(main: Callable[[list[str]], int], epochs: int, folder: Path) -> CallTracer:
    """Train, export and predict with the command-line function `main`. Return the recorded calls."""
    run_folder, model_file, image_file = folder / "run", folder / "digits.bnn", folder / "image.png"
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
    Image.fromarray(pixels).save(image_file)
    commands = [
        ["train", "digits", "--lcr=default", f"--epochs={epochs}", "--device=cpu", "--run-folder", str(run_folder)],
        ["export", str(run_folder), "--out", str(model_file)],
        ["predict", str(model_file), str(image_file)],
    ]
    tracer = CallTracer(PACKAGE)
    for command in commands:
        output = io.StringIO()
        with tracer.record(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            exit_code = main(command)
        if exit_code != 0:
            raise SystemExit(f"lcrbnn {' '.join(command)} returned exit code {exit_code}: {output.getvalue()}")
    return tracer


def main() -> None:
    """Parse the options, trace one run and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="number of passes over the training images")
    parser.add_argument(
        "--list",
        choices=("modules", "pairs"),
        help="also print the names of all modules, or all pairs of a calling and a called module",
    )
    arguments = parser.parse_args()

    from lcrbnn.cli.main import main as run_command

    with tempfile.TemporaryDirectory() as folder:
        tracer = trace_image_path(run_command, arguments.epochs, Path(folder))
    if arguments.list == "modules":
        print(*sorted(tracer.modules), sep="\n")
    elif arguments.list == "pairs":
        print(*(f"{caller} -> {module}" for caller, module in sorted(tracer.pairs)), sep="\n")
    print(f"{len(tracer.modules)} modules, {len(tracer.pairs)} pairs of modules")


if __name__ == "__main__":
    main()
