"""Small files that describe huge models: opening them takes bounded memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine.bnn_file import from_bytes, to_bytes
from lcrbnn.deploy.engine.graph import BnnModel, Node
from tests.deploy.engine.edited_files import parse_graph, replace_graph
from tests.deploy.engine.random_graphs import skip_without_engine
from tests.deploy.engine.small_models import draw_attributes, make_model, make_window

skip_without_engine()
if not Path("/proc/self/status").exists():
    pytest.skip("peak memory is read from /proc", allow_module_level=True)  # Linux only

ROOT = Path(__file__).parents[3]


def make_tall_model(count: int) -> BnnModel:
    """Return binary 1 x 1 convolutions of one channel over a map of 2^20 rows."""
    rng = np.random.default_rng(0)
    nodes = [Node("bconv", "", (i,), draw_attributes(rng, "bconv", 1, 1, make_window())) for i in range(count)]
    return make_model((2**20, 1, 1), *nodes, Node("mean", "", (count,), {}))


def make_model_with_many_signs(readers: int, side: int, out: int) -> BnnModel:
    """Return a model with thousands of border cases in one convolution, whose signs many layers read."""
    rng = np.random.default_rng(0)
    large_window = make_window((side, side), pad=(side - 1,) * 4)
    nodes = [Node("bconv", "", (0,), draw_attributes(rng, "bconv", 1, out, large_window) | {"pad_sign": 0})]
    nodes += [Node("bconv", "", (1,), draw_attributes(rng, "bconv", out, out, make_window())) for _ in range(readers)]
    last = 2
    for i in range(1, readers):
        nodes.append(Node("add", "", (last, i + 2), {}))
        last = len(nodes)
    return make_model((2 * side, 2 * side, 1), *nodes, Node("mean", "", (last,), {}))


MEASURE_SCRIPT = """
import json, sys, time
from pathlib import Path
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.errors import RunFailed

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))

before, began, said = peak(), time.process_time(), "opened"
try:
    Engine(sys.argv[1])
except RunFailed as error:
    said = str(error)
print(json.dumps({"said": said, "mib": (peak() - before) / 1024, "seconds": time.process_time() - began}))
"""


def measure_opening(data: bytes, folder: Path) -> dict[str, Any]:
    """Return message, peak memory and time of opening a file with the engine in another process."""
    path = folder / "model.bnn"
    path.write_bytes(data)
    words = [sys.executable, "-c", MEASURE_SCRIPT, str(path)]
    return json.loads(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    "model", [make_tall_model(150), make_model_with_many_signs(50, 160, 32)], ids=["tall", "many signs"]
)
def test_opening_a_small_file_needs_little_memory_and_time(model: BnnModel, tmp_path: Path) -> None:
    data = to_bytes(model)
    assert len(data) < 2**18
    usage = measure_opening(data, tmp_path)
    assert usage["said"] == "opened"
    assert usage["mib"] < 256
    assert usage["seconds"] < 2


def repeat_node(model: BnnModel, count: int, index: int = 0) -> bytes:
    """Return a file in which a node is repeated as a chain that shares its tensors."""
    data = to_bytes(model)
    graph = parse_graph(data)
    nodes = graph["nodes"]
    for node in nodes[index + 1 :]:
        node["in"] = [value + count - 1 for value in node["in"]]
    graph["nodes"] = [*nodes[:index], *(nodes[index] | {"in": [index + i]} for i in range(count)), *nodes[index + 1 :]]
    return replace_graph(graph, data)


def make_layer_model(op: str, shape: tuple[int, int, int], slide: dict[str, Any], **more: Any) -> BnnModel:
    """Return a model of one convolution with equal numbers of input and output channels, and a mean."""
    keys = draw_attributes(np.random.default_rng(0), op, shape[2], shape[2], slide) | more
    return make_model(shape, Node(op, "", (0,), keys), Node("mean", "", (1,), {}))


def make_channel_sum(channels: int, value: int) -> Node:
    """Return a node that sums all channels."""
    return Node("conv", "", (value,), {"weight": np.ones((1, 1, 1, channels), np.float16), **make_window()})


WINDOW_3X3 = make_window((3, 3), (1, 1), (1, 1, 1, 1))
SHARED_TENSOR_MODELS = {
    "bits": (make_layer_model("bconv", (4, 4, 512), WINDOW_3X3), 3000),
    "signs as numbers": (make_layer_model("wconv", (4, 4, 256), WINDOW_3X3), 3000),
    "numbers": (make_layer_model("conv", (4, 4, 128), WINDOW_3X3), 1000),
    "borders": (make_layer_model("bconv", (2**20, 1, 1), make_window((3, 1), (1, 1), (1, 0, 1, 0)), pad_sign=0), 2000),
}


@pytest.mark.parametrize("name", SHARED_TENSOR_MODELS)
def test_a_tensor_shared_by_thousands_of_nodes_stays_within_the_memory_limit(name: str, tmp_path: Path) -> None:
    """The limit is 256 MiB plus 64 times the file size (docs/format.md); Python's reader copies nothing."""
    data = repeat_node(*SHARED_TENSOR_MODELS[name])
    limit_mib = 256 + 64 * len(data) / 2**20
    assert len(data) < 2**20
    from_bytes(data, "f")
    usage = measure_opening(data, tmp_path)
    assert "too much memory" in usage["said"]
    assert usage["mib"] < limit_mib + 64  # memory of the process itself
    assert usage["seconds"] < 5


def test_maps_without_padding_need_no_border_tables(tmp_path: Path) -> None:
    usage = measure_opening(
        repeat_node(make_layer_model("bconv", (2**20, 1, 1), make_window(), pad_sign=0), 8000), tmp_path
    )
    assert usage["said"] == "opened"
    assert usage["seconds"] < 2


def test_a_shared_tensor_is_checked_only_once(tmp_path: Path) -> None:
    c, rng = 2**19, np.random.default_rng(0)
    pad_channels = Node("channels", "", (0,), {"before": 0, "after": c - 1})
    bconv = Node("bconv", "", (1,), draw_attributes(rng, "bconv", c, c, make_window(groups=c)))
    data = repeat_node(make_model((1, 1, 1), pad_channels, bconv, make_channel_sum(c, 2)), 12_000, index=1)
    start = time.process_time()
    from_bytes(data, "f")
    assert time.process_time() - start < 4
    assert measure_opening(data, tmp_path)["seconds"] < 4


def test_an_input_of_a_million_channels_needs_no_pixel_table(tmp_path: Path) -> None:
    c = 2**20
    model = BnnModel("m", (1, 1, c), 1.0, (0.0,) * c, (1.0,) * c, ("a",), (make_channel_sum(c, 0),))
    usage = measure_opening(to_bytes(model), tmp_path)
    assert "too much memory" in usage["said"]
    assert usage["mib"] < 512
