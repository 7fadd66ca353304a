"""Networks of FILE.py:FUNCTION: arguments, binarization with the method of the run, and rejected files."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lcrbnn import binarize
from lcrbnn.errors import InputError
from lcrbnn.nn.layers import BinaryLayer
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.runs.run_folder import RunFolder
from lcrbnn.train.setup.build_network import build_network
from lcrbnn.train.setup.network_file import (
    NetworkReference,
    fill_in_network_digest,
    parse_reference,
    read_run_network,
    read_spec_network,
)
from lcrbnn.train.setup.spec import TrainSpec
from lcrbnn.train.setup.validate import validate_spec
from tests.train.own_networks import NETWORK, write_network

SPEC = TrainSpec(dataset="folder", num_classes=3, image_size=16)


def make_spec(path: Path, function: str = "make_model", **changes: Any) -> TrainSpec:
    return SPEC.replace(model=f"{path}:{function}", **changes)


def test_a_plain_network_is_binarized_like_binarize_with_the_weights_of_the_seed(tmp_path: Path) -> None:
    path = write_network(tmp_path)
    model = build_network(make_spec(path))
    assert [name for name, _ in iter_binary_layers(model)] == ["3.conv", "4.conv"]
    assert {layer.method.name for _, layer in iter_binary_layers(model)} == {"irnet"}
    real = build_network(make_spec(path, method="real"))
    assert not list(iter_binary_layers(real))
    state, real_state = model.state_dict(), binarize(real, "irnet").state_dict()
    assert list(state) == list(real_state)
    assert all(torch.equal(state[name], real_state[name]) for name in state)
    other = build_network(make_spec(path, seed=1)).state_dict()
    assert not torch.equal(other["0.weight"], state["0.weight"])


def test_building_a_network_leaves_the_random_state_alone(tmp_path: Path) -> None:
    spec = make_spec(write_network(tmp_path))
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build_network(spec)
    assert torch.equal(torch.rand(4), expected)


def test_functions_get_the_arguments_of_their_signature(tmp_path: Path) -> None:
    path = write_network(tmp_path)
    assert isinstance(build_network(make_spec(path, "Net", method="real")).get_submodule("layer"), nn.Linear)
    digits = TrainSpec(model=f"{path}:make_digits_model")
    assert build_network(digits)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_network_with_binary_layers_is_kept_and_its_method_must_be_that_of_the_run(tmp_path: Path) -> None:
    path = write_network(tmp_path)
    model = build_network(make_spec(path, "make_binary_model", method="bnn"))
    assert {m.method.name for m in model.modules() if isinstance(m, BinaryLayer)} == {"bnn"}
    for method in ("irnet", "real"):
        with pytest.raises(InputError, match="has binary layers of the method bnn 1/1, and the method of the run is "):
            build_network(make_spec(path, "make_binary_model", method=method))
    with pytest.raises(InputError, match="set method bnn and bits 1/1"):
        build_network(make_spec(path, "make_binary_model", method="bnn", bits="1/32"))


def test_methods_that_need_the_output_size_get_an_example(tmp_path: Path) -> None:
    model = build_network(make_spec(write_network(tmp_path), method="xnor++"))
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, 3)


def test_a_file_can_use_dataclasses_and_annotations_of_its_module(tmp_path: Path) -> None:
    header = "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass C:\n    n: int\n"
    build_network(make_spec(write_network(tmp_path, header + NETWORK)))


FAULTS: dict[str, tuple[str, str]] = {
    "a file that raises": ("x = 1\nraise ValueError('no luck')", r"raises ValueError: no luck \(line 2\)$"),
    "a file with a syntax error": ("def make_model(:", "raises SyntaxError: "),
    "a file that exits": ("import sys\nsys.exit(3)", r"raises SystemExit: 3 \(line 2\)$"),
    "a missing package": ("import no_such_package", "raises ModuleNotFoundError: .*no other files"),
    "no function": (
        "import math\ndef make_net(): pass",
        "defines no function 'make_model'; it defines make_net$",
    ),
    "a value": ("make_model = 3", "defines no function 'make_model'; it defines none$"),
    "no module": (
        "def make_model(): return 3",
        r"my_net.py:make_model must return a torch.nn.Module; it returned int$",
    ),
    "an unknown argument": (
        "def make_model(depth, num_classes): pass",
        "has the argument 'depth' without a default value; a run can only pass num_classes, in_channels, image_size$",
    ),
    "a function that raises": ("def make_model():\n    return [][1]", r"raises IndexError: .* \(line 2\)$"),
    "a wrong input": (
        "from torch import nn\ndef make_model(): return nn.Conv2d(1, 3, 3)",
        r"does not accept images of shape \(2, 3, 16, 16\): RuntimeError: ",
    ),
    "a wrong output": (
        "from torch import nn\ndef make_model(): return nn.Conv2d(3, 3, 3)",
        r"is shape \(2, 3, 14, 14\); it must have shape \(2, 3\)",
    ),
    "nothing to binarize": (
        "from torch import nn\ndef make_model(): return nn.Sequential(nn.Flatten(), nn.Linear(768, 3))",
        "my_net.py:make_model: nothing to binarize",
    ),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_faulty_file_gives_one_sentence(case: str, tmp_path: Path) -> None:
    text, message = FAULTS[case]
    with pytest.raises(InputError, match=message) as error_info:
        build_network(make_spec(write_network(tmp_path, text)))
    assert "\n" not in str(error_info.value)


def test_a_file_that_imports_its_neighbour_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_network(tmp_path, "", "helper_of_my_net.py")
    spec = make_spec(write_network(tmp_path, "import helper_of_my_net\n" + NETWORK))
    for _ in range(2):
        with pytest.raises(InputError, match=r"imports .*helper_of_my_net.py, which a run does not store"):
            build_network(spec)
    assert "helper_of_my_net" not in sys.modules


def test_references_are_told_from_names() -> None:
    assert parse_reference("resnet20-double") is None
    assert parse_reference("a/b.py:make") == NetworkReference(Path("a/b.py"), "make")
    assert parse_reference("C:/b.py:make") == NetworkReference(Path("C:/b.py"), "make")
    for model in ("b.py", "b.py:", "b.py:1x", "b.py:a.b"):
        with pytest.raises(InputError, match=r"names no function: write FILE.py:FUNCTION"):
            parse_reference(model)


def test_a_model_that_is_neither_name_nor_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no network is called 'my_net:make_model'"):
        validate_spec(TrainSpec(model="my_net:make_model"))
    with pytest.raises(InputError, match=r"missing.py cannot be read: No such file"):
        build_network(make_spec(tmp_path / "missing.py"))
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        build_network(make_spec(tmp_path / "folder.py"))


# -- the digest ------------------------------------------------------------------------------------------------------


def test_the_digest_is_filled_in_and_checked(tmp_path: Path) -> None:
    path, folder = write_network(tmp_path), RunFolder(tmp_path / "run")
    spec = fill_in_network_digest(make_spec(path), folder, None)
    assert spec.model_sha256 == hashlib.sha256(NETWORK.encode()).hexdigest()
    assert fill_in_network_digest(spec, folder, None) == spec
    assert read_spec_network(spec) == NETWORK.encode()
    path.write_text(NETWORK + "#")
    with pytest.raises(InputError, match="has the SHA-256 "):
        fill_in_network_digest(spec, folder, None)
    with pytest.raises(InputError, match="was changed: its SHA-256 is "):
        read_spec_network(spec)
    with pytest.raises(InputError, match="model_sha256 is only for a network file"):
        fill_in_network_digest(TrainSpec(model_sha256="0"), folder, None)
    assert fill_in_network_digest(TrainSpec(), folder, None) == TrainSpec()


def test_a_run_uses_its_copy_and_rejects_changes_of_either_file(tmp_path: Path) -> None:
    path, folder = write_network(tmp_path), RunFolder(tmp_path / "run")
    spec = fill_in_network_digest(make_spec(path), folder, None)
    folder.path.mkdir()
    with pytest.raises(InputError, match=r"network.py cannot be read"):
        read_run_network(folder, spec)
    folder.network_file.write_text(NETWORK)
    assert read_run_network(folder, spec) == NETWORK.encode()
    path.write_text(NETWORK + "#")
    changed_digest = hashlib.sha256((NETWORK + "#").encode()).hexdigest()
    with pytest.raises(InputError, match=f"my_net.py was changed after .*{changed_digest}.*{spec.model_sha256}"):
        read_run_network(folder, spec)
    path.unlink()
    assert read_run_network(folder, spec) == NETWORK.encode()
    folder.network_file.write_text(NETWORK + "#")
    with pytest.raises(InputError, match=f"network.py was changed: its SHA-256 is {changed_digest}"):
        read_run_network(folder, spec)
