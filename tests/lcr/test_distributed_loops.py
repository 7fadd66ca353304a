"""LCR with DistributedDataParallel and fully sharded parameters: two gloo processes, foreign networks."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp
from torch import Tensor

from tests.lcr.distributed_worker import HALVES, LOOPS, NUM_RANKS, run_all_loops, select_rank_data
from tests.lcr.foreign_networks import FOREIGN_NETWORKS, make_foreign_network
from tests.lcr.plain_loop import assert_same_gradients, compute_plain_loss, take_gradients

pytestmark = pytest.mark.slow  # starts two processes, which import torch and run 24 training loops
GRADIENT_LOOPS = [loop for loop in LOOPS if loop != "fully-shard-quantization-error"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Tensor]]:
    folder = tmp_path_factory.mktemp("distributed")
    mp.spawn(run_all_loops, args=(folder,), nprocs=NUM_RANKS)
    return torch.load(folder / "results.pt")


def compute_mean_gradients(name: str, batches: tuple[slice, ...]) -> list[Tensor]:
    """Return the mean over ranks of the gradients of a plain loop with the images of a rank."""
    model = make_foreign_network(name)
    for rank in range(NUM_RANKS):
        for batch in batches:
            images, labels = select_rank_data(rank, batch)
            (compute_plain_loss(model, FOREIGN_NETWORKS[name].blocks, images, labels) / NUM_RANKS).backward()
    return take_gradients(model)


@pytest.mark.parametrize("name", FOREIGN_NETWORKS)
@pytest.mark.parametrize("loop", GRADIENT_LOOPS)
def test_gradients_are_the_mean_of_a_plain_loop(
    results: dict[tuple[str, str], list[Tensor]], loop: str, name: str
) -> None:
    batches = HALVES if loop == "ddp-no-sync" else (slice(None),)
    assert_same_gradients(results[loop, name], compute_mean_gradients(name, batches))


def test_quantization_error_of_sharded_weights_is_rejected(results: dict[tuple[str, str], list[str]]) -> None:
    (message,) = results["fully-shard-quantization-error", "resnet"]
    assert "needs whole weights, but fully_shard leaves a part" in message
