"""`lcrbnn predict`, `inspect` and `bench` with a small file; the first two do not import torch."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lcrbnn
from lcrbnn.cli.main import main
from lcrbnn.deploy.engine import reference
from lcrbnn.deploy.engine.bnn_file import read_model, write_model
from lcrbnn.deploy.engine.runtime import Engine
from lcrbnn.deploy.export.export_model import ModelInput, export_model
from lcrbnn.deploy.pictures import read_picture
from lcrbnn.zoo.zoo_index import list_members
from tests.deploy.engine.version_2_models import make_broadcast_model

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    net = lcrbnn.create_model("resnet8-double", "irnet", num_classes=3).eval()
    model_input = ModelInput((8, 8, 3), ("ant", "bee", "cat"), 255, (0.5,) * 3, (0.25,) * 3)
    write_model(folder / "small.bnn", export_model(net, model_input, "small"))
    (folder / "pictures").mkdir()
    draw = np.random.default_rng(0)
    for name in ("b.png", "a.png"):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(folder / "pictures" / name)
    return folder


def test_predict_prints_the_most_probable_classes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(folder / "small.bnn"), str(folder / "pictures"), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    model = read_model(folder / "small.bnn")
    for line, name in zip(lines, ("a.png", "b.png"), strict=True):
        pixels = read_picture(folder / "pictures" / name, model)[None]
        logits = reference.run_reference(model, reference.preprocess_pixels(model, pixels))[0].astype(np.float64)
        probabilities = np.exp(logits) / np.exp(logits).sum()
        best = np.argsort(-probabilities)[:2]
        expected = "  ".join(f"{model.classes[i]} {100 * probabilities[i]:.1f} %" for i in best)
        assert line == f"{folder / 'pictures' / name}  {expected}"


@pytest.mark.parametrize("options", [{}, {"top": 1.0}, {"top": 16}])
def test_predict_and_the_engine_preprocess_pictures_alike(
    options: dict[str, float], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = lcrbnn.create_model("resnet8-double", "irnet", num_classes=3).eval()
    model_input = ModelInput((8, 8, 3), ("ant", "bee", "cat"), mean=(0.5,) * 3, std=(0.01,) * 3, **options)
    write_model(tmp_path / "small.bnn", export_model(net, model_input, "small"))
    picture = folder / "pictures" / "a.png"
    assert main(["predict", str(tmp_path / "small.bnn"), str(picture), "--top", "3"]) == 0
    printed = dict(re.findall(r"(ant|bee|cat) ([\d.]+) %", capsys.readouterr().out))
    pixels = np.asarray(Image.open(picture))[None]
    with Engine(tmp_path / "small.bnn") as engine, torch.no_grad():
        logits = engine.run(pixels)[0].astype(np.float64)
        inputs = torch.from_numpy(((pixels / 255 - 0.5) / 0.01).astype(np.float32)).permute(0, 3, 1, 2)
        np.testing.assert_allclose(logits, net(inputs)[0].numpy(), rtol=1e-3, atol=1e-3)
    percentages = 100 * np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert printed == {name: f"{value:.1f}" for name, value in zip(model_input.classes, percentages, strict=True)}


def test_inspect_shows_every_node_with_its_kernel(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "small.bnn")]) == 0
    text = capsys.readouterr().out
    model = read_model(folder / "small.bnn")
    lines = text.splitlines()
    assert f"{(folder / 'small.bnn').stat().st_size:,} bytes" in text
    assert len([line for line in lines if " of " in line]) >= len(model.nodes)
    assert "bconv" in text
    assert "ms per image" in lines[-1]


def test_bench_prints_ratios(folder: Path) -> None:
    """Run in another process: OpenVINO can end the process that loaded it with a signal at exit."""
    command = [sys.executable, "-m", "lcrbnn", "bench", str(folder / "small.bnn"), "--calls", "3"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    rows = [line for line in process.stdout.splitlines() if line.endswith("x lcrbnn's")]
    assert rows[0].startswith("lcrbnn ")
    assert "1.00 x" in rows[0]
    assert any(row.startswith("onnxruntime ") for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "no.bnn", "x.png"], "no.bnn: the file does not exist"),
        (["predict", "{place}/small.bnn", "{place}/none.png"], "there is no picture"),
        (["predict", "{place}/small.bnn", "{place}/pictures", "--top", "0"], "--top must be a whole number"),
        (["inspect", "{place}/pictures/a.png"], "a.png: "),
        (["bench", "{place}/small.bnn", "--threads", "0"], "--threads must be a whole number"),
    ],
)
def test_user_errors_print_one_line(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(place=folder) for word in arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_predict_and_inspect_do_not_import_torch(folder: Path) -> None:
    code = (
        "import sys; from lcrbnn.cli.main import main; "
        f"main(['predict', '{folder}/small.bnn', '{folder}/pictures']); main(['inspect', '{folder}/small.bnn']); "
        "sys.exit('torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_inspect_and_bench_accept_zoo_models(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"zoo:{next(iter(list_members()))}"
    assert main(["inspect", name]) == 0
    assert "ms per image" in capsys.readouterr().out
    command = [sys.executable, "-m", "lcrbnn", "bench", name, "--calls", "1"]  # a runtime may change signal handlers
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "x lcrbnn's" in process.stdout
    for command in ("inspect", "bench"):
        assert main([command, "zoo:none"]) == 2


def test_commands_accept_models_with_several_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_broadcast_model(np.random.default_rng(0))
    path = tmp_path / "several.bnn"
    write_model(path, model)
    assert main(["inspect", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "output 3 x 4 x 3, value 6: map" in lines
    assert sum(line.startswith("output ") for line in lines) == len(model.outputs) == 4
    assert main(["predict", str(path), str(tmp_path)]) == 2
    assert "must have one output, a vector" in capsys.readouterr().err
    command = [sys.executable, "-m", "lcrbnn", "bench", str(path), "--calls", "1"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "x lcrbnn's" in process.stdout
    write_model(path, dataclasses.replace(model, outputs=model.outputs[1:] + model.outputs[:1], classes=()))
    assert main(["predict", str(path), str(tmp_path)]) == 2
    assert "has no class names" in capsys.readouterr().err


def test_the_program_prints_all_outputs(tmp_path: Path) -> None:
    program = ROOT / "build" / "lcrbnn-run"
    if not program.exists():
        pytest.skip("lcrbnn-run is not built")  # wheels contain only the library
    model = make_broadcast_model(np.random.default_rng(0))
    write_model(tmp_path / "several.bnn", model)
    images = np.random.default_rng(1).standard_normal((2, *model.shape)).astype(np.float32)
    command = [str(program), str(tmp_path / "several.bnn")]
    process = subprocess.run(command, input=images.tobytes(), capture_output=True, check=True)
    rows = np.array([line.split() for line in process.stdout.decode().splitlines()], np.float32)
    with Engine(tmp_path / "several.bnn") as engine:
        outputs = engine.run_outputs(images)
    assert np.array_equal(rows, np.concatenate([value.reshape(2, -1) for value in outputs.values()], axis=1))
