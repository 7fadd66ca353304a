"""Python interface of the compiled engine, through ctypes and NumPy. Calls release the GIL."""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

import lcrbnn
from lcrbnn.errors import InputError, RunFailed

ABI_VERSION = 3
_BAD_FILE, _BAD_CALL = 1, 2
_MESSAGE_BYTES = 320
_LIBRARY_NAMES = {"darwin": "liblcrbnn_engine.dylib", "win32": "lcrbnn_engine.dll"}


_INFO_INTEGERS = ("height", "width", "channels", "classes", "nodes", "stages", "outputs")
_INFO_SIZES = ("output_numbers", "file_bytes", "model_bytes", "work_bytes")


class _ModelInfo(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in _INFO_INTEGERS),
        *((name, ctypes.c_uint64) for name in _INFO_SIZES),
    )


class OutputInfo(NamedTuple):
    """An output of a model: its name and shape (h, w, c)."""

    name: str
    shape: tuple[int, int, int]


class NodeInfo(NamedTuple):
    """A node of a model, with operator, layer name, output shape (h, w, c) and kernel."""

    op: str
    name: str
    shape: tuple[int, int, int]
    kernel: str


def library_candidates() -> Iterator[Path]:
    """Yield the paths at which the library may be, in the order of preference."""
    override = os.environ.get("LCRBNN_ENGINE")
    if override:
        yield Path(override)
        return
    name = _LIBRARY_NAMES.get(sys.platform, "liblcrbnn_engine.so")
    for folder in lcrbnn.__path__:
        yield Path(folder) / name
    for folder in lcrbnn.__path__:
        yield Path(folder).parent / "build" / name


def load_library() -> ctypes.CDLL:
    """Return the loaded library. If there is no library, raise InputError with build instructions."""
    for path in library_candidates():
        if path.is_file():
            return _load_library_file(str(path.resolve()))
    override = os.environ.get("LCRBNN_ENGINE")
    reason = f" (LCRBNN_ENGINE is {override}, and this file does not exist)" if override else ""
    raise InputError(f"the engine is not built{reason}; build it with `make engine` in the source tree")


