"""A network of the user: a function in a Python file, which `model` names as FILE.py:FUNCTION.

The file is executed. A run keeps a copy of it (`network.py`) and its SHA-256 (the setting `model_sha256`).
"""

from __future__ import annotations

import hashlib
import inspect
import linecache
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from lcrbnn.errors import InputError
from lcrbnn.runs.atomic_files import read_regular_file
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.spec import TrainSpec

FILE_SUFFIX = ".py"
INSTALLED_FOLDERS = ("site-packages", "dist-packages")  # modules below them belong to installed packages


class NetworkReference(NamedTuple):
    """A Python file and the name of the function in it that returns a network."""

    path: Path
    function: str

    def __str__(self) -> str:
        """Return the reference as the setting `model` has it."""
        return f"{self.path}:{self.function}"


def parse_reference(model: str) -> NetworkReference | None:
    """Return the file and function of FILE.py:FUNCTION, or None if `model` is the name of a network."""
    path, colon, function = model.rpartition(":")
    if colon and path.endswith(FILE_SUFFIX):
        if not function.isidentifier():
            raise InputError(f"model {model!r} names no function: write FILE.py:FUNCTION, such as {path}:make_model")
        return NetworkReference(Path(path), function)
    if model.endswith(FILE_SUFFIX):
        raise InputError(f"model {model!r} names no function: write FILE.py:FUNCTION, such as {model}:make_model")
    return None


def read_network_file(path: Path) -> bytes:
    """Return the content of a network file. Raise InputError if it cannot be read."""
    try:
        return read_regular_file(path)
    except OSError as error:
        raise InputError(f"the network file {path} cannot be read: {error.strerror or error}") from None


def compute_sha256(source: bytes) -> str:
    """Return the SHA-256 of a network file."""
    return hashlib.sha256(source).hexdigest()


def fill_in_network_digest(spec: TrainSpec, folder: RunFolder, stored_spec: TrainSpec | None) -> TrainSpec:
    """Return the spec with the SHA-256 of its network file.

    `stored_spec` is the spec of the run if it was started before. A file that has changed since raises InputError.
    """
    reference = parse_reference(spec.model)
    if reference is None:
        if spec.model_sha256:
            raise InputError(f"model_sha256 is only for a network file, FILE.py:FUNCTION; got model {spec.model}")
        return spec
    if stored_spec is not None and stored_spec.model == spec.model:
        read_run_network(folder, stored_spec)
        return spec.replace(model_sha256=spec.model_sha256 or stored_spec.model_sha256)
    digest = compute_sha256(read_network_file(reference.path))
    if spec.model_sha256 not in ("", digest):
        raise InputError(
            f"{reference.path} has the SHA-256 {digest}, and the settings have model_sha256 {spec.model_sha256}: "
            "restore the file, or start a new run with it in another folder"
        )
    return spec.replace(model_sha256=digest)


def read_run_network(folder: RunFolder, spec: TrainSpec) -> bytes | None:
    """Return the network file of a run, from the copy in its folder, or None for a network of the package.

    Raise InputError if the copy was changed, or if the original file still exists and was changed.
    """
    reference = parse_reference(spec.model)
    if reference is None:
        return None
    copy = read_network_file(folder.network_file)
    if (digest := compute_sha256(copy)) != spec.model_sha256:
        raise InputError(
            f"{folder.network_file} was changed: its SHA-256 is {digest}, and the run was started with "
            f"{spec.model_sha256}; restore the file"
        )
    if reference.path.is_file():
        digest = compute_sha256(read_network_file(reference.path))
        if digest != spec.model_sha256:
            raise InputError(
                f"{reference.path} was changed after the run in {folder.path} was started: its SHA-256 is {digest}, "
                f"and that of the run is {spec.model_sha256}; restore the file from {folder.network_file}, or rename "
                "the changed file and start a new run with it"
            )
    return copy


def read_spec_network(spec: TrainSpec) -> bytes | None:
    """Return the file that the spec names, or None for a network of the package. Raise InputError if it was changed."""
    reference = parse_reference(spec.model)
    if reference is None:
        return None
    source = read_network_file(reference.path)
    if spec.model_sha256 not in ("", digest := compute_sha256(source)):
        raise InputError(
            f"{reference.path} was changed: its SHA-256 is {digest}, and the settings have {spec.model_sha256}"
        )
    return source


