"""The engine's Python interface and the program lcrbnn-run: properties, valid and invalid arguments."""

from __future__ import annotations

import copy
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lcrbnn.deploy.engine import runtime as lib
from lcrbnn.deploy.engine.bnn_file import to_bytes
from lcrbnn.errors import InputError
from tests.deploy.engine.random_graphs import RandomGraph, skip_without_engine

skip_without_engine()
ROOT = Path(__file__).parents[3]


FORK_SCRIPT = """
import os, sys, numpy as np
from lcrbnn.deploy.engine.runtime import Engine
engine = Engine(sys.argv[1])
images = np.ones((1, *engine.shape), np.float32)
want = engine.run(images, threads=2)
child = os.fork()
same = np.array_equal(engine.run(images, threads=2), want)
if child == 0:
    os._exit(0 if same else 1)
sys.exit(0 if same and os.waitpid(child, 0)[1] == 0 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")  # os.fork is missing on Windows
def test_the_engine_runs_in_a_forked_child(small: RandomGraph, tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(to_bytes(small.build_model()))
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK_SCRIPT, str(path)], check=True, timeout=60)


def test_properties_of_an_engine(small: RandomGraph, tmp_path: Path) -> None:
    path = tmp_path / "é.bnn"
    path.write_bytes(to_bytes(small.build_model()))
    with lib.Engine(path) as engine:
        assert engine.shape == (4, 5, 8)
        assert engine.classes == tuple(f"class {i}" for i in range(5))
        assert [node.op for node in engine.nodes] == ["bconv", "relu", "mean", "conv"]
        assert engine.kernels[1] == "fused"
        assert engine.bytes["file"] == path.stat().st_size
        engine.run(small.draw_images(2))
        assert engine.times(reset=True).sum() > 0
        assert engine.times().sum() == 0
    with pytest.raises(InputError, match="closed"):
        engine.run(small.draw_images(1))


def test_valid_and_invalid_arrays(small: RandomGraph) -> None:
    engine, images = lib.Engine(to_bytes(small.build_model())), small.draw_images(4)
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
    with pytest.raises(InputError, match="node 1 is not a bconv"):
        engine.accumulators(images, 1)


def test_invalid_paths_are_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "none.bnn", tmp_path, Path("a\0b"), Path("/dev/null"), Path(__file__)):
        with pytest.raises(InputError):
            lib.Engine(path)


def test_invalid_sources_and_kernel_names_are_rejected(small: RandomGraph) -> None:
    data = to_bytes(small.build_model())
    for source in (None, 3, [data]):
        with pytest.raises(InputError, match="source must be a path or the bytes of a"):
            lib.Engine(source)  # type: ignore[arg-type]  # tested here
    with pytest.raises(InputError, match="kernel must be the name of a kernel or None; got 3"):
        lib.Engine(data, kernel=3)  # type: ignore[arg-type]  # tested here
    images = small.draw_images(1)
    for buffer in (bytearray(data), memoryview(data)):
        assert np.array_equal(lib.Engine(buffer).run(images), lib.Engine(data).run(images))


def test_unknown_kernels_are_rejected(
    small: RandomGraph, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = to_bytes(small.build_model())
    with pytest.raises(InputError, match=r"no binary kernel abacus can compute node 0; there are (\w+, )*scalar$"):
        lib.Engine(data, kernel="abacus")
    monkeypatch.setenv("LCRBNN_KERNEL", "foo")
    message = r"no binary kernel foo, which LCRBNN_KERNEL names, can compute node 0; there are (\w+, )*scalar$"
    with pytest.raises(InputError, match=message):
        lib.Engine(data)
    assert capfd.readouterr().err == ""


def pickle_and_unpickle(engine: lib.Engine) -> Any:
    return pickle.loads(pickle.dumps(engine))


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle_and_unpickle])
def test_copies_are_independent_engines(
    make_copy: Callable[[lib.Engine], lib.Engine], small: RandomGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, images = to_bytes(small.build_model()), small.draw_images(2)
    (tmp_path / "model.bnn").write_bytes(data)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    for source in (data, "model.bnn"):
        engine = lib.Engine(source, fuse=False, kernel="scalar")
        want = engine.run(images)
        monkeypatch.chdir(tmp_path / "other")  # a relative path refers to the folder of the first open
        second = make_copy(engine)
        monkeypatch.chdir(tmp_path)
        assert second.kernels == engine.kernels
        engine.close()
        assert np.array_equal(second.run(images), want)
        second.close()
        with pytest.raises(InputError, match="the engine is closed"):
            make_copy(engine)


CLOSE_SCRIPT = """
import sys, threading, numpy as np
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.errors import InputError
images = np.ones((400, *Engine(sys.argv[1]).shape), np.float32)
want = Engine(sys.argv[1]).run(images[:1])
said = []
for _ in range(100):
    engine, started = Engine(sys.argv[1]), threading.Event()
    def call():
        started.set()
        try:
            while True:
                said.append((engine.run(images) == want).all())
        except InputError as error:
            said.append(str(error) == "the engine is closed")
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait()
    engine.close()
    for thread in threads:
        thread.join()
