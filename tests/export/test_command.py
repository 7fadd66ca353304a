"""`lcrbnn export`: a run becomes a file, and whatever is wrong is said in a sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.cli import main
from lcrbnn.data.digits import read_digits
from lcrbnn.engine.format import read_model
from lcrbnn.engine.reference import numbers, run
from lcrbnn.runs.folder import RunFolder
from lcrbnn.train.build import load_network

QUICK = ["--epochs", "1", "--batch", "300", "--device", "cpu"]


def test_a_run_becomes_a_file_that_answers_as_its_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, path = tmp_path / "run", tmp_path / "new" / "model.bnn"
    assert main(["train", "digits", "--run", str(folder), *QUICK]) == 0
    capsys.readouterr()
    assert main(["export", str(folder), "-o", str(path)]) == 0
    shown = capsys.readouterr().out
    size = path.stat().st_size
    assert shown.startswith(f"{path}: {size:,} bytes; ")
    assert "weights of one bit" in shown
    model = read_model(path)
    spec, net, _ = load_network(RunFolder(folder))
    assert model.name == f"{spec.model} {spec.method} digits"
    assert model.classes == tuple("0123456789")
    pixels = read_digits().test.images[:200]
    with torch.no_grad():
        answers = net.eval()(torch.from_numpy(pixels.astype(np.float32) / 16)).argmax(1).numpy()
    assert (run(model, numbers(model, pixels.transpose(0, 2, 3, 1))).argmax(1) == answers).mean() >= 0.99
    again = path.read_bytes()
    assert main(["export", str(folder), "-o", str(path)]) == 0  # over the old file, the same bytes
    assert path.read_bytes() == again
    assert main(["export", str(folder), "-o", str(path), "--half"]) == 0
    assert path.stat().st_size < size


def test_a_mistake_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(["export", *words]) == 2
        return capsys.readouterr().err

    run = str(tmp_path / "run")
    assert "a model is a .bnn or an .onnx file; got 'model.tflite'" in said(run, "-o", "model.tflite")
    assert f"there is no run in {run}" in said(run, "-o", "model.bnn")
    assert main(["train", "digits", "--run", run, "--seeds", "0-1", *QUICK]) == 0
    capsys.readouterr()
    assert "holds several runs, seed-0, seed-1, and one is exported" in said(run, "-o", "model.bnn")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "model.bnn"
    assert f"a model cannot be written to {out}" in said(f"{run}/seed-0", "-o", str(out))
    words = ["--method", "dorefa", "--bits", "1/2", *QUICK]
    assert main(["train", "digits", "--run", str(tmp_path / "two"), *words]) == 0
    capsys.readouterr()
    told = said(str(tmp_path / "two"), "-o", str(tmp_path / "two.bnn"))
    assert "layer 'layer1.0.conv1' cannot be exported: dorefa gives its activations 2 bits" in told
    assert not (tmp_path / "two.bnn").exists()
