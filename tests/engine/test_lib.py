"""The compiled engine against the plain one, node by node, and against files that mean harm."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from lcrbnn.bits import pack
from lcrbnn.engine import Bits, Model, Node, lib, reference
from lcrbnn.engine.check import OPS as TABLE
from lcrbnn.engine.format import from_bytes, to_bytes
from lcrbnn.errors import Failed, InputError

try:
    lib.library()
except InputError as missing:
    if os.environ.get("CI"):
        raise
    pytest.skip(str(missing), allow_module_level=True)  # without a compiler; CI has one

Shape = tuple[int, int, int]


class Build:
    """A graph that grows by random nodes, each of which fits the value it takes."""

    def __init__(self, seed: int, shape: Shape | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape: Shape = shape or (self.whole(1, 9), self.whole(1, 11), int(self.rng.choice([1, 3, 8, 20, 64])))
        self.shapes: list[Shape] = [self.shape]
        self.nodes: list[Node] = []

    def whole(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def floats(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self.rng.standard_normal(shape)).astype(np.float32)

    def add(self, op: str, inputs: tuple[int, ...], shape: Shape, **keys: object) -> int:
        self.nodes.append(Node(op, f"{op} {len(self.nodes)}", inputs, keys))
        self.shapes.append(shape)
        return len(self.nodes)

    def window(self, h: int, w: int, *, simple: bool = False) -> tuple[dict[str, tuple[int, ...]], int, int]:
        """A random window over a map of h × w, and the pixels it makes."""
        while True:
            kernel = (self.whole(1, 3), self.whole(1, 3))
            stride, dilation = (self.whole(1, 2), self.whole(1, 2)), (self.whole(1, 2), self.whole(1, 2))
            pad = tuple(self.whole(0, 2) for _ in range(4))
            if simple:
                dilation, pad = (1, 1), (0, 0, min(pad[2], kernel[0] - 1), min(pad[3], kernel[1] - 1))
            sizes = [
                (size + pad[i] + pad[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1
                for i, size in enumerate((h, w))
            ]
            if simple and any((sizes[i] - 1) * stride[i] >= size for i, size in enumerate((h, w))):
                continue
            if min(sizes) >= 1:
                return {"kernel": kernel, "stride": stride, "pad": pad, "dilation": dilation}, sizes[0], sizes[1]

    def conv(self, op: str, value: int) -> int:
        h, w, c = self.shapes[value]
        keys, y, x = self.window(h, w)
        groups = int(self.rng.choice([g for g in (1, 2, 4) if c % g == 0]))
        out = groups * int(self.rng.choice([1, 3, 8, 17, 64 // groups]))
        taps = keys["kernel"][0] * keys["kernel"][1] * c // groups
        more: dict[str, object] = {}
        if op == "conv":
            half = self.rng.random() < 0.5
            weight = self.floats(out, *keys["kernel"], c // groups).astype(np.float16 if half else np.float32)
            more["weight"] = weight
            if self.rng.random() < 0.5:
                more["bias"] = self.floats(out)
        else:
            more["weight"] = Bits(pack(self.rng.random((out, taps)) < 0.5), taps)
            more |= {"a": self.floats(out, scale=0.2), "b": self.floats(out, scale=0.2)}
            if self.rng.random() < 0.3:
                more["spatial"] = self.floats(y, x, int(self.rng.choice([1, out])))
        if op == "bconv":
            more["threshold"] = "mean" if self.rng.random() < 0.2 else self.floats(c, scale=0.2)
            more["pad_sign"] = self.whole(-1, 1)
        return self.add(op, (value,), (y, x, out), **more, **keys, groups=groups)

    def random(self, op: str, value: int) -> int:
        h, w, c = shape = self.shapes[value]
        if op in ("conv", "bconv", "wconv"):
            return self.conv(op, value)
        if op == "affine":
            return self.add(op, (value,), shape, a=self.floats(c), b=self.floats(c))
        if op == "prelu":
            return self.add(op, (value,), shape, slope=self.floats(c))
        if op == "shift":
            return self.add(op, (value,), shape, b=self.floats(c))
        if op == "add":
            same = [i for i, other in enumerate(self.shapes) if other == shape]
            return self.add(op, (value, int(self.rng.choice(same))), shape)
        if op in ("maxpool", "avgpool"):
            keys, y, x = self.window(h, w, simple=True)
            del keys["dilation"]
            return self.add(op, (value,), (y, x, c), **keys)
        if op == "subsample":
            sy, sx = self.whole(1, 3), self.whole(1, 3)
            return self.add(op, (value,), (-(-h // sy), -(-w // sx), c), stride=(sy, sx))
        if op == "channels":
            before, after = self.whole(0, 5), self.whole(0, 5)
            return self.add(op, (value,), (h, w, before + c + after), before=before, after=after)
        made = {"mean": (1, 1, c), "flatten": (1, 1, h * w * c)}.get(op, shape)
        return self.add(op, (value,), made)

    def model(self, classes: int = 5) -> Model:
        """End the graph: what nobody used becomes a vector, and their sum is the answer."""
        used = {value for node in self.nodes for value in node.inputs}
        total = None
        for value in [v for v in range(len(self.shapes)) if v not in used]:
            c = self.shapes[value][2]
            mean = self.add("mean", (value,), (1, 1, c))
            keys = {"kernel": (1, 1), "stride": (1, 1), "pad": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
            weight = self.floats(classes, 1, 1, c)
            score = self.add("conv", (mean,), (1, 1, classes), weight=weight, **keys)
            total = score if total is None else self.add("add", (total, score), (1, 1, classes))
        c = self.shape[2]
        names = tuple(f"class {i}" for i in range(classes))
        return Model("test", self.shape, 255.0, (0.5,) * c, (0.25,) * c, names, tuple(self.nodes))

    def images(self, n: int) -> np.ndarray:
        return self.floats(n, *self.shape)


OPS = list(TABLE)
POINTWISE = ("affine", "add", "hardtanh", "relu", "prelu", "shift")
SUMS = {"conv", "wconv", "mean", "avgpool", "softmax"}  # where the order of a sum, or an exponential, is free


def grown(seed: int) -> Build:
    """A random graph: often the last value goes on, binary convolutions and what follows them come often."""
    build = Build(seed)
    weights = np.array([6 if op == "bconv" else 3 if op in POINTWISE else 0.3 if op == "flatten" else 1 for op in OPS])
    for _ in range(build.whole(3, 14)):
        last = len(build.shapes) - 1
        value = last if build.rng.random() < 0.75 else build.whole(0, last)
        build.random(str(build.rng.choice(OPS, p=weights / weights.sum())), value)
    return build


def close(op: str, got: np.ndarray, want: np.ndarray) -> bool:
    if op not in SUMS:
        return bool(np.array_equal(got, want, equal_nan=True))
    scale = np.abs(want).max(initial=1e-3)
    return bool(np.allclose(got, want, rtol=1e-4, atol=1e-5 * scale))


def agree(model: Model, images: np.ndarray, kernel: str | None = None) -> None:
    """Every node, given the engine's own inputs, makes what the reference makes; and all ways to run are one."""
    data = to_bytes(model)
    plain, fused = lib.Engine(data, fuse=False, kernel=kernel), lib.Engine(data, kernel=kernel)
    values = [images, *(fused.value(images, i) for i in range(len(model.nodes)))]
    for i, node in enumerate(model.nodes):
        inputs = [values[v] for v in node.inputs]
        if node.op == "bconv":
            want = reference.accumulators(node, inputs[0])
            assert np.array_equal(fused.accumulators(images, i), want), node.name
        with np.errstate(all="ignore"):
            want = reference._OPS[node.op](node, *inputs)
        assert values[i + 1].shape == want.shape
        assert close(node.op, values[i + 1], want), node.name
    answer = values[-1].reshape(len(images), -1)
    assert np.array_equal(fused.run(images), answer)
    assert np.array_equal(fused.run(images, threads=2), answer)
    assert np.array_equal(fused.run(images[:1], threads=2), answer[:1])
    assert np.array_equal(plain.run(images, threads=3), answer)


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(seed: int) -> None:
    build = grown(seed)
    agree(build.model(), build.images(3), kernel="scalar" if seed % 5 == 0 else None)