def reject_network_file(spec: TrainSpec, source: Path) -> None:
    """Raise InputError if the network is in a file of the user, which weights files and zoo files do not contain."""
    if parse_reference(spec.model) is not None:
        raise InputError(
            f"{source} has the network {spec.model}, and a file with weights holds no code: use the folder of the run"
        )


def call_network_function(reference: NetworkReference, source: bytes, arguments: Mapping[str, Any]) -> nn.Module:
    """Execute a network file and return the network of its function.

    The function gets those of the `arguments` that its signature has.
    """
    known_modules = set(sys.modules)
    module = _guard(reference, lambda: _execute(reference, source))
    function = getattr(module, reference.function, None)
    if not callable(function):
        names = [name for name, value in vars(module).items() if inspect.isfunction(value) or inspect.isclass(value)]
        defined = ", ".join(name for name in names if vars(module)[name].__module__ == module.__name__) or "none"
        raise InputError(f"{reference.path} defines no function {reference.function!r}; it defines {defined}")
    selected = _select_arguments(reference, function, arguments)
    network = _guard(reference, lambda: function(**selected))
    _reject_sibling_modules(reference, source, known_modules | {module.__name__})
    if not isinstance(network, nn.Module):
        raise InputError(f"{reference} must return a torch.nn.Module; it returned {type(network).__name__}")
    return network


def _execute(reference: NetworkReference, source: bytes) -> ModuleType:
    """Execute the file as a module. The module is registered, because torch.compile and copies look it up by name."""
    name = _name_module(source)
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(reference.path.absolute())
    code = compile(source, module.__file__, "exec")
    # Without the lines of this very source, tracebacks and torch.compile would read the file at this path.
    text = source.decode("utf-8", "replace")
    linecache.cache[module.__file__] = (len(source), None, text.splitlines(keepends=True), module.__file__)
    sys.modules[name] = module
    try:
        exec(code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name_module(source: bytes) -> str:
    return f"lcrbnn_network_{compute_sha256(source)[:16]}"


def _guard(reference: NetworkReference, work: Callable[[], Any]) -> Any:
    """Return the result of code of the user. Its exceptions become InputErrors of one sentence."""
    try:
        return work()
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())[:300]
        hint = ""
        if isinstance(error, ImportError):
            hint = "; a network file can import installed packages, but no other files"
        text = f"{reference} raises {type(error).__name__}: {message}{_find_line(reference, error)}{hint}"
        raise InputError(text) from error


def _find_line(reference: NetworkReference, error: BaseException) -> str:
    """Return the last line of the network file in the traceback of an error, as text."""
    line, trace, path = None, error.__traceback__, str(reference.path.absolute())
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == path else line
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


def _select_arguments(
    reference: NetworkReference, function: Callable[..., Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    selected = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in arguments and parameter.kind != parameter.POSITIONAL_ONLY:
            selected[name] = arguments[name]
        elif parameter.default is parameter.empty:
            raise InputError(
                f"{reference} has the argument {name!r} without a default value; a run can only pass "
                f"{', '.join(arguments)}"
            )
    return selected


def _reject_sibling_modules(reference: NetworkReference, source: bytes, known_modules: set[str]) -> None:
    """Raise InputError if the file has imported another file next to it, because a run would not store that file."""
    folder = reference.path.absolute().parent
    for name in sorted(set(sys.modules) - known_modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        # A package that was imported before is no sibling: lcrbnn itself may be next to the file, in a source tree.
        if file is None or name.partition(".")[0] in known_modules:
            continue
        path = Path(file).absolute()
        is_installed = any(part in INSTALLED_FOLDERS for part in path.parts) or path.is_relative_to(sys.base_prefix)
        if path.is_relative_to(folder) and not is_installed:
            for module_name in (name, _name_module(source)):  # so that a second call is rejected, too
                sys.modules.pop(module_name, None)
            raise InputError(
                f"{reference.path} imports {path}, which a run does not store: put all code of the network into one "
                "file, or install the other code as a package"
            )
