"""Training steps at GPU speed: a whole step, from picking images to the update, is one compiled and captured graph.

The host fills tables for an epoch (order, draws, learning rates, lambdas) and then only says "again"; a counter on the
device says which step it is. The eager step is its twin: same draws, same optimiser state, same checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._inductor.exc import InductorError

from lcrbnn.errors import Failed, InputError
from lcrbnn.layers import project
from lcrbnn.train import lean
from lcrbnn.train.batches import Source
from lcrbnn.train.build import Parts
from lcrbnn.train.evaluate import Look
from lcrbnn.train.feeds import feed_of
from lcrbnn.train.objective import SUMS, clip_gradients, go_back, gradients_of, objective, push
from lcrbnn.train.ranks import ALONE, Ranks
from lcrbnn.train.reduce import Reducer
from lcrbnn.train.replay import Replay
from lcrbnn.train.schedule import learning_rate, retention_weight
from lcrbnn.train.spec import Spec
from lcrbnn.train.state import fill_memory
from lcrbnn.train.step_eager import BadNumbers, EagerStep

MOST = 10**6  # steps that are compiled in one process: a study has one for each run that differs from those before it
NEVER = 2**62  # the first bad step, while there is none
WARM_UP = 2  # steps before the capture, undone afterwards
MUCH = 100  # times lambda: what retention weighs where its own gradient is wanted, clear of rounding


class FastStep:
    """The same interface as EagerStep. On a CPU it is compiled but not captured, which serves its tests."""

    def __init__(self, spec: Spec, parts: Parts, train: Source, ranks: Ranks = ALONE) -> None:
        """Lay out the tables; compiling and capturing wait for the first step."""
        self.spec, self.parts, self.train, self.ranks = spec, parts, train, ranks
        self.device = train.labels.device
        self.steps = train.steps(spec.batch, spec.drop_last, spec.accumulate)
        pieces = ranks.size * spec.accumulate
        if spec.batch % pieces:
            raise InputError(
                f"a fast step has parts of one size, and a batch of {spec.batch} does not go into {ranks.size} x "
                f"{spec.accumulate} (processes x accumulate); choose a multiple of {pieces}, or --step eager"
            )
        self.whole = len(train) // spec.batch  # steps of a full batch; the rest, if any, is taken eagerly
        self.sums = torch.zeros(len(SUMS), dtype=torch.float64, device=self.device)
        self.stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        self.captured = self.stream is not None
        self._mode = "thread_local" if ranks.launched else "global"  # NCCL's own threads may ask the GPU meanwhile
        self.feed, device = feed_of(spec, train), self.device
        self._rates, self._weights = torch.zeros(2, self.steps, device=device)
        self._count = torch.zeros(1, dtype=torch.int64, device=device)
        self._bad = torch.full((1,), NEVER, dtype=torch.int64, device=device)
        self._lr = torch.zeros((), device=device)
        size = min(spec.batch // pieces, len(train))  # images of a part
        self._starts = [torch.tensor([i * size], device=device) for i in range(spec.accumulate)]
        self._share = 1 / pieces
        self._reduce = Reducer(parts.model, ranks)
        self._graph: Any = None
        self._epoch = self._step = 0
        self._full = 0.0
        compiler: Any = torch._dynamo.config
        compiler.recompile_limit = compiler.accumulated_recompile_limit = MOST
        remember_traces()
        self._lean = lean.CHOSEN if self.captured else lean.Lean()
        self._forward = torch.compile(self._objective, fullgraph=True, options=self._lean.tell_compiler() or None)
        self._settle = torch.compile(self._booked, fullgraph=True)
        self._eager = EagerStep(spec, parts, train, ranks)
        self._counters: list[tuple[Any, Tensor]] = [
            (m, m.num_batches_tracked)
            for m in parts.model.modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm)
            and m.num_batches_tracked is not None
            and m.momentum is not None  # without a momentum the statistics depend on the count
        ]
        if self.captured:
            _to_channels_last(parts.model)

    def begin(self, epoch: int, first: int, full: float) -> None:
        """Fill the tables of an epoch; nothing has to be waited for until it ends."""
        spec = self.spec
        self._epoch, self._step, self._full = epoch, first, full
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with self._on_stream():
            self.feed.begin(epoch, first, self.whole)
            places = [(epoch, step, self.steps) for step in range(self.steps)]
            self._rates.copy_(torch.tensor([learning_rate(spec, *at) for at in places]))
            self._weights.copy_(torch.tensor([retention_weight(spec, full, *at) for at in places]))
            self._count.fill_(first)
            if self._graph is None and first < self.whole:
                self._prepare()

    def take(self) -> None:
        """One step, or the order to make one."""
        with self._on_stream():
            if self._step >= self.whole:  # the incomplete last batch has a shape of its own
                self._last()
            else:
                self.feed.load()
                self._again()
        self._step += 1

    def _again(self) -> None:
        if self.captured:
            self._graph.replay()
        else:
            self._body()

    def check(self) -> None:
        """Wait for the device, and raise if a step had bad numbers."""
        if self.stream is not None:
            self.stream.synchronize()
        bad = int(self._bad)
        if bad != NEVER:
            raise BadNumbers("loss or gradient is not finite", self._epoch, bad)

    def look(self) -> Look | None:
        """What evaluate.look finds, by the compiled step: between epochs, once it is there, where retention takes part.

        The loss is linear in lambda, so two gradients, without retention and with much of it, give retention's own.
        """
        if self._graph is None or not self.spec.retains:
            return None
        with self._after_all(), self._on_stream(), _undone(self._buffers()):
            self.feed.show_sample()
            self._count.zero_()
            much = MUCH * max(self._full, 1e-6)
            gradients, ratios = [], self.sums
            for weight in (0.0, much):
                self._weights[0] = weight
                gradient, ratios = self._look()
                gradients.append(gradient.clone())
            task, both = gradients
            share = ((both - task).norm() / much / task.norm().clamp_min(1e-30)).item()
            return Look([round(r, 6) for r in ratios.tolist()], share)

    def _gradient(self) -> tuple[Tensor, Tensor]:
        """Of one batch: the gradient of all weights in one piece, and the ratios."""
        parts = self.parts
        parts.optimizer.zero_grad(set_to_none=True)
        with self._seen():
            loss, _ = self._forward(self._count, self._starts[0])
        gradients = go_back(self.spec, loss, parts.model.parameters())
        assert parts.retention is not None
        assert parts.retention.ratios is not None
        ratios = parts.retention.ratios.clone()
        return torch.cat([g.flatten() for g in gradients]), ratios

    def _last(self) -> None:
        self.check()  # bad numbers so far are not this batch's
        self._eager.begin(self._epoch, self._step, self._full)
        self._eager.sums.zero_()
        self._eager.take()
        self.sums += self._eager.sums
        self._use_lr_tensor()

    # -- the captured body -------------------------------------------------------------------------------------------

    def _objective(self, count: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = self.feed.pick(count, start)
        if self.captured:
            images = images.contiguous(memory_format=torch.channels_last)
        loss, sums = objective(self.spec, self.parts, images, labels, self._weights[count].squeeze(0))
        return loss, sums

    def _body(self) -> None:
        parts = self.parts
        parts.optimizer.zero_grad(set_to_none=True)
        seen = []
        for start in self._starts:
            with self._seen():
                loss, sums = self._forward(self._count, start)
            push(self.spec, loss, self._share)
            seen.append(sums)
        gradients = gradients_of(self.spec, parts.names)
        sums = seen[0] if len(seen) == 1 else torch.stack(seen).sum(0)
        sums = self._reduce(gradients, sums, 1 / self.ranks.size)
        norms = torch.stack(torch._foreach_norm(gradients))
        self._settle(norms, sums)
        clip_gradients(self.spec, gradients, norms)
        parts.optimizer.step()
        project(parts.model)
        if self._counters:
            torch._foreach_add_([counter for _, counter in self._counters], self.spec.accumulate)

    def _booked(self, norms: Tensor, sums: Tensor) -> None:
        """What a step writes down: whether it was healthy, its rate, sums and number; 20 launches if not compiled."""
        healthy = torch.isfinite(sums[0]) & torch.isfinite(torch.linalg.vector_norm(norms))
        self._bad.copy_(torch.where(healthy, self._bad, torch.minimum(self._bad, self._count)))
        self._lr.copy_(self._rates[self._count].squeeze(0))
        self.sums += sums
        self._count += 1

    def _prepare(self) -> None:
        """Warm up and capture; the steps that this takes are undone."""
        self._use_lr_tensor()
        fill_memory(self.parts.optimizer)
        with _undone(self._state()):
            try:
                self._ready()
            except (TorchDynamoException, InductorError) as error:
                reason = str(error).strip().splitlines()[0]
                raise Failed(f"the step cannot be compiled here ({reason}); --step eager does without") from None

    def _ready(self) -> None:
        self._graph = True
        self._warm_up(1 + WARM_UP if self.captured else 1)
        if self.captured:
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self.stream, capture_error_mode=self._mode):
                self._body()
        self._look = Replay(self._gradient, self._graph, self.stream, self._mode)

    def _warm_up(self, times: int) -> None:
        for _ in range(times):
            self._body()
            self._count.fill_(self._step)  # always the same step: there may be no other in this epoch

    def _use_lr_tensor(self) -> None:
        for group in self.parts.optimizer.param_groups:
            group["lr"] = self._lr

    def _state(self) -> list[Tensor]:
        """All that a step changes."""
        remembered = [v for s in self.parts.optimizer.state.values() for v in s.values() if isinstance(v, Tensor)]
        modules = [self.parts.model, *([] if self.parts.retention is None else [self.parts.retention])]
        kept = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        return [*kept, *remembered, self.sums, self._count, self._bad]

    def _buffers(self) -> list[Tensor]:
        kept = [*self.parts.model.buffers(), *([] if self.parts.retention is None else self.parts.retention.buffers())]
        return [*kept, self._count, self._bad]

    @contextmanager
    def _seen(self) -> Iterator[None]:
        """Inside, the network is as the compiler is to see it."""
        with _uncounted(self._counters), self._lean.on(self.parts.model, self.spec.precision):
            yield

    @contextmanager
    def _after_all(self) -> Iterator[None]:
        """What is inside waits for what was asked for before, and what comes after waits for it."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        try:
            yield
        finally:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)

    def _on_stream(self) -> Any:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def remember_traces() -> None:
    """Let torch's compiler keep on disk what it finds out of a step before it writes code: a later start is shorter.

    It leaves out steps with autocast and with gradients of their own unless told otherwise. What autocast is told
    stands in the step that it looks up, and so does the code of a gradient.
    """
    inductor, functorch = cast(Any, torch._inductor.config), cast(Any, torch._functorch.config)
    inductor.unsafe_marked_cacheable_functions = {
        f"torch.amp.autocast_mode.{name}": torch.__version__ for name in ("_enter_autocast", "_exit_autocast")
    }
    functorch.autograd_cache_allow_custom_autograd_functions = True


@contextmanager
def _uncounted(counters: list[tuple[Any, Tensor]]) -> Iterator[None]:
    """Inside, batch norms do not count their batches, a kernel each; whoever asks for this counts them all at once."""
    for norm, _ in counters:
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, counter in counters:
            norm.num_batches_tracked = counter


@torch.no_grad()
def _to_channels_last(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


@contextmanager
def _undone(tensors: list[Tensor]) -> Iterator[None]:
    """Afterwards the tensors hold what they held before, at the same addresses."""
    kept = [t.detach().clone() for t in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, before in zip(tensors, kept, strict=True):
                tensor.copy_(before)
