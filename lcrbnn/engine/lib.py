"""The compiled engine: opens a model file and runs it, through ctypes and NumPy alone. Other threads run meanwhile."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

import lcrbnn
from lcrbnn.errors import Failed, InputError

ABI = 2
_BAD_FILE, _BAD_CALL = 1, 2
_MESSAGE = 320
_NAMES = {"darwin": "liblcrbnn_engine.dylib", "win32": "lcrbnn_engine.dll"}


class _Info(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("height", "width", "channels", "classes", "nodes", "stages")),
        *((name, ctypes.c_uint64) for name in ("file_bytes", "model_bytes", "work_bytes")),
    )


class NodeInfo(NamedTuple):
    """A node of a model: its op, where it comes from, the (h, w, c) it makes, and what computes it."""

    op: str
    name: str
    shape: tuple[int, int, int]
    kernel: str


def places() -> Iterator[Path]:
    """Yield where the library may be, in the order they are tried."""
    named = os.environ.get("LCRBNN_ENGINE")
    if named:
        yield Path(named)
        return
    name = _NAMES.get(sys.platform, "liblcrbnn_engine.so")
    for folder in lcrbnn.__path__:
        yield Path(folder) / name
    for folder in lcrbnn.__path__:
        yield Path(folder).parent / "build" / name


def library() -> ctypes.CDLL:
    """Return the loaded library; InputError says how to build it where there is none."""
    for path in places():
        if path.is_file():
            return _load(str(path.resolve()))
    named = os.environ.get("LCRBNN_ENGINE")
    where = f" (LCRBNN_ENGINE names {named}, which is not there)" if named else ""
    raise InputError(f"the engine is not built{where}; `make engine` in the source tree builds it")


@cache
def _load(path: str) -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL(path)
        found = lib.lcrbnn_abi()
    except (OSError, AttributeError) as error:
        raise InputError(f"{path} is no engine that can be loaded ({error}); `make engine` builds it anew") from None
    if found != ABI:
        raise InputError(f"{path} has interface {found}, not {ABI}; `make engine` builds it anew")
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    whole, message = ctypes.c_int, (ctypes.c_char_p, ctypes.c_size_t)
    for name, result, arguments in (
        ("open", whole, (text, whole, text, pointer, *message)),
        ("open_memory", whole, (text, size, whole, text, pointer, *message)),
        ("close", None, (pointer,)),
        ("get_info", None, (pointer, pointer)),
        ("model_name", text, (pointer,)),
        ("class_name", text, (pointer, whole)),
        ("node_name", text, (pointer, whole)),
        ("node_op", text, (pointer, whole)),
        ("node_kernel", text, (pointer, whole)),
        ("node_shape", whole, (pointer, whole, pointer)),
        ("run", whole, (pointer, pointer, size, pointer, whole, *message)),
        ("run_pixels", whole, (pointer, pointer, size, pointer, whole, *message)),
        ("times", ctypes.c_uint64, (pointer, pointer, whole)),
        ("value", whole, (pointer, pointer, size, whole, pointer, *message)),
        ("accumulators", whole, (pointer, pointer, size, whole, pointer, *message)),
    ):
        function = getattr(lib, f"lcrbnn_{name}")
        function.restype, function.argtypes = result, arguments
    return lib


class _Opened:
    """A model of the library, freed with the last reference to it: a run holds one until it ends."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib, self.model = lib, ctypes.c_void_p()

    def __del__(self) -> None:
        if self.model:
            self.lib.lcrbnn_close(self.model)


