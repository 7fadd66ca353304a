"""Model of the time per training step on many GPUs. It combines computation, communication and reading of images.

    step    = max(compute + send, read)      communication starts after the last gradient; reading overlaps with both
    compute = images per GPU x seconds per image
    send    = min(ring, tree) for the bytes of all gradients, four per parameter
              ring = 2 (n - 1) / n bytes / bandwidth + 2 (n - 1) latency
              tree = 2 bytes / bandwidth + 2 ceil(log2 n) latency
    synchronized batch norms add 2 messages per layer, each 2 ceil(log2 n) latency
    read    = images per GPU / (cores per GPU x images per second and core)

A single process sends nothing. A ring is as fast as its slowest link: the links between GPUs inside one machine, or the
network between machines, with all network cards of a machine together. Other agreements between processes (a signal, a
checkpoint) go over a ring of the hosts and take less than 5 % of the time (lcrbnn.train.distributed.ranks).
`predict_signal_delay` returns the time until all processes know of a signal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lcrbnn.train.distributed.ranks import MIN_INTERVAL_PER_SYNC, SYNC_INTERVAL_S


@dataclass(frozen=True)
class Link:
    """A communication link between GPUs or machines, with its bandwidth and its latency."""

    bandwidth: float  # bandwidth in bytes per second
    latency: float  # latency in seconds per hop

    def ring_seconds(self, num_bytes: float, n: int) -> float:
        """Return the seconds of a ring all-reduce of this many bytes over n processes."""
        return 2 * (n - 1) / n * num_bytes / self.bandwidth + 2 * (n - 1) * self.latency

    def tree_seconds(self, num_bytes: float, n: int) -> float:
        """Return the seconds of a pipelined tree all-reduce.

        It sends more bytes per link than a ring but needs fewer hops.
        """
        return 0.0 if n == 1 else 2 * num_bytes / self.bandwidth + self.hop_seconds(n)

    def hop_seconds(self, n: int) -> float:
        """Return the total latency of all hops of a tree all-reduce, in seconds."""
        return 2 * math.ceil(math.log2(n)) * self.latency

    def send_seconds(self, num_bytes: float, n: int) -> float:
        """Return the seconds of an all-reduce with the faster of the two algorithms, ring and tree."""
        return min(self.ring_seconds(num_bytes, n), self.tree_seconds(num_bytes, n))


# These bandwidths are assumptions: 80 % of the nominal values. Nothing was measured on several machines.
NVLINK = Link(300e9, 3e-6)
NETWORKS = {
    "8 x 400 Gb/s": Link(320e9, 15e-6),
    "1 x 400 Gb/s": Link(40e9, 15e-6),
    "1 x 25 Gb/s": Link(2.5e9, 30e-6),
}
# measured with gloo between two processes of one machine (bench/records/scaling-cpu.json)
HOST_LINK = Link(1e9, 250e-6)


@dataclass(frozen=True)
class Load:
    """The work that one network causes per image."""

    num_parameters: int
    image_seconds: float  # GPU seconds per image for the forward pass, the backward pass and the weight update together
    num_norms: int  # number of batch-norm layers
    file_bytes: float  # number of bytes of an image file


@dataclass(frozen=True)
class Cluster:
    """The hardware of a cluster: machines, GPUs, CPU cores and links."""

    network: Link
    within_machine: Link = NVLINK
    gpus_per_machine: int = 8
    cores_per_gpu: int = 16  # number of CPU cores per GPU that read images
    images_per_core_s: float = 100.0  # number of images that one CPU core decodes per second

    def slowest_link(self, n: int) -> Link:
        """Return the slowest link in a ring of n GPUs, which limits the speed of the ring."""
        if n <= self.gpus_per_machine:
            return self.within_machine
        return Link(min(self.within_machine.bandwidth, self.network.bandwidth), self.network.latency)


@dataclass(frozen=True)
class Step:
    """Predicted duration of each part of a training step, in seconds."""

    num_gpus: int
    batch_size: int
    compute_s: float
    send_s: float
    sync_norms_s: float  # additional seconds for synchronized batch norms
    read_s: float

    @property
    def total_s(self) -> float:
        """Return the seconds of a training step whose batch norms are not synchronized."""
        return max(self.compute_s + self.send_s, self.read_s)

    @property
    def images_per_s(self) -> float:
        """Return the number of images per second of all GPUs together."""
        return self.batch_size / self.total_s

    @property
    def efficiency(self) -> float:
        """Return the fraction of the step time that is spent on computation."""
        return self.compute_s / self.total_s


def predict_step(load: Load, cluster: Cluster, n: int, batch_size: int) -> Step:
    """Predict the duration of a training step on n GPUs. `batch_size` is the total over all GPUs."""
    link, images_per_gpu = cluster.slowest_link(n), batch_size / n
    return Step(
        n,
        batch_size,
        compute_s=images_per_gpu * load.image_seconds,
        send_s=link.send_seconds(4 * load.num_parameters, n),
        sync_norms_s=2 * load.num_norms * link.hop_seconds(n),
        read_s=images_per_gpu / (cluster.cores_per_gpu * cluster.images_per_core_s),
    )


def predict_signal_delay(n: int) -> float:
    """Return the maximum seconds until all n processes know of a signal that one received.

    The current step is not included.
    """
    sync_s = HOST_LINK.ring_seconds(8, n)
    return max(SYNC_INTERVAL_S, MIN_INTERVAL_PER_SYNC * sync_s) + sync_s


def render_scaling_table(
    load: Load, cluster: Cluster, gpu_counts: list[int], images_per_gpu: int, num_images: int, epochs: int
) -> str:
    """Return a Markdown table with one row per number of GPUs, each with `images_per_gpu` images."""
    columns = ["GPUs", "compute, ms", "send, ms", "read, ms", "step, ms", "computing", "images/s", "hours"]
    columns += ["GPU hours", "GB/s read", "cores", "synchronized batch norms add, ms"]
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for n in gpu_counts:
        step = predict_step(load, cluster, n, images_per_gpu * n)
        times = (step.compute_s, step.send_s, step.read_s, step.total_s)
        hours = epochs * num_images / step.images_per_s / 3600
        cells = [f"{n:,}", *(f"{t * 1e3:.2f}" for t in times), f"{step.efficiency:.0%}", f"{step.images_per_s:,.0f}"]
        cells += [f"{hours:.2g}", f"{n * hours:.1f}", f"{step.images_per_s * load.file_bytes / 1e9:,.1f}"]
        cells += [f"{step.images_per_s / cluster.images_per_core_s:,.0f}", f"{step.sync_norms_s * 1e3:.2f}"]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)