@cache
def _load_library_file(path: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(path)
        abi_version = library.lcrbnn_abi()
    except (OSError, AttributeError) as error:
        raise InputError(f"{path} cannot be loaded as the engine ({error}); rebuild it with `make engine`") from None
    if abi_version != ABI_VERSION:
        raise InputError(
            f"{path} has interface version {abi_version} instead of {ABI_VERSION}; rebuild it with `make engine`"
        )
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    integer, message = ctypes.c_int, (ctypes.c_char_p, ctypes.c_size_t)
    for name, result, arguments in (
        ("open", integer, (text, integer, text, pointer, *message)),
        ("open_memory", integer, (text, size, integer, text, pointer, *message)),
        ("close", None, (pointer,)),
        ("get_info", None, (pointer, pointer)),
        ("model_name", text, (pointer,)),
        ("class_name", text, (pointer, integer)),
        ("node_name", text, (pointer, integer)),
        ("node_op", text, (pointer, integer)),
        ("node_kernel", text, (pointer, integer)),
        ("node_shape", integer, (pointer, integer, pointer)),
        ("output_name", text, (pointer, integer)),
        ("output_shape", integer, (pointer, integer, pointer)),
        ("run", integer, (pointer, pointer, size, pointer, integer, *message)),
        ("run_pixels", integer, (pointer, pointer, size, pointer, integer, *message)),
        ("times", ctypes.c_uint64, (pointer, pointer, integer)),
        ("value", integer, (pointer, pointer, size, integer, pointer, *message)),
        ("accumulators", integer, (pointer, pointer, size, integer, pointer, *message)),
    ):
        function = getattr(library, f"lcrbnn_{name}")
        function.restype, function.argtypes = result, arguments
    return library


class _ModelHandle:
    """A model of the library, which is freed with its last reference. Each running call holds a reference."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.pointer = library, ctypes.c_void_p()

    def __del__(self) -> None:
        if self.pointer:
            self.library.lcrbnn_close(self.pointer)


class Engine:
    """A model that is ready to run.

    Several threads may call it at the same time. The logits depend neither on the number of threads nor on the batch.
    `fuse=False` computes every node separately, and `kernel` selects the binary kernel; both are for tests.
    A copied or unpickled engine is independent: it opens the same path or the same bytes again.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        fuse: bool = True,
        kernel: str | None = None,
    ) -> None:
        """Open a .bnn file, or the content of a .bnn file. Raise InputError if the model is invalid."""
        if kernel is not None and not isinstance(kernel, str):
            raise InputError(f"kernel must be the name of a kernel or None; got {kernel!r}")
        self._library = load_library()
        handle = _ModelHandle(self._library)
        kernel_name = kernel.encode(errors="replace") if kernel else None
        flags, pointer_out = 0 if fuse else 1, ctypes.byref(handle.pointer)
        # Arguments with which copies and pickles open the model again
        self._open_arguments: tuple[str | bytes, bool, str | None]
        if isinstance(source, bytes | bytearray | memoryview):
            self._open_arguments = bytes(source), fuse, kernel
            self._call(
                "the model",
                "open_memory",
                self._open_arguments[0],
                len(self._open_arguments[0]),
                flags,
                kernel_name,
                pointer_out,
            )
        elif isinstance(source, str | os.PathLike):
            path = os.fsencode(source)
            if b"\0" in path:
                raise InputError(f"a path must not contain a zero byte; got {source!r}")
            self._open_arguments = str(Path(os.fsdecode(path)).absolute()), fuse, kernel
            self._call(os.fspath(source), "open", path, flags, kernel_name, pointer_out)
        else:
            raise InputError(f"source must be a path or the bytes of a .bnn file; got {source!r:.80}")
        self._handle: _ModelHandle | None = handle
        info = _ModelInfo()
        self._library.lcrbnn_get_info(handle.pointer, ctypes.byref(info))
        self.name = self._get_text("model_name")
        self.shape: tuple[int, int, int] = (info.height, info.width, info.channels)
        self.classes = tuple(self._get_text("class_name", i) for i in range(info.classes))
        self.outputs = tuple(
            OutputInfo(self._get_text("output_name", i), self._get_shape("output_shape", i))
            for i in range(info.outputs)
        )
        self.nodes = tuple(self._get_node_info(i) for i in range(info.nodes))
        self.stages: int = info.stages
        self.bytes = {"file": info.file_bytes, "model": info.model_bytes, "work": info.work_bytes}

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the kernel of each node. "fused" means part of an earlier node's loop, "view" means no computation."""
        return tuple(node.kernel for node in self.nodes)

    def run(self, images: np.ndarray, threads: int = 1) -> np.ndarray:
        """Return the logits, float32 (n, classes), of images (n, h, w, c).

        Raise InputError if the model has several outputs, or a feature map as its output; run_outputs accepts every
        model.
        float32 images are normalised inputs of the network. uint8 images have pixels from 0 to 255, for every value
        of the model's top. Each pixel is scaled to the range from 0 to top and normalised, as `lcrbnn predict` does.
        Arrays that are not contiguous are copied. NaN and infinities propagate.
        """
        self.check_vector_output()
        return self._run(images, threads)

    def run_outputs(self, images: np.ndarray, threads: int = 1) -> dict[str, np.ndarray]:
        """Return each output of a model by its name, float32 (n, h, w, c), for images as `run` accepts them."""
        numbers, first, outputs = self._run(images, threads), 0, {}
        for name, shape in self.outputs:
            end = first + math.prod(shape)
            outputs[name] = np.ascontiguousarray(numbers[:, first:end]).reshape(len(numbers), *shape)
            first = end
        return outputs

    def check_vector_output(self) -> None:
        """Raise InputError unless the model has one output, and it is a vector such as the logits of a classifier."""
        if len(self.outputs) != 1 or self.outputs[0].shape[:2] != (1, 1):
            outputs = ", ".join(f"{name} ({'x'.join(map(str, shape))})" for name, shape in self.outputs)
            raise InputError(
                f"the model {self.name} must have one output, a vector (1x1xc) such as logits; it has {outputs}"
            )

    def value(self, images: np.ndarray, node: int) -> np.ndarray:
        """Return the value of a node, float32 (n, h, w, c). This function is slow and only for tests."""
        return self._inspect("value", images, node, np.dtype(np.float32))

    def accumulators(self, images: np.ndarray, node: int) -> np.ndarray:
        """Return the integer sums of a bconv, int32 (n, h, w, c). This function is slow and only for tests."""
        return self._inspect("accumulators", images, node, np.dtype(np.int32))

    def times(self, *, reset: bool = False) -> np.ndarray:
        """Return seconds per image for each node, averaged over all runs since the last reset. Fused nodes have 0 s."""
        seconds, handle = np.zeros(len(self.nodes)), self._open_handle
        self._library.lcrbnn_times(handle.pointer, seconds.ctypes.data, int(reset))
        return seconds

    def close(self) -> None:
        """Close the engine. Later calls raise InputError. The model is freed after the last running call."""
        self._handle = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._handle is None:
            raise InputError("the engine is closed, so it cannot be copied")
        return _reopen_engine, (type(self), self._open_arguments)

    @property
    def _open_handle(self) -> _ModelHandle:
        """Return the handle of the model. Raise InputError if the engine is closed. A running call keeps its handle."""
        handle = self._handle
        if handle is None:
            raise InputError("the engine is closed")
        return handle

    def _run(self, images: np.ndarray, threads: int) -> np.ndarray:
        """Return all outputs of each image one after another, float32 (n, numbers)."""
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
            raise InputError(f"threads must be a whole number from 1 to 256; got {threads!r}")
        images = self._check_images(images, allow_pixels=True)
        outputs = np.empty((len(images), sum(math.prod(output.shape) for output in self.outputs)), np.float32)
        function, handle = "run_pixels" if images.dtype == np.uint8 else "run", self._open_handle
        self._call(
            "the engine", function, handle.pointer, images.ctypes.data, len(images), outputs.ctypes.data, threads
        )
        return outputs

    def _inspect(self, function: str, images: np.ndarray, node: int, dtype: np.dtype[Any]) -> np.ndarray:
        if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < len(self.nodes):
            raise InputError(f"node must be a whole number from 0 to {len(self.nodes) - 1}; got {node!r}")
        images = self._check_images(images, allow_pixels=False)
        result, handle = np.empty((len(images), *self.nodes[node].shape), dtype), self._open_handle
        self._call("the engine", function, handle.pointer, images.ctypes.data, len(images), node, result.ctypes.data)
        return result

    def _check_images(self, images: np.ndarray, *, allow_pixels: bool) -> np.ndarray:
        """Return the images as a contiguous array. Raise InputError if type or shape is wrong."""
        dtypes: tuple[Any, ...] = (np.float32, np.uint8) if allow_pixels else (np.float32,)
        or_uint8 = " or uint8" if allow_pixels else ""
        has_valid_dtype = isinstance(images, np.ndarray) and images.dtype in dtypes
        if not has_valid_dtype or images.ndim != 4 or images.shape[1:] != self.shape:
            got = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
            raise InputError(f"images must be float32{or_uint8} (n, {', '.join(map(str, self.shape))}); got {got}")
        return np.ascontiguousarray(images)

    def _get_text(self, function: str, *arguments: int) -> str:
        return getattr(self._library, f"lcrbnn_{function}")(self._open_handle.pointer, *arguments).decode()

    def _get_node_info(self, index: int) -> NodeInfo:
        return NodeInfo(
            self._get_text("node_op", index),
            self._get_text("node_name", index),
            self._get_shape("node_shape", index),
            self._get_text("node_kernel", index),
        )

    def _get_shape(self, function: str, index: int) -> tuple[int, int, int]:
        shape = (ctypes.c_int32 * 3)()
        getattr(self._library, f"lcrbnn_{function}")(self._open_handle.pointer, index, ctypes.byref(shape))
        return shape[0], shape[1], shape[2]

    def _call(self, subject: str, function: str, *arguments: Any) -> None:
        """Call a library function that can fail. Raise the function's error message as InputError or RunFailed."""
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        code = getattr(self._library, f"lcrbnn_{function}")(*arguments, message, _MESSAGE_BYTES)
        if code:
            error_type = InputError if code in (_BAD_FILE, _BAD_CALL) else RunFailed
            raise error_type(f"{subject}: {message.value.decode(errors='replace')}")


def _reopen_engine(engine_class: type[Engine], open_arguments: tuple[str | bytes, bool, str | None]) -> Engine:
    source, fuse, kernel = open_arguments
    return engine_class(source, fuse=fuse, kernel=kernel)
