"""The WebAssembly engine: in node it equals the compiled engine, and in Chromium a page classifies pictures."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.worker_processes import ROOT, Worker
from lcrbnn.cli.model_arguments import load_bnn_model
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import read_model, to_bytes
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.errors import InputError
from tests.deploy.engine.random_graphs import grow_random_graph
from tests.report.chromium import CHROMIUM_PATH, Chromium
from tools.native.fuzz_engine import make_small_models
from tools.native.wasm_page import build_page, find_missing_tools, main

SCRIPT = """
import fs from 'node:fs';
import { load, middle, probabilities } from './lcrbnn.js';
const engine = await load(fs.readFileSync('engine.wasm'));
const attempt = (work) => { try { return work(); } catch (error) { return { error: error.message }; } };
const answers = JSON.parse(fs.readFileSync('asked.json')).map(({ file, images, pixels }) => attempt(() => {
  const model = engine.open(fs.readFileSync(file));
  const { shape, classes, input, kernels } = model;
  const logits = Array.from(pixels ? model.pixels(pixels) : model.run(images));
  const slow = engine.open(fs.readFileSync(file), 'scalar');
  const plain = Array.from(pixels ? slow.pixels(pixels) : slow.run(images));
  const closed = (model.close(), attempt(() => model.run(images ?? pixels)));
  const part = middle(640, 480, model), sum = probabilities(logits.slice(0, 3));
  const outputs = model.outputs.map(({ name, shape }) => [name, shape]);
  return { shape, classes, input, kernels, outputs, plain, logits, closed, part, sum };
}));
console.log(JSON.stringify(answers));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    missing_tool = find_missing_tools() or ("" if shutil.which("node") else "node")
    if missing_tool and os.environ.get("CI"):
        pytest.fail(f"{missing_tool} is missing")
    if missing_tool:
        pytest.skip(f"{missing_tool} is missing")  # CI has the compiler
    folder = tmp_path_factory.mktemp("page")
    _, model = load_bnn_model(Path("zoo:resnet20-double-irnet"))
    assert isinstance(model, bytes)
    build_page(folder, model)
    return folder


def run_in_node(page: Path, questions: list[dict[str, object]]) -> list[dict[str, object]]:
    (page / "asked.json").write_text(json.dumps(questions))
    (page / "asks.mjs").write_text(SCRIPT)
    process = subprocess.run(["node", "asks.mjs"], cwd=page, capture_output=True, text=True, check=False, timeout=120)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def test_wasm_in_node_equals_the_compiled_engine(page: Path) -> None:
    rng = np.random.default_rng(0)
    models = dict(make_small_models()) | {"zoo": read_model(page / "model.bnn")}
    models |= {f"graph {seed}": grow_random_graph(seed, 1 + seed % 2).build_model() for seed in range(60)}
    questions, expected, output_lists = [], [], []
    for index, model in enumerate(models.values()):
        (page / f"{index}.bnn").write_bytes(to_bytes(model))
        images = rng.standard_normal((3, *model.shape)).astype(np.float32)
        questions.append({"file": f"{index}.bnn", "images": images.reshape(-1).tolist()})
        with Engine(to_bytes(model), kernel="scalar") as engine:
            outputs = engine.run_outputs(images)
            expected.append(np.concatenate([value.reshape(3, -1) for value in outputs.values()], axis=1))
        output_lists.append([[name, list(value.shape[1:])] for name, value in outputs.items()])
    answers = run_in_node(page, questions)
    for (name, model), answer, logits, outputs in zip(models.items(), answers, expected, output_lists, strict=True):
        assert answer["shape"] == list(model.shape), name
        assert answer["classes"] == list(model.classes)
        assert answer["input"]["top"] == model.top
        assert answer["plain"] == answer["logits"]  # integer sums: equal logits of the portable kernel
        kernels = {
            kernel.split("/")[0]
            for node, kernel in zip(model.nodes, answer["kernels"], strict=True)
            if node.op == "bconv"
        }
        assert kernels <= {"simd128"}
        assert answer["outputs"] == outputs
        assert answer["closed"] == {"error": "this model is closed"}
        wasm_logits = np.array(answer["logits"], np.float32).reshape(logits.shape)
        assert np.abs(wasm_logits - logits).max() <= 1e-5 * max(1, np.abs(logits).max()), name
    assert len(models) > 10