sys.exit(0 if all(said) and len(said) >= 300 else 1)
"""


def test_an_engine_can_be_closed_while_it_runs(small: RandomGraph, tmp_path: Path) -> None:
    path = tmp_path / "model.bnn"
    path.write_bytes(to_bytes(small.build_model()))
    subprocess.run([sys.executable, "-c", CLOSE_SCRIPT, str(path)], check=True, timeout=60)


def test_lcrbnn_run_prints_the_logits(small: RandomGraph, tmp_path: Path) -> None:
    program = next((path.parent / "lcrbnn-run" for path in lib.library_candidates() if path.is_file()), Path())
    if not program.is_file() and not os.environ.get("CI"):
        pytest.skip("the program is not built")  # wheels contain only the library
    path, images = tmp_path / "model.bnn", small.draw_images(3)
    path.write_bytes(to_bytes(small.build_model()))
    command = [str(program), str(path), "--threads", "2"]
    process = subprocess.run(command, input=images.tobytes(), capture_output=True, check=True, timeout=60)
    logits = np.array([line.split() for line in process.stdout.splitlines()], np.float32)
    assert np.array_equal(logits, lib.Engine(path).run(images))
    process = subprocess.run([*command, "--repeat", "2"], input=images.tobytes(), capture_output=True, timeout=60)
    assert b"median of 2 runs of 3 images" in process.stdout
    for word in ("--help", "-h"):
        process = subprocess.run([command[0], word], capture_output=True, check=True, timeout=60)
        assert process.stdout.startswith(b"usage: lcrbnn-run model.bnn")
        assert process.stderr == b""
    for arguments, pixels in ((command[:1], b""), (command, b"1234"), ([*command, "--what"], b""), (command, b"")):
        assert subprocess.run(arguments, input=pixels, capture_output=True, timeout=60).returncode == 2
    process = subprocess.run(command, input=images.tobytes() + b"1", capture_output=True, timeout=60)
    assert process.returncode == 2
    assert f"got {images.nbytes + 1}".encode() in process.stderr
    process = subprocess.run([*command, "--repeat", "2"], input=b"", capture_output=True, timeout=60)
    assert b"median of 2 runs of 1 image," in process.stdout
    for invalid_option in (["--threads", "2x"], ["--threads", "4294967297"], ["--repeat", "abc"], ["--repeat", "-1"]):
        process = subprocess.run(
            [*command[:2], *invalid_option], input=images.tobytes(), capture_output=True, timeout=60
        )
        assert process.returncode == 2
        assert (
            f"{invalid_option[0]} must be a whole number from 1 to 1048576; got '{invalid_option[1]}'".encode()
            in process.stderr
        )
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(command, input=images.tobytes(), stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert process.returncode == 1
    assert process.stderr.startswith(b"the outputs cannot be written: ")


def test_lcrbnn_run_escapes_control_characters(small: RandomGraph, tmp_path: Path) -> None:
    program = next((path.parent / "lcrbnn-run" for path in lib.library_candidates() if path.is_file()), Path())
    if not program.is_file() and not os.environ.get("CI"):
        pytest.skip("the program is not built")  # wheels contain only the library
    unsafe_name, escaped_name = "σ\x1b]0;x\x07\x9b31m\u202e\r日", r"σ\x1b]0;x\x07\x9b31m\u202e\x0d日"
    model = small.build_model()
    path = tmp_path / f"{unsafe_name}.bnn"
    path.write_bytes(to_bytes(replace(model, nodes=tuple(replace(n, name=unsafe_name) for n in model.nodes))))
    for arguments, code in (
        ([os.fsencode(path), b"--repeat", b"1"], 0),
        ([os.fsencode(tmp_path / f"none{unsafe_name}\udc9b")], 2),
        ([os.fsencode(path), b"--threads", unsafe_name.encode() + b"\x9b"], 2),
        ([os.fsencode(path), b"--kernel", unsafe_name.encode()], 2),
    ):
        process = subprocess.run([program, *arguments], input=b"", capture_output=True, timeout=60)
        assert process.returncode == code
        output = (process.stdout + process.stderr).decode()  # must be valid UTF-8
        assert escaped_name in output
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", output)


def test_the_c_example_of_the_docs_runs(small: RandomGraph, tmp_path: Path) -> None:
    """Compile the example with the command of the docs; it prints the class with the largest logit."""
    library = lib.load_library()._name
    if not shutil.which("cc") and not os.environ.get("CI"):
        pytest.skip("there is no C compiler")  # the engine is from a wheel
    text = (ROOT / "docs" / "engine.md").read_text()
    program = text[text.index("```c\n") + 5 :].partition("```")[0]
    line = next(line for line in text.splitlines() if line.startswith("cc "))
    (tmp_path / "include").mkdir()
    shutil.copy(ROOT / "native" / "capi.h", tmp_path / "include" / "lcrbnn.h")  # as cmake installs it
    (tmp_path / "lib").mkdir()
    shutil.copy(library, tmp_path / "lib")
    (tmp_path / "first.c").write_text(program)
    words = line.replace("/usr/local", str(tmp_path)).partition("#")[0].split()
    subprocess.run([*words, "-Wall", "-Wextra", "-Werror"], cwd=tmp_path, check=True, timeout=60)
    model, pixels = tmp_path / "model.bnn", np.full((1, 4, 5, 8), 0, np.uint8)
    model.write_bytes(to_bytes(small.build_model()))
    process = subprocess.run([tmp_path / "first", model], capture_output=True, text=True, check=True, timeout=60)
    engine = lib.Engine(model)
    logits = engine.run(pixels)[0]
    assert process.stdout == f"{engine.classes[logits.argmax()]} {logits.max():.9g}\n"
    process = subprocess.run([tmp_path / "first", "none.bnn"], capture_output=True, text=True, check=False, timeout=60)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.count("\n") == 1


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LCRBNN_ENGINE", str(tmp_path / "none.so"))
    with pytest.raises(InputError, match="make engine"):
        lib.load_library()
    monkeypatch.setenv("LCRBNN_ENGINE", __file__)
    with pytest.raises(InputError, match="make engine"):
        lib.load_library()