class Engine:
    """A model, ready to run.

    Calls may come from several threads at a time. Answers depend neither on the number of threads nor on the batch.
    `fuse=False` computes every node by itself, and `kernel` names the binary kernel; both are for tests.
    A copy, or what a pickle brings back, is an engine of its own, which opens the same path or the same bytes again.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        fuse: bool = True,
        kernel: str | None = None,
    ) -> None:
        """Open a file, or the bytes of one. InputError names the fault of a wrong one."""
        if kernel is not None and not isinstance(kernel, str):
            raise InputError(f"kernel must be the name of a kernel, or None; got {kernel!r}")
        self._lib = library()
        opened = _Opened(self._lib)
        name = kernel.encode(errors="replace") if kernel else None
        flags, out = 0 if fuse else 1, ctypes.byref(opened.model)
        self._again: tuple[str | bytes, bool, str | None]  # what a copy opens
        if isinstance(source, bytes | bytearray | memoryview):
            self._again = bytes(source), fuse, kernel
            self._call("the model", "open_memory", self._again[0], len(self._again[0]), flags, name, out)
        elif isinstance(source, str | os.PathLike):
            path = os.fsencode(source)
            if b"\0" in path:
                raise InputError(f"a path has no zero byte in it; got {source!r}")
            self._again = str(Path(os.fsdecode(path)).absolute()), fuse, kernel
            self._call(os.fspath(source), "open", path, flags, name, out)
        else:
            raise InputError(f"an engine is opened from a path or from the bytes of a file; got {source!r:.80}")
        self._opened: _Opened | None = opened
        info = _Info()
        self._lib.lcrbnn_get_info(opened.model, ctypes.byref(info))
        self.name = self._text("model_name")
        self.shape: tuple[int, int, int] = (info.height, info.width, info.channels)
        self.classes = tuple(self._text("class_name", i) for i in range(info.classes))
        self.nodes = tuple(self._node(i) for i in range(info.nodes))
        self.stages: int = info.stages
        self.bytes = {"file": info.file_bytes, "model": info.model_bytes, "work": info.work_bytes}

    @property
    def kernels(self) -> tuple[str, ...]:
        """What computes each node; "fused" is a step of an earlier node's loop, "view" costs nothing."""
        return tuple(node.kernel for node in self.nodes)

    def run(self, images: np.ndarray, threads: int = 1) -> np.ndarray:
        """Return the logits, float32 (n, classes), of images (n, h, w, c).

        float32 images are normalised inputs of the network. uint8 images are pictures of 8 bits, 0 to 255, whatever
        the model's top is: each pixel is scaled to the range from 0 to top and normalised, as `lcrbnn predict` does.
        Arrays that are not contiguous are copied; no image gives no logits; NaN and infinities pass through.
        """
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
            raise InputError(f"threads must be a whole number from 1 to 256; got {threads!r}")
        images = self._images(images, pixels=True)
        logits = np.empty((len(images), len(self.classes)), np.float32)
        name, opened = "run_pixels" if images.dtype == np.uint8 else "run", self._open
        self._call("the engine", name, opened.model, images.ctypes.data, len(images), logits.ctypes.data, threads)
        return logits

    def value(self, images: np.ndarray, node: int) -> np.ndarray:
        """Return what a node makes, float32 (n, h, w, c): for tests, slowly."""
        return self._inspect("value", images, node, np.dtype(np.float32))

    def accumulators(self, images: np.ndarray, node: int) -> np.ndarray:
        """Return the whole-number sums of a bconv, int32 (n, h, w, c): for tests, slowly."""
        return self._inspect("accumulators", images, node, np.dtype(np.int32))

    def times(self, *, reset: bool = False) -> np.ndarray:
        """Return seconds an image, by node, averaged over all runs since the last reset; fused nodes have 0."""
        seconds, opened = np.zeros(len(self.nodes)), self._open
        self._lib.lcrbnn_times(opened.model, seconds.ctypes.data, int(reset))
        return seconds

    def close(self) -> None:
        """Refuse later calls, and free the model as soon as no call is under way."""
        self._opened = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._opened is None:
            raise InputError("the engine is closed, and a copy of it would be")
        return _reopened, (type(self), self._again)

    @property
    def _open(self) -> _Opened:
        """The model; who calls the library holds it meanwhile."""
        opened = self._opened
        if opened is None:
            raise InputError("the engine is closed")
        return opened

    def _inspect(self, name: str, images: np.ndarray, node: int, kind: np.dtype[Any]) -> np.ndarray:
        if isinstance(node, bool) or not isinstance(node, int) or not 0 <= node < len(self.nodes):
            raise InputError(f"node must be a whole number from 0 to {len(self.nodes) - 1}; got {node!r}")
        images = self._images(images, pixels=False)
        out, opened = np.empty((len(images), *self.nodes[node].shape), kind), self._open
        self._call("the engine", name, opened.model, images.ctypes.data, len(images), node, out.ctypes.data)
        return out

    def _images(self, images: np.ndarray, *, pixels: bool) -> np.ndarray:
        """Check images and make them contiguous."""
        kinds: tuple[Any, ...] = (np.float32, np.uint8) if pixels else (np.float32,)
        words = " or uint8" if pixels else ""
        right = isinstance(images, np.ndarray) and images.dtype in kinds
        if not right or images.ndim != 4 or images.shape[1:] != self.shape:
            got = f"{images.dtype} {images.shape}" if isinstance(images, np.ndarray) else type(images).__name__
            raise InputError(f"images must be float32{words} (n, {', '.join(map(str, self.shape))}); got {got}")
        return np.ascontiguousarray(images)

    def _text(self, name: str, *arguments: int) -> str:
        return getattr(self._lib, f"lcrbnn_{name}")(self._open.model, *arguments).decode()

    def _node(self, index: int) -> NodeInfo:
        shape = (ctypes.c_int32 * 3)()
        self._lib.lcrbnn_node_shape(self._open.model, index, ctypes.byref(shape))
        made = (shape[0], shape[1], shape[2])
        return NodeInfo(
            self._text("node_op", index), self._text("node_name", index), made, self._text("node_kernel", index)
        )

    def _call(self, what: str, name: str, *arguments: Any) -> None:
        """Call a function that can fail, and raise what it says."""
        message = ctypes.create_string_buffer(_MESSAGE)
        code = getattr(self._lib, f"lcrbnn_{name}")(*arguments, message, _MESSAGE)
        if code:
            kind = InputError if code in (_BAD_FILE, _BAD_CALL) else Failed
            raise kind(f"{what}: {message.value.decode(errors='replace')}")


def _reopened(kind: type[Engine], again: tuple[str | bytes, bool, str | None]) -> Engine:
    source, fuse, kernel = again
    return kind(source, fuse=fuse, kernel=kernel)