def test_the_wasm_benchmark_times_calls_and_stores_the_logits(page: Path, tmp_path: Path) -> None:
    model = read_model(page / "model.bnn")
    image = np.random.default_rng(2).standard_normal(model.shape).astype(np.float32)
    (tmp_path / "image.bin").write_bytes(image.tobytes())
    job = {"runtime": "lcrbnn", "model": str(page / "model.bnn"), "threads": 1, "shape": model.shape}
    job |= {
        "engine": str(page),
        "modules": "",
        "answers": str(tmp_path / "a.bin"),
        "images": [str(tmp_path / "image.bin")],
    }
    worker = Worker(str(ROOT / "bench" / "deploy" / "wasm_worker.mjs"), job, tmp_path / "log", {}, program=("node",))
    worker.wait_until_ready(60)
    assert len(worker.request(3, 60)["ms"]) == 3
    assert "simd128" in worker.request(1, 60)["kernels"]
    worker.close()
    with Engine(page / "model.bnn", kernel="scalar") as engine:
        expected = engine.run(image[None])[0]
    assert np.allclose(np.fromfile(tmp_path / "a.bin", np.float32), expected, rtol=1e-5, atol=1e-4)


def test_wasm_in_node_runs_pixels_and_rejects_invalid_files(page: Path) -> None:
    model = read_model(page / "model.bnn")
    pixels = np.random.default_rng(1).integers(0, 256, (2, *model.shape), np.uint8)
    data = (page / "model.bnn").read_bytes()
    (page / "cut.bnn").write_bytes(data[:-1])
    (page / "turned.bnn").write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    (page / "empty.bnn").write_bytes(b"")
    flat = pixels.reshape(-1).tolist()
    questions = [{"file": f"{name}.bnn", "pixels": flat} for name in ("model", "cut", "turned", "empty")]
    good, *bad, short = run_in_node(page, [*questions, {"file": "model.bnn", "pixels": flat[:-1]}])
    with Engine(page / "model.bnn", kernel="scalar") as engine:
        logits = engine.run(pixels)
    assert np.allclose(np.reshape(good["logits"], logits.shape), logits, rtol=1e-5, atol=1e-4)
    odds = np.exp(logits[0, :3] - logits[0, :3].max())
    assert np.allclose(good["sum"], odds / odds.sum())
    assert good["part"] == [80, 0, 480, 480]
    for name, answer in zip(("cut", "turned", "empty"), bad, strict=True):
        with pytest.raises(InputError) as refused:
            Engine((page / f"{name}.bnn").read_bytes())
        assert answer["error"] in str(refused.value)
    assert short["error"] == "images must be a multiple of 3072 numbers (32 x 32 x 3); got 6143"


@pytest.fixture(scope="module")
def address(page: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(page))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


def wait_for(tab: Chromium, expression: str) -> None:
    end = time.monotonic() + 30
    while not tab.evaluate(expression):
        assert time.monotonic() < end, tab.evaluate("document.getElementById('status').textContent")
        time.sleep(0.05)


@pytest.mark.parametrize(("width", "dark"), [(390, False), (1200, True)])
def test_the_page_classifies_pictures(page: Path, address: str, tmp_path: Path, width: int, dark: bool) -> None:
    if CHROMIUM_PATH is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium")  # CI has it
    pixels = np.random.default_rng(2).integers(0, 256, (32, 32, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "noise.png")
    (tmp_path / "text.png").write_text("no picture")
    model = read_model(page / "model.bnn")
    logits = reference.run_reference(model, reference.preprocess_pixels(model, pixels[None].astype(np.float32)))[
        0
    ].astype(np.float64)
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    with Chromium() as tab:
        tab.open_page(address, width, dark=dark)
        wait_for(tab, "document.getElementById('status').textContent.startsWith('model.bnn: 57,120 bytes')")
        root = tab.send_command("DOM.getDocument")["root"]["nodeId"]
        picker = tab.send_command("DOM.querySelector", nodeId=root, selector="#pictures")["nodeId"]
        tab.send_command(
            "DOM.setFileInputFiles", nodeId=picker, files=[str(tmp_path / n) for n in ("noise.png", "text.png")]
        )
        wait_for(tab, "document.getElementById('status').textContent.startsWith('text.png: ')")
        rows = tab.evaluate("Array.from(document.querySelectorAll('tr'), line => line.textContent)")
        assert rows == [f"{model.classes[i]}{100 * probabilities[i]:.1f} %" for i in np.argsort(-probabilities)[:5]]
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        requests = {event["request"]["url"] for event in tab.list_events("Network.requestWillBeSent")}
        assert all(url.startswith((address.rsplit("/", 1)[0], "data:", "blob:")) for url in requests)
        assert not tab.list_events("Runtime.exceptionThrown")
        if folder := os.environ.get("LCRBNN_PICTURES"):
            tab.save_screenshot(Path(folder) / f"page-{width}.png")


def test_missing_build_tools_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["-o", str(tmp_path / "page")]) == 2
    assert "page: the WebAssembly engine cannot be built: clang++, wasm-ld" in capsys.readouterr().err
    assert main(["--model", "zoo:none", "-o", str(tmp_path / "other")]) == 2
    assert not (tmp_path / "other").exists()