@pytest.mark.parametrize("op", OPS)
def test_each_op(op: str) -> None:
    for seed in range(4):
        build = Build(seed)
        build.random(op, 0)
        build.random("shift", 1)
        agree(build.model(), build.images(2))


def chain(build: Build, *ops: str) -> None:
    for op in ops:
        build.random(op, len(build.shapes) - 1)


@pytest.mark.parametrize("pad_sign", [-1, 0, 1])
def test_signs_alone_are_compares_of_counts(pad_sign: int) -> None:
    build = Build(1, (6, 7, 40))
    keys = {"kernel": (3, 3), "stride": (1, 1), "pad": (1, 1, 1, 1), "dilation": (1, 1), "groups": 1}
    for channels in (40, 72, 24):
        out, last = {40: 72, 72: 24, 24: 16}[channels], len(build.shapes) - 1
        weight = Bits(pack(build.rng.random((out, 9 * channels)) < 0.5), 9 * channels)
        numbers = {"threshold": build.floats(channels), "a": build.floats(out), "b": build.floats(out)}
        made = build.add("bconv", (last,), (6, 7, out), weight=weight, pad_sign=pad_sign, **numbers, **keys)
        build.random("affine", made)
        build.random("hardtanh", made + 1)
    model = build.model()
    assert [k for k in lib.Engine(to_bytes(model)).kernels if k.endswith("/limits")]
    agree(model, build.images(3))


