"""Networks of one's own: their forward is followed, and the engine answers as PyTorch does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lcrbnn import InputError, Retention, binarize
from lcrbnn.engine.format import to_bytes
from lcrbnn.engine.lib import Engine
from lcrbnn.export import Input, export_model
from lcrbnn.export.traced import FUNCTIONS
from lcrbnn.export.watch import last
from tests.export.nets import stirred


class Skip(nn.Module):
    """The README's block."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.hardtanh(self.norm(self.conv(x)) + self.skip(x))


class Padded(nn.Module):
    """A shortcut without weights, as many CIFAR networks have it; numbers of its own, used in three ways."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.more = (cout - cin) // 2
        self.conv1 = nn.Conv2d(cin, cout, 3, 2, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.scale = nn.Parameter(torch.rand(cout, 1, 1) + 0.5)
        self.move = nn.Parameter(torch.randn(1, cout, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm1(self.conv1(x)).clamp(-1, 1)
        out = self.norm2(self.conv2(out)) * self.scale
        out += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more), "constant", 0)
        return torch.relu(out - self.move) * 0.5 + 0.125


class Dense(nn.Module):
    """Maps behind maps; a layer that is called twice."""

    def __init__(self, cin: int, grow: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(cin, grow, 3, padding=1, bias=False)
        self.again = nn.Conv2d(grow, grow, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(grow)

    def forward(self, x: Tensor) -> Tensor:
        a = F.hardtanh(self.norm(self.first(x)))
        b = self.again(a)
        return torch.cat([x, a, b, self.again(b)], dim=1)


class Join(nn.Module):
    """Takes two maps."""

    def forward(self, x: Tensor, y: Tensor, much: float = 2.0) -> Tensor:
        return torch.add(x, y * much)


class Whole(nn.Module):
    """A network of modules in lists, with pools as functions and a view before its head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.parts = nn.ModuleList([Dense(8, 4), Padded(20, 24)])
        self.join = Join()
        self.last = nn.Conv2d(24, 24, 3, padding=1, bias=False)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1, ceil_mode=True)
        x.mean()  # of no use
        for part in self.parts:
            x = part(x)
        x = F.avg_pool2d(self.join(x, self.last(x)), 2)
        x = F.dropout(x, 0.5, training=self.training)
        return self.head(x.view(x.size(0), x.shape[1] * x.shape[2] * x.shape[3]))


class Ends(nn.Module):
    """A mean as a method, and vectors added."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.head = nn.Linear(6, 5)
        self.other = nn.Linear(6 * 64, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return self.head(x.mean([2, 3])) + self.other(torch.flatten(x, 1))


class Maps(nn.Module):
    """Its answers are a map, flattened: five classes at four places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(1)


class Writes(nn.Module):
    """Numbers written over others, which have them too then."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.act, self.same = nn.ReLU(inplace=True), nn.Identity()
        self.inner = nn.Sequential(nn.Hardtanh(inplace=True), nn.Conv2d(4, 4, 1))
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        kept = self.same(y)
        y += 1.0
        self.act(y)
        z = self.inner(kept)
        z.sub_(0.5).mul_(2.0)
        kept = kept + z
        z += kept
        answer = self.head(F.adaptive_avg_pool2d(F.relu(kept, inplace=True) + z, 1).flatten(1))
        self.act(answer + 3)
        return answer


class Affine(nn.Module):
    """Quotients, differences and numbers for all channels at once, of maps and of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.next = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.scale, self.many = nn.Parameter(torch.tensor([1.5])), nn.Parameter(torch.rand(8, 1, 1) + 0.5)
        self.wide = nn.Parameter(torch.rand(8) + 0.5)
        self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x) * self.scale
        x = self.next(1 - x / 3) / self.many
        x = torch.neg(self.many - x).div_(2)
        x = self.middle(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1) * self.wide)
        return -self.head(x / self.wide - self.scale)


def readme() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Hardtanh(), Skip(16, 32), Skip(32, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def repeated() -> nn.Module:
    act, conv = nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), act, conv, nn.BatchNorm2d(8), act, conv, act, nn.Flatten(),
        nn.Linear(512, 5),
    )  # fmt: skip


def flat_norm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 5, 4, 4), nn.Flatten(), nn.BatchNorm1d(20))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "the README's": (readme, 10),
    "lists, joins, pools": (Whole, 5),
    "vectors": (Ends, 5),
    "numbers written over others": (Writes, 5),
    "quotients and differences": (Affine, 5),
    "what occurs twice": (repeated, 5),
    "a flattened map": (Maps, 20),
    "a flattened map, normalised": (flat_norm, 20),
}


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    net = NETWORKS[name][0]()
    if len(list(net.modules())) > 5:
        binarize(net, "irnet")
    return stirred(net, torch.randn(20, 3, 8, 8)).eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_the_engine_answers_as_pytorch(name: str) -> None:
    net = made(name)
    model = export_model(net, Input((8, 8, 3), tuple(map(str, range(NETWORKS[name][1])))), name)
    images = torch.randn(40, 3, 8, 8)
    with torch.no_grad():
        theirs = net(images).numpy()
    with Engine(to_bytes(model)) as engine:
        ours = engine.run(last(images))
    close = np.abs(ours - theirs).max(1) <= 1e-4 * np.abs(theirs).max()
    assert close.mean() >= 0.9  # a sum of real numbers may lie at a threshold, and turn a sign
    assert np.abs(theirs).max() > 0.1


def test_a_module_is_not_followed_where_it_depends_on_what_it_gets() -> None:
    class Chooses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    refused(Chooses(), "the forward of Chooses cannot be traced")


