"""Generate the code of a compiled training step for an H200 without having a GPU.

The step is traced on a CPU as graphs of tensor operations, forward and backward. Then the tensors in the graphs are
marked as GPU tensors, and the code generator is told that there is a GPU. The generated code cannot be run. It can only
be counted and read. This module depends on internals of torch's compiler (2.11 to 2.13).
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

from bench.training.gpu_cases import Case
from bench.training.synthetic_data import make_noise_split, register_dataset
from lcrbnn import device as support
from lcrbnn.device import deterministic_run
from lcrbnn.train.fast.compiled_step import CompiledStep, _to_channels_last
from lcrbnn.train.fast.fused_step import FusionOptions
from lcrbnn.train.setup.build import build_training_parts
from lcrbnn.train.setup.dataset import open_splits
from lcrbnn.train.setup.options import RunOptions
from tools.count_launches import NUM_IMAGES

GPU = torch.device("cuda:0")
H200 = {
    "multi_processor_count": 132,
    "major": 9,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
}


class CodeGenerated(Exception):
    """Exception, but no failure, that ends a compilation as soon as the code is generated."""


def generate_code(case: Case, fusion_options: FusionOptions) -> list[str]:
    """Return the generated code of a case's step, first the forward pass, then the backward pass."""
    codes: list[str] = []
    cpu = torch.device("cpu")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        spec, train = case.make_spec(), make_noise_split(case.dataset, NUM_IMAGES)
        stack.enter_context(register_dataset(case.dataset, train))
        stack.enter_context(
            mock.patch.object(support, "_IS_TRITON_INTERPRETED", True)
        )  # with this replacement, the package believes that Triton kernels can be used
        stack.enter_context(_compiler_settings(fusion_options))
        parts = build_training_parts(spec, cpu, runs_folder=Path(folder))
        (split,) = open_splits([spec], RunOptions(device="cpu").data_access, cpu, stack)
        stack.enter_context(deterministic_run(spec.deterministic, spec.precision))
        step = CompiledStep(spec, parts, split.train)
        _to_channels_last(parts.model)
        step.is_captured, step._fusion = True, fusion_options
        step.batch_inputs.begin_epoch(0, 0, step.full_batches)

        def inner_compile(graph: Any, inputs: Any, **options: Any) -> Any:
            codes.append(_generate_graph_code(graph, inputs, options))
            return _run_never

        def backend(graph: Any, inputs: Any) -> Any:
            return compiler.compile_fx(graph, inputs, inner_compile=inner_compile)

        torch._dynamo.reset()
        step._compiled_objective = torch.compile(step._compute_part_objective, fullgraph=True, backend=backend)
        try:
            with step._prepared_for_compiler():
                step._compiled_objective(step._step_counter, step._part_starts[0])
        except Exception as error:
            if not _is_code_generated(error):
                raise
        finally:
            torch._dynamo.reset()
    return codes


def _run_never(*_: Any) -> Any:
    raise CodeGenerated


def _is_code_generated(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, CodeGenerated):
        error = error.__cause__ or error.__context__
    return error is not None


@contextmanager
def _compiler_settings(fusion_options: FusionOptions) -> Iterator[None]:
    inductor, functorch = cast(Any, torch._inductor.config), cast(Any, torch._functorch.config)
    with (
        inductor.patch(fx_graph_cache=False, **fusion_options.compiler_options()),
        functorch.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
    ):
        yield


def _generate_graph_code(graph: Any, inputs: Any, options: dict[str, Any]) -> str:
    """Return the code that the compiler generates for one graph."""
    codes: list[str] = []

    def generate_and_stop(self: GraphLowering, *_: Any, **__: Any) -> Any:
        wrapper, _rest = self.codegen()
        codes.append(wrapper.value)
        raise CodeGenerated

    mode = torch._guards.detect_fake_mode(inputs)
    moved = _to_gpu(copy.deepcopy(graph), mode)
    try:
        with _pretend_gpu(), torch._guards.tracing(torch._guards.TracingContext(mode)), ExitStack() as stack:
            for name in ("compile_to_module", "_compile_to_module"):
                stack.enter_context(mock.patch.object(GraphLowering, name, generate_and_stop))
            compiler.compile_fx_inner(moved, [_relabel_as_gpu(mode, tensor) for tensor in inputs], **options)
    except Exception as error:
        if not _is_code_generated(error):
            raise
    return codes[0]


def _to_gpu(graph: Any, mode: Any) -> Any:
    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = trees.tree_map(lambda value: _relabel_as_gpu(mode, value), node.meta["val"])
        node.kwargs = {k: GPU if isinstance(v, torch.device) else v for k, v in node.kwargs.items()}
        node.args = tuple(GPU if isinstance(v, torch.device) else v for v in node.args)
    return graph


def _relabel_as_gpu(mode: Any, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    meta = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(mode, meta, GPU)


def _return_input(inp: Any, src: Any, view_ops: Any) -> Any:
    return inp  # torch's own function would copy data between GPU tensors, so return the tensor itself


class _FakeDeviceGuard:
    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class _FakeDeviceInterface(interfaces.CudaInterface):
    device = _FakeDeviceGuard  # type: ignore[assignment]  # torch expects its own class

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
def _pretend_gpu() -> Iterator[None]:
    """Inside this context, torch's functions are replaced so that the compiler sees an H200."""
    properties = hints.DeviceProperties(type="cuda", index=0, cc=90, **H200)
    device_properties = _FakeDeviceInterface.Worker.get_device_properties()
    interfaces.get_registered_device_interfaces()
    patches: list[tuple[Any, str, Any]] = [
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "get_device_properties", lambda *_: device_properties),
        (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
        (torch.cuda, "synchronize", lambda *_: None),
        (torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8)),
        (torch.cuda, "set_rng_state", lambda *_: None),
        (torch.cuda, "_DeviceGuard", _FakeDeviceGuard),
        (torch.cuda, "device", _FakeDeviceGuard),
        (hints.DeviceProperties, "create", staticmethod(lambda _device: properties)),
        (scheduler, "has_triton", lambda *_: True),
        (torch.utils._triton, "triton_hash_with_backend", lambda: ""),
        (
            torch._C,
            "_conv_determine_backend_memory_format",
            lambda *_: torch.channels_last,
        ),  # channels-last is the memory format that cuDNN uses for these maps
        (
            reinplace._inplace_generalized_scatter,
            "__code__",
            _return_input.__code__,
        ),  # replace the code object of the function, because torch refers to the function directly
    ]
    with ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value))
        stack.enter_context(
            mock.patch.dict(
                interfaces.device_interfaces, {"cuda": _FakeDeviceInterface, "cuda:0": _FakeDeviceInterface}
            )
        )
        yield
