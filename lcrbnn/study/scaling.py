"""How long a step takes on many GPUs: a model of computing, sending and reading images.

    step    = max(compute + send, read)               sending waits for the last gradient; reading does not
    compute = images of a GPU x seconds an image
    send    = min(ring, tree) of the bytes of all gradients, four a parameter
              ring = 2 (n - 1) / n bytes / bandwidth + 2 (n - 1) latency
              tree = 2 bytes / bandwidth + 2 ceil(log2 n) latency
    shared batch norms add 2 messages a layer, each 2 ceil(log2 n) latency
    read    = images of a GPU / (cores of a GPU x images a second and core)

One process has nothing to send. A ring is as fast as its slowest link: inside a machine the GPUs' own, between machines
the network's, all cards of a machine together. What processes agree on besides (a signal, a save) goes over a ring of
the hosts and takes less than 5 % of their time (lcrbnn.train.pace); `heard` says after how long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lcrbnn.train.pace import SECONDS, TIMES


@dataclass(frozen=True)
class Link:
    """What messages go through: bytes and seconds."""

    bandwidth: float  # a second
    latency: float  # of one hop

    def ring(self, size: float, n: int) -> float:
        """Seconds in which n processes add up so many bytes, each giving to the next."""
        return 2 * (n - 1) / n * size / self.bandwidth + 2 * (n - 1) * self.latency

    def tree(self, size: float, n: int) -> float:
        """The same up and down a tree, in a stream: more bytes a link, fewer hops."""
        return 0.0 if n == 1 else 2 * size / self.bandwidth + self.hops(n)

    def hops(self, n: int) -> float:
        """Seconds of the hops of a tree."""
        return 2 * math.ceil(math.log2(n)) * self.latency

    def send(self, size: float, n: int) -> float:
        """The faster of both."""
        return min(self.ring(size, n), self.tree(size, n))


# Assumed, at 80 % of what is printed on them: nothing here was measured on several machines.
NVLINK = Link(300e9, 3e-6)
NETWORKS = {
    "8 x 400 Gb/s": Link(320e9, 15e-6),
    "1 x 400 Gb/s": Link(40e9, 15e-6),
    "1 x 25 Gb/s": Link(2.5e9, 30e-6),
}
HOST = Link(1e9, 250e-6)  # gloo, as two processes of one machine have it (results/bench/scaling-cpu.json)


@dataclass(frozen=True)
class Load:
    """What one network asks for."""

    parameters: int
    image_seconds: float  # of a GPU, forward, backward and update, an image
    norms: int  # batch norms
    file_bytes: float  # of an image as it is stored


@dataclass(frozen=True)
class Cluster:
    """What there is."""

    network: Link
    inside: Link = NVLINK
    gpus: int = 8  # a machine
    cores: int = 16  # a GPU, for reading images
    core_images: float = 100.0  # that one of them decodes a second

    def link(self, n: int) -> Link:
        """The slowest link of a ring of n GPUs."""
        if n <= self.gpus:
            return self.inside
        return Link(min(self.inside.bandwidth, self.network.bandwidth), self.network.latency)


@dataclass(frozen=True)
class Step:
    """Seconds of the parts of a step, and what follows."""

    n: int
    batch: int
    compute: float
    send: float
    norms: float  # what shared batch norms would add
    read: float

    @property
    def seconds(self) -> float:
        """Of a step, with local batch norms."""
        return max(self.compute + self.send, self.read)

    @property
    def rate(self) -> float:
        """Images a second, of all GPUs."""
        return self.batch / self.seconds

    @property
    def efficiency(self) -> float:
        """Of the time, what is spent computing."""
        return self.compute / self.seconds


def step(load: Load, cluster: Cluster, n: int, batch: int) -> Step:
    """A step of n GPUs on a batch, counted over all of them."""
    link, local = cluster.link(n), batch / n
    return Step(
        n,
        batch,
        compute=local * load.image_seconds,
        send=link.send(4 * load.parameters, n),
        norms=2 * load.norms * link.hops(n),
        read=local / (cluster.cores * cluster.core_images),
    )


def heard(n: int) -> float:
    """Seconds after which a signal to one of n processes is known to all, at most, but for the step in hand."""
    agreement = HOST.ring(8, n)
    return max(SECONDS, TIMES * agreement) + agreement


def table(load: Load, cluster: Cluster, sizes: list[int], local: int, images: int, epochs: int) -> str:
    """A row a number of GPUs with `local` images each: Markdown."""
    names = ("GPUs", "compute, ms", "send, ms", "read, ms", "step, ms", "of it computing", "images/s", "hours")
    rows = [f"| {' | '.join((*names, 'GPU hours', 'GB/s read', 'cores', 'shared norms add, ms'))} |", "|---" * 12 + "|"]
    for n in sizes:
        one = step(load, cluster, n, local * n)
        times = (one.compute, one.send, one.read, one.seconds)
        hours = epochs * images / one.rate / 3600
        cells = [f"{n:,}", *(f"{t * 1e3:.2f}" for t in times), f"{one.efficiency:.0%}", f"{one.rate:,.0f}"]
        cells += [f"{hours:.2g}", f"{n * hours:.1f}", f"{one.rate * load.file_bytes / 1e9:,.1f}"]
        cells += [f"{one.rate / cluster.core_images:,.0f}", f"{one.norms * 1e3:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