REFUSED: list[tuple[Callable[[Tensor], object], str]] = [
    (lambda x: F.gelu(x), "nothing says how the function 'gelu' is written; there are "),
    (lambda x: x * x, "the function 'mul' is called in a way .*two maps are multiplied"),
    (lambda x: x - x, "the function 'sub' .*a map is taken away"),
    (lambda x: x + torch.ones(8), r"a tensor of \(8,\) is no number a channel of 3"),
    (lambda x: torch.add(x, x, alpha=2), "alpha = 2"),
    (lambda x: F.hardtanh(x, 0, 6), "cuts at 0 and 6"),
    (lambda x: x.view(-1, 3), "a view is of all numbers of an image in a row"),
    (lambda x: x[:, 1:], "of a map only every s-th pixel"),
    (lambda x: F.pad(x, (1, 1, 1, 1)), "only zero channels are put around a map"),
    (lambda x: x.mean(1), "a mean is taken over both axes"),
    (lambda x: torch.cat([x, x], 2), "only maps are joined, along their channels"),
    (lambda x: F.dropout(x, 0.5), "it is on in evaluation too"),
    (lambda x: (x, x), "gives tuple, not one map"),
    (lambda x: x + torch.randn(1), "the forward of Own draws random numbers"),
    (lambda x: x * torch.rand(3, 1, 1), "the forward of Own draws random numbers"),
    (lambda x: x * torch.ones(1, 1, 3, 1, 1), r"a tensor of \(1, 1, 3, 1, 1\) is no number a channel of 3"),
    (lambda x: x.flatten(1) + torch.ones(1, 1, 192), r"a tensor of \(1, 1, 192\) is no number a channel of 192"),
    (lambda x: 2 / x, "the function 'truediv' .*it divides by a map"),
    (lambda x: x / 0, "the function 'truediv' .*it divides by 0"),
    (lambda x: torch.div(x, 2, rounding_mode="floor"), "the function 'div' .*rounding_mode"),
    (lambda x: x * (x.size(0) // 2), "floordiv of .*the number of images.* is not known"),
    (lambda x: x.T, "the attribute 'T'"),
]


@pytest.mark.parametrize(("function", "reason"), REFUSED)
def test_what_a_forward_calls_and_nothing_writes(function: Callable[[Tensor], object], reason: str) -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> object:
            return function(x)

    refused(Own(), reason)


def refused(module: nn.Module, reason: str) -> None:
    net = nn.Sequential(nn.Identity(), module, nn.Flatten()).eval()
    with pytest.raises(InputError, match=rf"^layer '1\.?\w*' cannot be exported: .*{reason}"):
        export_model(net, Input((8, 8, 3), tuple(map(str, range(192)))), "x")


def test_hooks_that_change_what_is_computed() -> None:
    net = nn.Sequential(nn.utils.spectral_norm(nn.Conv2d(3, 5, 8)), nn.Flatten())
    described = Input((8, 8, 3), tuple("abcde"))
    with pytest.raises(InputError, match="layer '0' cannot be exported: its hook SpectralNorm may change"):
        export_model(net, described, "x")
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 5, 8)), nn.Flatten())
    with pytest.raises(InputError, match="layer '0' cannot be exported: it is parametrized"):
        export_model(net, described, "x")
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten())
    net[1].register_forward_hook(lambda module, args, output: output + 1)
    with pytest.raises(InputError, match=r"layer '1' cannot be exported: its hook .*lambda"):
        export_model(net, described, "x")


def test_a_forward_that_was_replaced() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.Flatten())
    net[0].forward = lambda x: x * 2
    with pytest.raises(InputError, match="layer '0' cannot be exported: its forward was replaced"):
        export_model(net, Input((8, 8, 3), tuple("abcde")), "x")
    ends = Ends().eval()
    ends.forward = lambda x: x * 2  # type: ignore[method-assign]  # what is tested
    with pytest.raises(InputError, match="the network cannot be exported: its forward was replaced"):
        export_model(ends, Input((8, 8, 3), tuple("abcde")), "x")


def test_a_pool_of_a_list() -> None:
    net = nn.Sequential(nn.Conv2d(3, 5, 8), nn.AdaptiveAvgPool2d([1, 1]), nn.Flatten())
    plain = nn.Sequential(net[0], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    made = [to_bytes(export_model(one, Input((8, 8, 3), tuple("abcde")), "x")) for one in (net, plain)]
    assert made[0] == made[1]


def test_the_network_itself_and_its_kinds_are_named() -> None:
    with pytest.raises(InputError, match=r"^the network cannot be exported: nothing says how a GELU is") as told:
        export_model(nn.GELU(), Input((8, 8, 3), tuple("abcde")), "x")
    assert str(told.value).count("Conv2d,") == 2  # BinaryConv2d is the other


def test_an_open_retention_only_looks() -> None:
    net = made("the README's")
    described = Input((8, 8, 3), tuple("abcdefghij"))
    plain = to_bytes(export_model(net, described, "x"))
    retention = Retention(net, blocks=["3", "4"], weight=1.0)
    assert to_bytes(export_model(net, described, "x")) == plain
    retention.close()


def test_slopes_that_do_not_fit() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(5), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InputError, match="layer '1' cannot be exported: it has 5 slopes, and gets 8 channels"):
        export_model(net, Input((8, 8, 3), tuple("abcdefgh")), "x")


def test_the_docs_name_every_function() -> None:
    text = (Path(__file__).parents[2] / "docs" / "engine.md").read_text()
    section = text[text.index("## A network of your own") :]
    for target in FUNCTIONS:
        name = target if isinstance(target, str) else target.__name__
        if name not in ("iadd", "isub", "imul", "truediv", "itruediv", "getattr", "getitem"):
            assert re.search(rf"\b{name.rstrip('_')}\b", section), name
