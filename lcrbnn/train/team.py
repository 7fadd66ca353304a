"""Runs that differ in seed or lambda alone, as one step: what each would launch for itself is launched once for all.

The step of one run is traced to a graph of tensor operations, the graph is mapped over the runs (torch.vmap) and then
compiled. Weights, statistics, momenta and tables of all runs lie in one piece of memory each, of which every run keeps
its own part: evaluation, looks and checkpoints see a run as if it were alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from lcrbnn.layers import project
from lcrbnn.train.feeds import HeldFeed
from lcrbnn.train.objective import LOUDER, objective
from lcrbnn.train.replay import Replay
from lcrbnn.train.spec import Spec
from lcrbnn.train.state import fill_memory

if TYPE_CHECKING:
    from lcrbnn.train.step_fast import FastStep

aten = torch.ops.aten
# What vmap has no rule for, or a worse one than for the parts.
TAKEN_APART = [
    aten.native_batch_norm,
    aten.native_batch_norm_backward,
    aten.hardtanh,
    aten.hardtanh_backward,
    aten.tanh_backward,
    aten.std_mean,
    aten.nll_loss_forward,
    aten.nll_loss_backward,
    aten._log_softmax_backward_data,
]
SHOWN = ("irnet", "xnor")  # methods of which a team was compared with runs alone; others are made as by the fast step


def shape_of(spec: Spec) -> Spec:
    """What runs of a team share: all but the seed and, where there is retention, its strength: both lie in tables."""
    same = spec.but(seed=0, share=0.0, ramp=0.0, weight=0.0)
    return same.but(weight=1.0) if spec.retains else same


def can_team(steps: Sequence[FastStep]) -> bool:
    """Whether these runs can be one: of one shape, a method in SHOWN, images held, plain SGD, one process."""
    first = shape_of(steps[0].spec)
    return all(
        shape_of(one.spec) == first
        and isinstance(one.feed, HeldFeed)
        and one.spec.method in SHOWN
        and one.spec.optimizer == "sgd"
        and one.spec.accumulate == 1
        and not one.ranks.launched
        for one in steps
    )


class Team:
    """The step of several runs. Each run asks for each of its steps; the first to ask makes it for all."""

    def __init__(self, members: Sequence[FastStep]) -> None:
        """Take them in; their tensors are moved together when the first step is prepared."""
        self.members = list(members)
        self.first = members[0]
        self.last: tuple[int, int] | None = None  # epoch and step that all have made
        self.ready = False
        self._graph: Any = None
        for member in members:
            member.team = self

    def part(self) -> None:
        """Let each go its own way: they are not at the same place."""
        for member in self.members:
            member.team = None

    def ask(self, epoch: int, step: int) -> None:
        """Make this step, unless it was made when another run asked."""
        if self.last == (epoch, step):
            return
        self.last = (epoch, step)
        if self.first.captured:
            self._graph.replay()
        else:
            self._body()

    def gradient(self, member: FastStep) -> tuple[Tensor, Tensor]:
        """Of a member's batch: the gradient of all its weights in one piece, and its ratios."""
        place = self.members.index(member)
        gradients, ratios = self._look()
        return gradients[place], ratios[place]

    # -- getting ready -----------------------------------------------------------------------------------------------

    def prepare(self, warm_up: int) -> None:
        """Move the tensors together, trace, compile, capture. Steps are made on the way: whoever calls undoes them."""
        for member in self.members:
            member.stream = self.first.stream
        self._join()
        self._run = self._compiled()
        self._body()
        if self.first.captured:
            for _ in range(warm_up):
                self._body()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self.first.stream):
                self._body()
        self._look = Replay(self._gradient, self._graph, self.first.stream)
        self.ready = True

    def _join(self) -> None:
        bodies = [_modules(member) for member in self.members]
        self._names = [name for name, _ in bodies[0].named_parameters()]
        self._held = [name for name, _ in bodies[0].named_buffers() if not name.endswith("num_batches_tracked")]
        self._body_of_first = bodies[0]
        own = [dict(body.named_parameters()) for body in bodies]
        self._parameters = [join([one[name] for one in own]) for name in self._names]
        kept = [dict(body.named_buffers()) for body in bodies]
        self._buffers = [join([one[name] for one in kept]) for name in self._held]
        feeds = [member.feed for member in self.members]
        tables = [feed.tables() for feed in feeds if isinstance(feed, HeldFeed)]
        self._tables = [join(list(each)) for each in zip(*tables, strict=True)]
        self._counts = join([member._count for member in self.members])
        self._bad = join([member._bad for member in self.members])
        self._sums = join([member.sums for member in self.members])
        self._weights = join([member._weights for member in self.members])
        self._optimizer = self._joined_optimizer(own)

    def _joined_optimizer(self, own: Sequence[dict[str, nn.Parameter]]) -> torch.optim.Optimizer:
        """One that does to the joined parameters what each run's own does to its part."""
        optimizers = [member.parts.optimizer for member in self.members]
        place = {id(own[0][name]): i for i, name in enumerate(self._names)}
        groups = [
            {**group, "params": [self._parameters[place[id(p)]] for p in group["params"]], "lr": self.first._lr}
            for group in optimizers[0].param_groups
        ]
        kind: Any = type(optimizers[0])
        joined = kind(groups)
        for i, name in enumerate(self._names):
            states = [optimizer.state[one[name]] for optimizer, one in zip(optimizers, own, strict=True)]
            joined.state[self._parameters[i]] = {key: join([state[key] for state in states]) for key in states[0]}
        return joined

    def _compiled(self) -> Any:
        """The step of one run, up to its gradients, mapped over all and compiled."""
        feed, spec, parts = self.first.feed, self.first.spec, self.first.parts
        assert isinstance(feed, HeldFeed)
        start, louder = self.first._starts[0], LOUDER.get(spec.precision, 1.0)
        stored_last = [p.dim() == 5 and not p.is_contiguous() for p in self._parameters]

        def single(parameters: Any, buffers: Any, tables: Any, split: Any, weights: Tensor, count: Tensor) -> Any:
            mine = {n: p.detach().requires_grad_() for n, p in zip(self._names, parameters, strict=True)}
            kept = {n: b.clone() for n, b in zip(self._held, buffers, strict=True)}
            images, labels = feed.pick_from(tables, split, count, start)
            with torch.enable_grad():
                job = (spec, parts, images, labels, weights[count].squeeze(0))
                loss, sums = functional_call(self._body_of_first, {**mine, **kept}, job, strict=False)
                found = torch.autograd.grad(loss, list(mine.values()), torch.full_like(loss, louder), allow_unused=True)
            gradients = [
                torch.zeros_like(p) if g is None else _stored_as(g / louder if louder != 1 else g, last)
                for p, g, last in zip(mine.values(), found, stored_last, strict=True)
            ]
            length = torch.stack([g.square().sum() for g in gradients]).sum()
            healthy = torch.isfinite(sums[0]) & torch.isfinite(length)
            retention = parts.retention
            ratios = sums if retention is None or retention.ratios is None else retention.ratios
            return gradients, list(kept.values()), sums.detach(), healthy, ratios.detach()

        given = (self._parameters, self._buffers, self._tables, feed.split(), self._weights, self._counts)
        one = ([t[0] for t in self._parameters], [t[0] for t in self._buffers], [t[0] for t in self._tables])
        with ExitStack() as held, torch.no_grad():
            for member in self.members[:1]:
                held.enter_context(member.uncounted())
            held.enter_context(torch.backends.cudnn.flags(enabled=False))  # its batch norm is another operation
            apart: Any = get_decompositions(TAKEN_APART)
            traced = make_fx(single, apart)(*one, feed.split(), self._weights[0], self._counts[0])
            mapped = torch.vmap(traced, in_dims=(0, 0, 0, None, 0, 0))
            graph = make_fx(mapped, apart)(*given)
        self._given = given
        return compiled(graph, list(given))

    # -- the captured body -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _gradient(self) -> tuple[Tensor, Tensor]:
        gradients, _, _, _, ratios = self._run(*self._given)
        return torch.cat([g.flatten(1) for g in gradients], 1), ratios

    @torch.no_grad()
    def _body(self) -> None:
        gradients, buffers, sums, healthy, _ = self._run(*self._given)
        if self._buffers:
            torch._foreach_copy_(self._buffers, list(buffers))
        self._bad.copy_(torch.where(healthy[:, None], self._bad, torch.minimum(self._bad, self._counts)))
        self.first._lr.copy_(self.first._rates[self.first._count].squeeze(0))
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = _like(gradient, parameter)
        self._optimizer.step()
        self._sums += sums
        self._counts.add_(1).clamp_(max=self.first.whole - 1)  # a look, or one that left the team, reads there
        counters = [counter for member in self.members for _, counter in member.counters]
        if counters:
            torch._foreach_add_(counters, 1)
        for member in self.members:
            project(member.parts.model)

    def state(self) -> list[Tensor]:
        """All that a step changes."""
        for member in self.members:
            fill_memory(member.parts.optimizer)
        return [t for member in self.members for t in member.state()]


