"""The code that torch's compiler would make for a training step on an H200, made without one.

The step is traced on a CPU, as its graphs of tensor operations forward and back; these are moved to a GPU by name
alone, and the compiler's second half is told that it has one. Nothing can be run: the code is there to be counted and
read. It leans on the inside of torch's compiler (2.11 to 2.13).
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
import torch._dynamo.device_interface as interfaces
import torch._functorch.config
import torch._guards
import torch._inductor.compile_fx as compiler
import torch._inductor.config
import torch._inductor.fx_passes.reinplace as reinplace
import torch._inductor.runtime.hints as hints
import torch._inductor.scheduler as scheduler
import torch.utils._pytree as trees
import torch.utils._triton
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor

from bench.cases import Case
from bench.synthetic import known, noise
from lcrbnn.kernels import support
from lcrbnn.train.build import build
from lcrbnn.train.lean import Lean
from lcrbnn.train.numerics import numerics
from lcrbnn.train.options import Options
from lcrbnn.train.sources import open_splits
from lcrbnn.train.step_fast import FastStep, _to_channels_last
from tools.launches import IMAGES

GPU = torch.device("cuda:0")
H200 = {
    "multi_processor_count": 132,
    "major": 9,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}


class Made(Exception):
    """The code is there: no error, it ends a compilation that has gone far enough."""


def code_of(case: Case, lean: Lean) -> list[str]:
    """The code of a case's step: forward, then back."""
    found: list[str] = []
    cpu = torch.device("cpu")
    with ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        spec, train = case.spec(), noise(case.data, IMAGES)
        held.enter_context(known(case.data, train))
        held.enter_context(mock.patch.object(support, "_INTERPRETED", True))  # kernels count as usable
        held.enter_context(_compiler_settings(lean))
        parts = build(spec, cpu, runs=Path(folder))
        (opened,) = open_splits([spec], Options(device="cpu").files, cpu, held)
        held.enter_context(numerics(spec))
        step = FastStep(spec, parts, opened.train)
        _to_channels_last(parts.model)
        step.captured, step._lean = True, lean
        step.feed.begin(0, 0, step.whole)

        def inner(graph: Any, inputs: Any, **options: Any) -> Any:
            found.append(_code(graph, inputs, options))
            return _never

        def backend(graph: Any, inputs: Any) -> Any:
            return compiler.compile_fx(graph, inputs, inner_compile=inner)

        torch._dynamo.reset()
        step._forward = torch.compile(step._objective, fullgraph=True, backend=backend)
        try:
            with step._seen():
                step._forward(step._count, step._starts[0])
        except Exception as error:
            if not _was_made(error):
                raise
        finally:
            torch._dynamo.reset()
    return found


def _never(*_: Any) -> Any:
    raise Made


def _was_made(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, Made):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def _compiler_settings(lean: Lean) -> Iterator[None]:
    inductor, functorch = cast(Any, torch._inductor.config), cast(Any, torch._functorch.config)
    with (
        inductor.patch(fx_graph_cache=False, **lean.tell_compiler()),
        functorch.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
    ):
        yield


def _code(graph: Any, inputs: Any, options: dict[str, Any]) -> str:
    """What the compiler writes for one graph."""
    made: list[str] = []

    def stop(self: GraphLowering, *_: Any, **__: Any) -> Any:
        wrapper, _rest = self.codegen()
        made.append(wrapper.value)
        raise Made

    mode = torch._guards.detect_fake_mode(inputs)
    moved = _to_gpu(copy.deepcopy(graph), mode)
    try:
        with _gpu(), torch._guards.tracing(torch._guards.TracingContext(mode)), ExitStack() as held:
            for name in ("compile_to_module", "_compile_to_module"):
                held.enter_context(mock.patch.object(GraphLowering, name, stop))
            compiler.compile_fx_inner(moved, [_named_gpu(mode, tensor) for tensor in inputs], **options)
    except Exception as error:
        if not _was_made(error):
            raise
    return made[0]


def _to_gpu(graph: Any, mode: Any) -> Any:
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = trees.tree_map(lambda value: _named_gpu(mode, value), node.meta["val"])
        node.kwargs = {k: GPU if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
        node.args = tuple(GPU if isinstance(v, torch.device) else v for v in node.args)
    return graph


def _named_gpu(mode: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(mode, meta, GPU)


def _unscattered(inp: Any, src: Any, view_ops: Any) -> Any:
    return inp  # torch's own would copy from one GPU tensor to another


class _Guard:
    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class _Interface(interfaces.CudaInterface):
    device = _Guard  # type: ignore[assignment]  # torch has a class of its own there

    class Worker(interfaces.CudaInterface.Worker):
        @staticmethod
        def current_device() -> int:
            return 0

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return SimpleNamespace(name="NVIDIA H200", gcnArchName="", total_memory=140 << 30, minor=0, **H200)

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def get_compute_capability(device: Any = None) -> int:
        return 90


@contextmanager
def _gpu() -> Iterator[None]:
    """Inside, torch says that it has an H200, where the compiler asks."""
    properties = hints.DeviceProperties(type="cuda", index=0, cc=90, **H200)
    seen = _Interface.Worker.get_device_properties()
    interfaces.get_registered_device_interfaces()
    patches: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "get_device_properties", lambda *_: seen),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8)),
        (torch.cuda, "set_rng_state", lambda *_: None),
        (torch.cuda, "_DeviceGuard", _Guard),
        (torch.cuda, "device", _Guard),
        (hints.DeviceProperties, "create", staticmethod(lambda _device: properties)),
        (scheduler, "has_triton", lambda *_: True),
        (torch.utils._triton, "triton_hash_with_backend", lambda: ""),
        (torch._C, "_conv_determine_backend_memory_format", lambda *_: torch.channels_last),  # cuDNN's, of such maps
        (reinplace._inplace_generalized_scatter, "__code__", _unscattered.__code__),  # known by itself, not by name
    ]
    with ExitStack() as held:
        for place, name, value in patches:
            held.enter_context(mock.patch.object(place, name, value))
        held.enter_context(mock.patch.dict(interfaces.device_interfaces, {"cuda": _Interface, "cuda:0": _Interface}))
        yield
