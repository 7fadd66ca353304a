"""`lcrbnn export`: writes the model file of a run, and reports user errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lcrbnn.cli.main import main
from lcrbnn.data.digits import read_digits
from lcrbnn.deploy.engine.bnn_file import read_model
from lcrbnn.deploy.engine.reference import preprocess_pixels, run_reference
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.load import load_network

QUICK_OPTIONS = ["--epochs", "1", "--batch-size", "300", "--device", "cpu"]


def test_export_writes_a_file_with_the_predictions_of_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, path = tmp_path / "run", tmp_path / "new" / "model.bnn"
    assert main(["train", "digits", "--run-folder", str(folder), *QUICK_OPTIONS]) == 0
    capsys.readouterr()
    assert main(["export", str(folder), "-o", str(path)]) == 0
    output = capsys.readouterr().out
    size = path.stat().st_size
    assert output.startswith(f"{path}: {size:,} bytes; ")
    assert "weights of 1 bit" in output
    model = read_model(path)
    spec, net, _ = load_network(RunFolder(folder))
    assert model.name == f"{spec.model} {spec.method} digits"
    assert model.classes == tuple("0123456789")
    pixels = read_digits().test.images[:200]
    with torch.no_grad():
        predictions = net.eval()(torch.from_numpy(pixels.astype(np.float32) / 16)).argmax(1).numpy()
    assert (
        run_reference(model, preprocess_pixels(model, pixels.transpose(0, 2, 3, 1))).argmax(1) == predictions
    ).mean() >= 0.99
    first_bytes = path.read_bytes()
    assert main(["export", str(folder), "-o", str(path)]) == 0  # replaces the file with equal bytes
    assert path.read_bytes() == first_bytes
    assert main(["export", str(folder), "-o", str(path), "--half"]) == 0
    assert path.stat().st_size < size


def test_user_errors_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run_export(*words: str) -> str:
        assert main(["export", *words]) == 2
        return capsys.readouterr().err

    run = str(tmp_path / "run")
    assert "the output must be a .bnn or an .onnx file; got 'model.tflite'" in run_export(run, "-o", "model.tflite")
    assert f"there is no run in {run}" in run_export(run, "-o", "model.bnn")
    assert main(["train", "digits", "--run-folder", run, "--seeds", "0-1", *QUICK_OPTIONS]) == 0
    capsys.readouterr()
    assert "contains several runs, seed-0, seed-1: give the folder of one of them" in run_export(run, "-o", "model.bnn")
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "model.bnn"
    assert f"a model cannot be written to {out}" in run_export(f"{run}/seed-0", "-o", str(out))
    words = ["--method", "rbnn", "--bits", "1/32", *QUICK_OPTIONS]
    assert main(["train", "digits", "--run-folder", str(tmp_path / "two"), *words]) == 0
    capsys.readouterr()
    error = run_export(str(tmp_path / "two"), "-o", str(tmp_path / "two.bnn"))
    assert "layer 'layer1.0.conv1' cannot be exported: rbnn standardises real activations" in error
    assert not (tmp_path / "two.bnn").exists()
