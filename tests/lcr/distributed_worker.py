"""Two gloo processes that train foreign networks with LCR, for `test_distributed_loops.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from lcrbnn import Retention
from lcrbnn.errors import InputError
from tests.lcr.foreign_networks import FOREIGN_NETWORKS, IMAGES, LABELS, make_foreign_network
from tests.lcr.plain_loop import LCR_WEIGHT, NUM_ITERATIONS

NUM_RANKS = 2
HALVES = (slice(0, 4), slice(4, 8))  # of the eight images of a rank


def select_rank_data(rank: int, batch: slice = slice(None)) -> tuple[Tensor, Tensor]:
    return IMAGES[rank::NUM_RANKS][batch], LABELS[rank::NUM_RANKS][batch]


def create_retention(model: nn.Module, name: str, **settings: object) -> Retention:
    return Retention(
        model, blocks=FOREIGN_NETWORKS[name].blocks, power_iterations=NUM_ITERATIONS, lcr_weight=LCR_WEIGHT, **settings
    )


def backward(model: nn.Module, retention: Retention, rank: int, batch: slice = slice(None)) -> None:
    images, labels = select_rank_data(rank, batch)
    (F.cross_entropy(model(images), labels) + retention.loss()).backward()


def run_ddp(name: str, rank: int, **settings: bool) -> list[Tensor]:
    model = make_foreign_network(name)
    wrapper = DistributedDataParallel(model, **settings)
    backward(wrapper, create_retention(wrapper, name), rank)
    return collect_gradients(model)


def run_ddp_with_validation(name: str, rank: int) -> list[Tensor]:
    """Run a validation pass between the forward pass and the loss."""
    model = make_foreign_network(name)
    wrapper = DistributedDataParallel(model)
    retention = create_retention(wrapper, name)
    images, labels = select_rank_data(rank)
    cross_entropy = F.cross_entropy(wrapper(images), labels)
    wrapper.eval()
    with torch.no_grad():
        wrapper(images[:3])
    wrapper.train()
    (cross_entropy + retention.loss()).backward()
    return collect_gradients(model)


def run_no_sync(name: str, rank: int) -> list[Tensor]:
    model = make_foreign_network(name)
    wrapper = DistributedDataParallel(model)
    retention = create_retention(wrapper, name)
    with wrapper.no_sync():
        backward(wrapper, retention, rank, HALVES[0])
    backward(wrapper, retention, rank, HALVES[1])
    return collect_gradients(model)


def shard_blocks_and_network(name: str) -> nn.Module:
    model, mesh = make_foreign_network(name), init_device_mesh("cpu", (NUM_RANKS,))
    for block in FOREIGN_NETWORKS[name].blocks:
        fully_shard(model.get_submodule(block), mesh=mesh)
    return fully_shard(model, mesh=mesh)


def run_fully_shard(name: str, rank: int) -> list[Tensor]:
    model = shard_blocks_and_network(name)
    backward(model, create_retention(model, name), rank)
    return [torch.zeros(1) if p.grad is None else p.grad.full_tensor() for p in model.parameters()]


def run_fsdp(name: str, rank: int) -> list[Tensor]:
    model = FullyShardedDataParallel(make_foreign_network(name), device_id=torch.device("cpu"), use_orig_params=True)
    backward(model, create_retention(model, name), rank)
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        return collect_gradients(model)


def collect_gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros(1) if p.grad is None else p.grad.clone() for p in model.parameters()]


def read_quantization_error_message(name: str, rank: int) -> list[str]:
    model = shard_blocks_and_network(name)
    retention = create_retention(model, name, quantization_error_weight=0.5)
    model(select_rank_data(rank)[0])
    try:
        retention.loss()
    except InputError as error:
        return [str(error)]
    return []


LOOPS: dict[str, Callable[[str, int], Sequence[Tensor | str]]] = {
    "ddp": lambda name, rank: run_ddp(name, rank),
    "ddp-unused": lambda name, rank: run_ddp(name, rank, find_unused_parameters=True),
    "ddp-static": lambda name, rank: run_ddp(name, rank, static_graph=True),
    "ddp-validation": run_ddp_with_validation,
    "ddp-no-sync": run_no_sync,
    "fully-shard": run_fully_shard,
    "fsdp": run_fsdp,
    "fully-shard-quantization-error": read_quantization_error_message,
}


def run_all_loops(rank: int, folder: Path) -> None:
    """Save the gradients of every loop and network to a file, by the names of both."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=NUM_RANKS)
    results = {(loop, name): list(run(name, rank)) for loop, run in LOOPS.items() for name in FOREIGN_NETWORKS}
    if rank == 0:
        torch.save(results, folder / "results.pt")
    dist.destroy_process_group()
