"""Small files that ask for much: opening one takes a bounded share of memory and time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.engine import Model, Node
from lcrbnn.engine.format import from_bytes, to_bytes
from tests.engine import made, random_keys, window
from tests.engine.files import graph_of, moved
from tests.engine.graphs import need_engine

need_engine()
if not Path("/proc/self/status").exists():
    pytest.skip("measured as Linux tells it", allow_module_level=True)  # no such file elsewhere

ROOT = Path(__file__).parents[2]


def tall(count: int) -> Model:
    """Binary convolutions of one tap over a map of 2^20 rows."""
    rng = np.random.default_rng(0)
    nodes = [Node("bconv", "", (i,), random_keys(rng, "bconv", 1, 1, window())) for i in range(count)]
    return made((2**20, 1, 1), *nodes, Node("mean", "", (count,), {}))


def many_signs(readers: int, side: int, out: int) -> Model:
    """Signs of a convolution with thousands of kinds of border, wanted in many ways."""
    rng = np.random.default_rng(0)
    wide = window((side, side), pad=(side - 1,) * 4)
    nodes = [Node("bconv", "", (0,), random_keys(rng, "bconv", 1, out, wide) | {"pad_sign": 0})]
    nodes += [Node("bconv", "", (1,), random_keys(rng, "bconv", out, out, window())) for _ in range(readers)]
    last = 2
    for i in range(1, readers):
        nodes.append(Node("add", "", (last, i + 2), {}))
        last = len(nodes)
    return made((2 * side, 2 * side, 1), *nodes, Node("mean", "", (last,), {}))


MEASURE = """
import json, sys, time
from pathlib import Path
from lcrbnn.engine.lib import Engine
from lcrbnn.errors import Failed

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))

before, began, said = peak(), time.process_time(), "opened"
try:
    Engine(sys.argv[1])
except Failed as error:
    said = str(error)
print(json.dumps({"said": said, "mib": (peak() - before) / 1024, "seconds": time.process_time() - began}))
"""


def opened(data: bytes, folder: Path) -> dict[str, Any]:
    """What the engine says to a file, with the memory and the time that it takes, in a process of its own."""
    path = folder / "model.bnn"
    path.write_bytes(data)
    words = [sys.executable, "-c", MEASURE, str(path)]
    return json.loads(subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("model", [tall(150), many_signs(50, 160, 32)], ids=["tall", "many signs"])
def test_a_small_file_takes_little_to_open(model: Model, tmp_path: Path) -> None:
    data = to_bytes(model)
    assert len(data) < 2**18
    taken = opened(data, tmp_path)
    assert taken["said"] == "opened"
    assert taken["mib"] < 256
    assert taken["seconds"] < 2


def repeated(model: Model, count: int, at: int = 0) -> bytes:
    """A file in which a node stands many times, each on the one before, with the same tensors."""
    data = to_bytes(model)
    graph = graph_of(data)
    nodes = graph["nodes"]
    for node in nodes[at + 1 :]:
        node["in"] = [value + count - 1 for value in node["in"]]
    graph["nodes"] = [*nodes[:at], *(nodes[at] | {"in": [at + i]} for i in range(count)), *nodes[at + 1 :]]
    return moved(graph, data)


def layer(op: str, shape: tuple[int, int, int], slide: dict[str, Any], **more: Any) -> Model:
    """One convolution with as many channels out as in, and a mean."""
    keys = random_keys(np.random.default_rng(0), op, shape[2], shape[2], slide) | more
    return made(shape, Node(op, "", (0,), keys), Node("mean", "", (1,), {}))


def head(channels: int, value: int) -> Node:
    """A sum of all channels."""
    return Node("conv", "", (value,), {"weight": np.ones((1, 1, 1, channels), np.float16), **window()})


THREE = window((3, 3), (1, 1), (1, 1, 1, 1))
SHARED = {
    "bits": (layer("bconv", (4, 4, 512), THREE), 3000),
    "signs as numbers": (layer("wconv", (4, 4, 256), THREE), 3000),
    "numbers": (layer("conv", (4, 4, 128), THREE), 1000),
    "borders": (layer("bconv", (2**20, 1, 1), window((3, 1), (1, 1), (1, 0, 1, 0)), pad_sign=0), 2000),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_tensor_that_thousands_of_nodes_share_takes_no_more_than_is_allowed(name: str, tmp_path: Path) -> None:
    """docs/format.md: 256 MiB and 64 times the file; read_graph and Python's reader, which copy nothing, accept it."""
    data = repeated(*SHARED[name])
    allowed = 256 + 64 * len(data) / 2**20
    assert len(data) < 2**20
    from_bytes(data, "f")
    taken = opened(data, tmp_path)
    assert "too much memory" in taken["said"]
    assert taken["mib"] < allowed + 64  # what the process needs besides
    assert taken["seconds"] < 5


def test_borders_that_no_window_crosses_are_not_walked_along(tmp_path: Path) -> None:
    taken = opened(repeated(layer("bconv", (2**20, 1, 1), window(), pad_sign=0), 8000), tmp_path)
    assert taken["said"] == "opened"
    assert taken["seconds"] < 2


def test_a_tensor_is_looked_through_once_however_many_nodes_share_it(tmp_path: Path) -> None:
    c, rng = 2**19, np.random.default_rng(0)
    grown = Node("channels", "", (0,), {"before": 0, "after": c - 1})
    one = Node("bconv", "", (1,), random_keys(rng, "bconv", c, c, window(groups=c)))
    data = repeated(made((1, 1, 1), grown, one, head(c, 2)), 12_000, at=1)
    began = time.process_time()
    from_bytes(data, "f")
    assert time.process_time() - began < 4
    assert opened(data, tmp_path)["seconds"] < 4


def test_an_image_of_a_million_channels_has_no_table_of_pixels(tmp_path: Path) -> None:
    c = 2**20
    model = Model("m", (1, 1, c), 1.0, (0.0,) * c, (1.0,) * c, ("a",), (head(c, 0),))
    taken = opened(to_bytes(model), tmp_path)
    assert "too much memory" in taken["said"]
    assert taken["mib"] < 512