def compiled(graph: Any, inputs: list[Any]) -> Any:
    """A traced graph as code for the device."""
    from torch._inductor.compile_fx import compile_fx  # not before it is needed: it takes seconds

    return compile_fx(graph, inputs)


class _Body(nn.Module):
    """Network and retention as one module, so that both get other tensors for the time of a call."""

    def __init__(self, model: nn.Module, retention: nn.Module | None) -> None:
        super().__init__()
        self.model, self.retention = model, retention

    def forward(self, *job: Any) -> Any:
        return objective(*job)


def _modules(member: FastStep) -> _Body:
    return _Body(member.parts.model, member.parts.retention)


@torch.no_grad()
def join(tensors: Sequence[Tensor]) -> Tensor:
    """One tensor of all, the runs first; each of them is from now on a part of it, with the strides it had."""
    first = tensors[0]
    whole = first.new_empty(0).set_(
        torch.empty(len(tensors) * first.numel(), dtype=first.dtype, device=first.device).untyped_storage(),
        0,
        (len(tensors), *first.shape),
        (first.numel(), *first.stride()),
    )
    for part, tensor in zip(whole, tensors, strict=True):
        part.copy_(tensor)
        tensor.data = part
    return whole


def _stored_as(gradient: Tensor, last: bool) -> Tensor:
    """As the weight lies in memory: channels last, or as it is."""
    return gradient.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) if last else gradient.contiguous()


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    return gradient if gradient.stride() == parameter.stride() else torch.empty_like(parameter).copy_(gradient)
