"""`lcrbnn predict`, `inspect` and `bench` on a small file; the first two load no torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lcrbnn
from lcrbnn.cli import main
from lcrbnn.data.pictures import read_picture
from lcrbnn.engine import reference
from lcrbnn.engine.format import read_model, write_model
from lcrbnn.engine.lib import Engine
from lcrbnn.export import Input, export_model
from lcrbnn.zoo import members


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    net = lcrbnn.network("resnet8-double", "irnet", classes=3).eval()
    seen = Input((8, 8, 3), ("ant", "bee", "cat"), 255, (0.5,) * 3, (0.25,) * 3)
    write_model(folder / "small.bnn", export_model(net, seen, "small"))
    (folder / "pictures").mkdir()
    draw = np.random.default_rng(0)
    for name in ("b.png", "a.png"):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / "pictures" / name)
    return folder


def test_predict_names_what_is_most_probable(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(place / "small.bnn"), str(place / "pictures"), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    model = read_model(place / "small.bnn")
    for line, name in zip(lines, ("a.png", "b.png"), strict=True):
        pixels = read_picture(place / "pictures" / name, model)[None]
        logits = reference.run(model, reference.numbers(model, pixels))[0].astype(np.float64)
        odds = np.exp(logits) / np.exp(logits).sum()
        best = np.argsort(-odds)[:2]
        shown = "  ".join(f"{model.classes[i]} {100 * odds[i]:.1f} %" for i in best)
        assert line == f"{place / 'pictures' / name}  {shown}"


@pytest.mark.parametrize("more", [{}, {"top": 1.0}, {"top": 16}])
def test_predict_and_the_engine_see_the_same_picture(
    more: dict[str, float], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = lcrbnn.network("resnet8-double", "irnet", classes=3).eval()
    seen = Input((8, 8, 3), ("ant", "bee", "cat"), mean=(0.5,) * 3, std=(0.01,) * 3, **more)
    write_model(tmp_path / "small.bnn", export_model(net, seen, "small"))
    picture = place / "pictures" / "a.png"
    assert main(["predict", str(tmp_path / "small.bnn"), str(picture), "--top", "3"]) == 0
    shown = dict(re.findall(r"(ant|bee|cat) ([\d.]+) %", capsys.readouterr().out))
    pixels = np.asarray(Image.open(picture))[None]
    with Engine(tmp_path / "small.bnn") as engine, torch.no_grad():
        logits = engine.run(pixels)[0].astype(np.float64)
        inputs = torch.from_numpy(((pixels / 255 - 0.5) / 0.01).astype(np.float32)).permute(0, 3, 1, 2)
        np.testing.assert_allclose(logits, net(inputs)[0].numpy(), rtol=1e-3, atol=1e-3)
    odds = 100 * np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert shown == {name: f"{value:.1f}" for name, value in zip(seen.classes, odds, strict=True)}


def test_inspect_shows_every_node_with_its_kernel(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(place / "small.bnn")]) == 0
    text = capsys.readouterr().out
    model = read_model(place / "small.bnn")
    lines = text.splitlines()
    assert f"{(place / 'small.bnn').stat().st_size:,} bytes" in text
    assert len([line for line in lines if " of " in line]) >= len(model.nodes)
    assert "bconv" in text
    assert "ms an image" in lines[-1]


def test_bench_prints_ratios(place: Path) -> None:
    """In a process of its own: once OpenVINO has been loaded and left, a signal may end the process that did."""
    words = [sys.executable, "-m", "lcrbnn", "bench", str(place / "small.bnn"), "--calls", "3"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.endswith("x lcrbnn's")]
    assert rows[0].startswith("lcrbnn ")
    assert "1.00 x" in rows[0]
    assert any(row.startswith("onnxruntime ") for row in rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["predict", "no.bnn", "x.png"], "no.bnn: there is no such file"),
        (["predict", "{place}/small.bnn", "{place}/none.png"], "there is no picture"),
        (["predict", "{place}/small.bnn", "{place}/pictures", "--top", "0"], "--top must be a whole number"),
        (["inspect", "{place}/pictures/a.png"], "a.png: "),
        (["bench", "{place}/small.bnn", "--threads", "0"], "--threads must be a whole number"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: list[str], sentence: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(place=place) for word in words]) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_predict_and_inspect_load_no_torch(place: Path) -> None:
    code = (
        "import sys; from lcrbnn.cli import main; "
        f"main(['predict', '{place}/small.bnn', '{place}/pictures']); main(['inspect', '{place}/small.bnn']); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_network_of_the_zoo_is_inspected_and_timed(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"zoo:{next(iter(members()))}"
    assert main(["inspect", name]) == 0
    assert "ms an image" in capsys.readouterr().out
    command = [sys.executable, "-m", "lcrbnn", "bench", name, "--calls", "1"]  # apart: a runtime may take signals over
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "x lcrbnn's" in done.stdout
    for command in ("inspect", "bench"):
        assert main([command, "zoo:none"]) == 2