def test_odd_numbers_in_scales() -> None:
    """Infinite and NaN scales: a sign is still what the formula gives."""
    build = Build(3, (4, 4, 16))
    chain(build, "bconv", "affine", "bconv", "relu")
    for node in build.nodes[:2]:
        numbers = node.keys["a"]
        assert isinstance(numbers, np.ndarray)
        numbers[: min(3, len(numbers))] = [np.inf, np.nan, -0.0][: min(3, len(numbers))]
    agree(build.model(), build.images(2))


def test_numbers_that_are_none_pass() -> None:
    build = Build(4, (5, 5, 8))
    chain(build, "affine", "hardtanh", "relu", "prelu", "maxpool", "bconv")
    images = build.images(2)
    images[0, 0, 0, :3] = [np.nan, np.inf, -np.inf]
    agree(build.model(), images)


@pytest.mark.parametrize("kernel", [None, "scalar"])
@pytest.mark.parametrize("op", ["conv", "wconv"])
def test_a_pool_takes_rows_as_they_are_made(op: str, kernel: str | None) -> None:
    for seed in range(4):
        build = Build(seed, (19, 23, 3))
        chain(build, op, "affine", "prelu")
        h, w, c = build.shapes[-1]
        keys = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1, 1, 1)}
        pool = build.add("maxpool", (3,), ((h - 1) // 2 + 1, (w - 1) // 2 + 1, c), **keys)
        chain(build, "bconv")
        images, model = build.images(2), build.model()
        agree(model, images, kernel=kernel)
        engine, plain = (lib.Engine(to_bytes(model), fuse=fuse, kernel=kernel) for fuse in (True, False))
        assert engine.kernels[pool - 1] == "fused"
        images[0, 3, 4] = np.nan
        assert np.array_equal(engine.run(images, threads=4), plain.run(images), equal_nan=True)


def test_pixels_become_numbers() -> None:
    build = grown(7)
    model = build.model()
    pixels = build.rng.integers(0, 256, (3, *model.shape)).astype(np.uint8)
    engine = lib.Engine(to_bytes(model))
    assert np.array_equal(engine.run(pixels), engine.run(reference.numbers(model, pixels)))


def test_many_calls_at_a_time() -> None:
    build = grown(11)
    engine, images = lib.Engine(to_bytes(build.model())), build.images(5)
    want = engine.run(images)
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(20):
            if not np.array_equal(engine.run(images, threads=1 + index % 3), want):
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


FORKED = """
import os, sys, numpy as np
from lcrbnn.engine.lib import Engine
engine = Engine(sys.argv[1])
images = np.ones((1, *engine.shape), np.float32)
want = engine.run(images, threads=2)
child = os.fork()
same = np.array_equal(engine.run(images, threads=2), want)
if child == 0:
    os._exit(0 if same else 1)
sys.exit(0 if same and os.waitpid(child, 0)[1] == 0 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")  # Windows has none
def test_a_forked_child_has_threads_of_its_own(small: Build, tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(to_bytes(small.model()))
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED, str(path)], check=True, timeout=60)


# --- the Python side --------------------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Build:
    build = Build(5, (4, 5, 8))
    chain(build, "bconv", "relu")
    return build


def test_what_it_says_of_itself(small: Build, tmp_path: Path) -> None:
    path = tmp_path / "é.bnn"
    path.write_bytes(to_bytes(small.model()))
    with lib.Engine(path) as engine:
        assert engine.shape == (4, 5, 8)
        assert engine.classes == tuple(f"class {i}" for i in range(5))
        assert [node.op for node in engine.nodes] == ["bconv", "relu", "mean", "conv"]
        assert engine.kernels[1] == "fused"
        assert engine.bytes["file"] == path.stat().st_size
        engine.run(small.images(2))
        assert engine.times(reset=True).sum() > 0
        assert engine.times().sum() == 0
    with pytest.raises(InputError, match="closed"):
        engine.run(small.images(1))


def test_arrays_it_takes_and_refuses(small: Build) -> None:
    engine, images = lib.Engine(to_bytes(small.model())), small.images(4)
    assert np.array_equal(engine.run(images[::-2]), engine.run(images)[::-2])
    assert np.array_equal(engine.run(np.asfortranarray(images)), engine.run(images))
    assert engine.run(images[:0]).shape == (0, 5)
    wrong = images.astype(np.float64), images[0], images[..., :7], images.astype(">f4"), [1], None
    for array in wrong:
        with pytest.raises(InputError, match=r"images must be float32 or uint8 \(n, 4, 5, 8\); got"):
            engine.run(array)
    for threads in (0, 257, 1.0, True):
        with pytest.raises(InputError, match="threads must be"):
            engine.run(images, threads=threads)
    for node in (-1, 4, "0"):
        with pytest.raises(InputError, match="node must be"):
            engine.value(images, node)
    with pytest.raises(InputError, match="node 1 is no bconv"):
        engine.accumulators(images, 1)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    for path in (tmp_path / "none.bnn", tmp_path, Path("a\0b"), Path("/dev/null"), Path(__file__)):
        with pytest.raises(InputError):
            lib.Engine(path)


def test_a_kernel_that_is_not_there(small: Build) -> None:
    with pytest.raises(InputError, match="no binary kernel abacus"):
        lib.Engine(to_bytes(small.model()), kernel="abacus")


def test_the_program(small: Build, tmp_path: Path) -> None:
    program = next((path.parent / "lcrbnn-run" for path in lib.places() if path.is_file()), Path())
    if not program.is_file() and not os.environ.get("CI"):
        pytest.skip("the program is not built")  # a wheel has the library alone
    path, images = tmp_path / "model.bnn", small.images(3)
    path.write_bytes(to_bytes(small.model()))
    command = [str(program), str(path), "--threads", "2"]
    done = subprocess.run(command, input=images.tobytes(), capture_output=True, check=True, timeout=60)
    logits = np.array([line.split() for line in done.stdout.splitlines()], np.float32)
    assert np.array_equal(logits, lib.Engine(path).run(images))
    done = subprocess.run([*command, "--repeat", "2"], input=images.tobytes(), capture_output=True, timeout=60)
    assert b"median of 2 runs of 3 images" in done.stdout
    for arguments, pixels in ((command[:1], b""), (command, b"1234"), ([*command, "--what"], b""), (command, b"")):
        assert subprocess.run(arguments, input=pixels, capture_output=True, timeout=60).returncode == 2


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LCRBNN_ENGINE", str(tmp_path / "none.so"))
    with pytest.raises(InputError, match="make engine"):
        lib.library()
    monkeypatch.setenv("LCRBNN_ENGINE", __file__)
    with pytest.raises(InputError, match="make engine"):
        lib.library()


# --- files that mean harm ---------------------------------------------------------------------------------------------


def signed(data: bytes) -> bytes:
    """The bytes with a checksum that fits, so that what lies behind it is reached."""
    body = data[:-32]
    return body + hashlib.sha256(body).digest()


def rebuilt(data: bytes, text: bytes) -> bytes:
    """The file with another graph, all offsets of tensors moved along."""
    start, size = struct.unpack_from("<QQ", data, 40)
    place = -(-(64 + len(text)) // 64) * 64
    tensors = data[start : start + size]
    head = data[:16] + struct.pack("<QQQQQQ", place + size + 32, 64, len(text), place, size, 0)
    return signed(head + text + bytes(place - 64 - len(text)) + tensors + bytes(32))


def graph_of(data: bytes) -> dict:
    return json.loads(data[64 : 64 + struct.unpack_from("<Q", data, 32)[0]])


def with_graph(data: bytes, graph: dict) -> bytes:
    start = struct.unpack_from("<Q", data, 40)[0]
    first = [entry["offset"] - start if isinstance(entry.get("offset"), int) else None for entry in graph["tensors"]]
    text, place = b"", 0
    while place != -(-(64 + len(text)) // 64) * 64:
        place = -(-(64 + len(text)) // 64) * 64
        for entry, offset in zip(graph["tensors"], first, strict=True):
            if offset is not None:
                entry["offset"] = offset + place
        text = json.dumps(graph).encode()
    return rebuilt(data, text)


def refused(data: bytes, match: str = ".") -> None:
    with pytest.raises(InputError, match=match):
        lib.Engine(data)


def test_damage_is_seen(small: Build) -> None:
    data = to_bytes(small.model())
    for cut in (0, 7, 8, 63, 95, 96, len(data) - 1):
        refused(data[:cut])
    refused(data + b"\0", "says")
    for at in (70, len(data) - 40, len(data) - 1):
        refused(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], "checksum")


HEADERS = {
    "version": (8, "<I", 2),
    "flags": (12, "<I", 1),
    "says": (16, "<Q", 2**63),
    "byte 64": (24, "<Q", 128),
    "16 MiB": (32, "<Q", 2**60),
    "multiple of 64": (40, "<Q", 64),
    "add up": (48, "<Q", 2**64 - 64),
    "must be zero": (56, "<Q", 1),
}


@pytest.mark.parametrize("match", HEADERS)
def test_headers(small: Build, match: str) -> None:
    at, kind, value = HEADERS[match]
    data = bytearray(to_bytes(small.model()))
    struct.pack_into(kind, data, at, value)
    refused(signed(bytes(data)), match)


TEXTS = {
    "nested deeper": b"[" * 17 + b"]" * 17,
    "too large": b"[1e999]",
    "twice": b'{"a":1,"a":2}',
    "bad UTF-8": b'["\xff"]',
    "surrogate": b'["\\ud800"]',
    "zero in a text": b'["\\u0000"]',
    "unknown word": b"[nul]",
    "bad number": b"[-]",
    "no comma": b"[01]",
    "control": b'["\n"]',
    "more after": b"{} {}",
    "early end": b"[1",
    "object": b"[]",
    "escape": b'["\\x"]',
    "without end": b'["a',
    "no colon": b'{"a" 1}',
    "no text": b"{1:2}",
}


@pytest.mark.parametrize("match", TEXTS)
def test_texts(small: Build, match: str) -> None:
    refused(rebuilt(to_bytes(small.model()), TEXTS[match]), match)


def test_graphs_with_one_fault(small: Build) -> None:
    """Each value of the graph replaced by values it must not have: refused, or at least no crash."""
    data = to_bytes(small.model())
    evil = (None, -1, 0, 2**20 + 1, 2**53, 1.5, "x", [], {}, [2**20] * 4, [0, 0], [1, 1], True)
    tried = accepted = 0

    def walk(at: object) -> None:
        nonlocal tried, accepted
        items = list(at.items()) if isinstance(at, dict) else list(enumerate(at)) if isinstance(at, list) else []
        for key, old in items:
            for value in evil:
                at[key] = value  # type: ignore[index]  # a dict or a list, whichever is walked
                tried += 1
                try:
                    engine = lib.Engine(with_graph(data, graph))
                    engine.run(np.zeros((1, *engine.shape), np.float32))
                    accepted += 1
                except (InputError, TypeError, AttributeError):
                    pass
            at[key] = old  # type: ignore[index]  # a dict or a list, whichever is walked
            walk(old)

    graph = graph_of(data)
    walk(graph)
    assert tried > 500
    assert accepted < tried / 5  # other names, means and the like


def test_both_readers_refuse_the_same(small: Build) -> None:
    """Whole numbers of a graph moved a little or far: what NumPy's reader takes the engine takes, and nothing else."""
    rng = np.random.default_rng(1)
    far = (0, 1, 2, 3, 7, 64, 65535, 2**20, 2**20 + 1, 2**31, 2**53, -1, 0.5)
    taken = 0
    for seed in range(60):
        data = to_bytes(grown(seed).model())
        for _ in range(10):
            graph = graph_of(data)
            node = graph["nodes"][rng.integers(len(graph["nodes"]))]
            key = str(rng.choice([key for key in node if key not in ("op", "name")]))
            at, index = (node[key], int(rng.integers(len(node[key])))) if isinstance(node[key], list) else (node, key)
            near = at[index] + int(rng.choice([-1, 1])) if isinstance(at[index], int) else 1
            at[index] = near if rng.random() < 0.6 else far[rng.integers(len(far))]
            changed = with_graph(data, graph)
            try:
                from_bytes(changed, "")
            except InputError:
                refused(changed)
                continue
            taken += 1
            with contextlib.suppress(Failed):  # too much memory
                lib.Engine(changed)
    assert taken > 20


def test_files_that_ask_for_too_much() -> None:
    """Small files, all sizes right, that would need terabytes."""
    build = Build(0, (1, 1, 1))
    far = 2**20
    pad = {"kernel": (1, 1), "stride": (far, far), "pad": (far,) * 4, "dilation": (1, 1), "groups": 1}
    one = {"a": build.floats(1), "b": build.floats(1), "weight": Bits(pack(np.ones((1, 1))), 1)}
    build.add("bconv", (0,), (3, 3, 1), threshold=build.floats(1), pad_sign=0, **one, **pad)
    with pytest.raises(Failed, match="too much memory"):
        lib.Engine(to_bytes(build.model()))
    build = Build(0, (1, 1, 1))
    wide = {"kernel": (1, 1), "stride": (1, 1), "pad": (8191, 8191, 8192, 8192), "dilation": (1, 1), "groups": 1}
    values = [build.add("wconv", (0,), (16384, 16384, 1), **one, **wide) for _ in range(12)]
    for value in values:
        build.random("shift", value)
    with pytest.raises(Failed, match="too much memory"):
        lib.Engine(to_bytes(build.model()))


def test_unknown_and_missing_keys(small: Build) -> None:
    data = to_bytes(small.model())
    for place in ((), ("input",), ("tensors", 0), ("nodes", 0)):
        graph = graph_of(data)
        at = graph
        for key in place:
            at = at[key]
        at["colour"] = 1
        refused(with_graph(data, graph), "unknown key")
        del at["colour"]
        for key in list(at):
            old = at.pop(key)
            if "tensors" in graph:
                with pytest.raises(InputError):
                    lib.Engine(with_graph(data, graph))
            at[key] = old


def test_flipped_bytes_behind_a_right_checksum() -> None:
    """Random damage that the checksum does not see: no crash, whatever the answer."""
    rng = np.random.default_rng(0)
    data = to_bytes(grown(2).model())
    end = struct.unpack_from("<Q", data, 40)[0]
    for _ in range(2000):
        bad = bytearray(data)
        for at in rng.integers(8, end, rng.integers(1, 4)):
            bad[at] = rng.integers(0, 256)
        try:
            engine = lib.Engine(signed(bytes(bad)))
        except InputError:
            continue
        if np.prod(engine.shape) < 1e5 and sum(engine.bytes.values()) < 1e8:
            engine.run(np.zeros((1, *engine.shape), np.float32))
