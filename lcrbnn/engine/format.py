"""The file model.bnn: a model to bytes and back, as docs/format.md says."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lcrbnn.engine import Bits as Bits
from lcrbnn.engine import Model as Model
from lcrbnn.engine import Node as Node
from lcrbnn.engine.check import COUNT, DIMENSION, OPS, Tensor, bits_behind, shapes, tensor_type
from lcrbnn.errors import InputError

MAGIC = b"\x89BNN\r\n\x1a\n"
VERSION = 1
FILE = 2**31  # the most bytes of a file
GRAPH = 2**24  # the most bytes of a graph
DIGITS = 64  # a number of the graph has fewer characters

_HEADER = struct.Struct("<8sIIQQQQQQ")  # magic, version, flags, size, offset and bytes of graph and tensors, zero
_ALIGN = 64
_SUM = 32  # bytes of the checksum
_NUMPY: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bits": np.dtype(np.uint8)}
_KEYS = {
    "graph": ("writer", "name", "input", "classes", "tensors", "nodes"),
    "input": ("shape", "top", "mean", "std"),
    "tensor": ("type", "shape", "offset", "bytes"),
}
_OPTIONAL = {"input": ("margin",)}


def write_model(path: Path | str, model: Model) -> None:
    """Write a file whole or not at all, and its folder where there is none.

    InputError if the model or the path is wrong, OSError if the disk does not take it.
    """
    path, data = file_path(path), to_bytes(model)
    make_place(path)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def file_path(given: object) -> Path:
    """The path that was given for a file; InputError if it is none."""
    if not isinstance(given, str | os.PathLike) or "\0" in os.fsdecode(given):
        raise InputError(f"the path of a file is a text or a pathlib.Path; got {reprlib.repr(given)}")
    return Path(os.fsdecode(given))


def make_place(path: Path) -> None:
    """Make the folder of a file that is to be written; InputError if no file can be there."""
    try:
        taken = path.exists() and not path.is_file()
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"a model cannot be written to {path}: {error.strerror}") from None
    if taken:
        raise InputError(f"a model cannot be written to {path}: it is there and is no file")


def read_model(path: Path | str) -> Model:
    """Read and check a file; its arrays are read-only views of its bytes. InputError names the file and the fault."""
    path = file_path(path)
    try:
        if not path.is_file():
            raise InputError(f"{path}: there is no such file")
        if path.stat().st_size > FILE:
            raise InputError(f"{path}: a file has at most {FILE} bytes; this one has {path.stat().st_size}")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: it cannot be read ({error.strerror})") from None
    return from_bytes(data, str(path))


def to_bytes(model: Model) -> bytes:
    """Return the bytes of a model, the same for the same model. InputError if the model is wrong."""
    shapes(model)
    entries: list[dict[str, Any]] = []
    blocks: list[bytes] = []
    nodes = [_node_entry(node, entries, blocks) for node in model.nodes]
    if len(entries) > COUNT:
        raise InputError(f"a file has at most {COUNT} tensors; this model has {len(entries)}")
    graph = {
        "writer": model.writer,
        "name": model.name,
        "input": {
            "shape": list(model.shape),
            "top": float(model.top),
            "mean": [float(value) for value in model.mean],
            "std": [float(value) for value in model.std],
            **({} if model.margin == 1 else {"margin": float(model.margin)}),
        },
        "classes": list(model.classes),
        "tensors": entries,
        "nodes": nodes,
    }
    text, start = b"", 0
    while start != _aligned(_HEADER.size + len(text)):  # the offsets are in the text, and its length moves them
        start = _aligned(_HEADER.size + len(text))
        offset = start
        for entry in entries:
            entry["offset"] = offset
            offset += _aligned(entry["bytes"])
        text = json.dumps(graph, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    size = offset + _SUM
    if len(text) > GRAPH or size > FILE:
        raise InputError(
            f"a graph has at most {GRAPH} bytes and a file {FILE}; this model would have {len(text)} and {size}"
        )
    header = _HEADER.pack(MAGIC, VERSION, 0, size, _HEADER.size, len(text), start, offset - start, 0)
    body = b"".join(map(_padded, [header, text, *blocks]))
    return body + hashlib.sha256(body).digest()


def from_bytes(data: bytes, where: str) -> Model:
    """Check the bytes of a file and return their model, whose arrays are read-only views of them."""
    try:
        text, start, end = _sections(data)
        model = _model(_parse(text), data, start, end)
        shapes(model)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return model


# --- writing --------------------------------------------------------------------------------------------------------


def _node_entry(node: Node, entries: list[dict[str, Any]], blocks: list[bytes]) -> dict[str, Any]:
    """Return a node as the graph has it, its keys in the order of OPS; append its tensors."""
    entry: dict[str, Any] = {"op": node.op, "name": node.name, "in": list(node.inputs)}
    for key in OPS[node.op].keys:
        value: Any = node.keys.get(key)
        found = tensor_type(value)
        if found is not None:
            array = value.packed if isinstance(value, Bits) else value
            blocks.append(np.ascontiguousarray(array, _NUMPY[found[0]]).tobytes())
            entry[key] = len(entries)
            entries.append({"type": found[0], "shape": list(found[1]), "offset": 0, "bytes": len(blocks[-1])})
        elif key in node.keys:
            entry[key] = list(value) if isinstance(value, tuple) else value
    return entry


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _padded(block: bytes) -> bytes:
    return block + bytes(_aligned(len(block)) - len(block))


# --- reading --------------------------------------------------------------------------------------------------------


def _sections(data: bytes) -> tuple[bytes, int, int]:
    """Check header and checksum; return the graph's text, and where the tensors start and end."""
    least = _HEADER.size + _SUM
    if not least <= len(data) <= FILE:
        raise InputError(f"a file has {least} to {FILE} bytes; this one has {len(data)}")
    magic, version, flags, size, graph, text, start, tensors, zero = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InputError(f"it is no model: the first bytes must be {MAGIC.hex(' ')}; they are {magic.hex(' ')}")
    _equal("version", version, VERSION)
    _equal("flags", flags, 0)
    _equal("size of the file", size, len(data))
    _equal("offset of the graph", graph, _HEADER.size)
    if text > GRAPH:
        raise InputError(f"a graph has at most {GRAPH} bytes; the header says {text}")
    _equal("offset of the tensors", start, _aligned(_HEADER.size + text))
    if tensors % _ALIGN:
        raise InputError(f"the bytes of the tensors must be a multiple of {_ALIGN}; the header says {tensors}")
    _equal("offset and bytes of the tensors, summed,", start + tensors, len(data) - _SUM)
    _equal("last number of the header", zero, 0)
    end = start + tensors
    if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        raise InputError("the checksum is wrong: the file is damaged")
    _zeros(data, _HEADER.size + text, start)
    return bytes(data[_HEADER.size : _HEADER.size + text]), start, end


def _equal(what: str, got: int, want: int) -> None:
    if got != want:
        raise InputError(f"the {what} must be {want}; the header says {got}")


def _zeros(data: bytes, start: int, end: int) -> None:
    """Raise unless a gap is filled with zeros."""
    if np.frombuffer(data, np.uint8, end - start, start).any():
        raise InputError(f"the gap from byte {start} to {end} must be zeros")


def _parse(text: bytes) -> Any:
    """Read JSON strictly: no double keys, no NaN, nothing but UTF-8. Deep nesting ends here or at the keys' checks."""
    try:
        return json.loads(
            text.decode(),
            object_pairs_hook=_once,
            parse_constant=_no_constant,
            parse_int=lambda word: int(_short(word)),
            parse_float=lambda word: float(_short(word)),
        )
    except InputError:
        raise
    except RecursionError:
        raise InputError("the graph is nested too deep") from None
    except ValueError as error:
        raise InputError(f"the graph is no JSON ({reprlib.repr(str(error))})") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, none of whose keys stands there twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise InputError("the graph has an object with the same key twice")
    return made


def _short(word: str) -> str:
    """A number of JSON as it is written."""
    if len(word) >= DIGITS:
        raise InputError(f"a number of the graph has fewer than {DIGITS} characters; got {reprlib.repr(word)}")
    return word


def _no_constant(name: str) -> NoReturn:
    raise InputError(f"the graph has {name}, which is no number of JSON")


def _model(graph: Any, data: bytes, start: int, end: int) -> Model:
    """Make the model of a graph; what holds for models of any origin is left to lcrbnn.engine.check."""
    _object(graph, "graph", "the graph")
    image = _object(graph["input"], "input", "the input")
    tensors = _tensors(_list(graph["tensors"], "tensors"), data, start, end)
    nodes = [_node(entry, index, tensors) for index, entry in enumerate(_list(graph["nodes"], "nodes"))]
    return Model(
        name=graph["name"],
        shape=_tuple(image["shape"]),
        top=_float(image["top"]),
        mean=_floats(image["mean"]),
        std=_floats(image["std"]),
        classes=_tuple(graph["classes"]),
        nodes=tuple(nodes),
        margin=_float(image.get("margin", 1.0)),
        writer=graph["writer"],
    )


def _node(entry: Any, index: int, tensors: list[np.ndarray | Bits]) -> Node:
    """Make a node; an index where its op has a tensor becomes the tensor."""
    where = f"node {index}"
    if not isinstance(entry, dict) or not {"op", "name", "in"} <= entry.keys():
        raise InputError(f"{where} must be an object with the keys op, name, in; got {reprlib.repr(entry)}")
    keys = {key: _tuple(value) for key, value in entry.items() if key not in ("op", "name", "in")}
    op = OPS.get(entry["op"]) if isinstance(entry["op"], str) else None
    for key, kind in op.keys.items() if op else ():
        if key in keys and isinstance(kind, Tensor) and not (kind.word and keys[key] == kind.word):
            number = _whole(keys[key], f"{where}: {key}", 0, len(tensors) - 1)
            keys[key] = tensors[number]
    return Node(entry["op"], entry["name"], _tuple(entry["in"]), keys)


def _tensors(entries: list[Any], data: bytes, start: int, end: int) -> list[np.ndarray | Bits]:
    """Check the table of tensors and return them: inside their section, aligned, apart, with zeros between them."""
    made, places = [], []
    for index, entry in enumerate(entries):
        where = f"tensor {index}"
        _object(entry, "tensor", where)
        kind, shape = entry["type"], _list(entry["shape"], f"{where}: shape")
        if not isinstance(kind, str) or kind not in _NUMPY:
            raise InputError(f"{where}: type must be one of {', '.join(_NUMPY)}; got {reprlib.repr(kind)}")
        if not 1 <= len(shape) <= 4 or (kind == "bits" and len(shape) != 2):
            raise InputError(f"{where}: shape must be 1 to 4 numbers, and 2 for bits; got {reprlib.repr(shape)}")
        for size in shape:
            _whole(size, f"{where}: a dimension", 1, DIMENSION)
        stored = [*shape[:-1], -(-shape[-1] // 8)] if kind == "bits" else shape
        count = prod(stored) * _NUMPY[kind].itemsize
        if _whole(entry["bytes"], f"{where}: bytes", 0, FILE) != count:
            raise InputError(f"{where}: {kind} {shape} has {count} bytes; got {entry['bytes']}")
        offset = _whole(entry["offset"], f"{where}: offset", start, end)
        if offset % _ALIGN or offset + count > end:
            raise InputError(f"{where}: it must start at a multiple of {_ALIGN}, end by {end}; got {offset}, {count}")
        places.append((offset, offset + count))
        array = np.frombuffer(data, _NUMPY[kind], prod(stored), offset).reshape(stored)
        array.flags.writeable = False
        made.append(Bits(array, shape[1]) if kind == "bits" else array)
        if kind == "bits" and bits_behind(Bits(array, shape[1])):
            raise InputError(f"{where}: bits behind the end of a row must be 0")
    firsts, ends = zip(*sorted(places), strict=True) if places else ((), ())
    gaps = list(zip((start, *ends), (*firsts, end), strict=True))
    for gap in gaps:
        if gap[0] > gap[1]:
            raise InputError(f"two tensors overlap at byte {gap[1]}")
    for gap in gaps:
        _zeros(data, *gap)
    return made


def _object(value: Any, keys: str, what: str) -> Mapping[str, Any]:
    """Check that a value is an object with just these keys, and perhaps those that may be absent."""
    if not isinstance(value, dict) or value.keys() - set(_OPTIONAL.get(keys, ())) != set(_KEYS[keys]):
        got = list(value) if isinstance(value, dict) else value
        raise InputError(f"{what} must be an object with the keys {', '.join(_KEYS[keys])}; got {reprlib.repr(got)}")
    return value


def _list(value: Any, what: str) -> list[Any]:
    """Check that a value is a list of no more than COUNT."""
    if not isinstance(value, list) or len(value) > COUNT:
        raise InputError(f"{what} must be a list of at most {COUNT}; got {reprlib.repr(value)}")
    return value


def _whole(value: Any, what: str, low: int, high: int) -> int:
    """Check a whole number: 1.0 and true are none."""
    if type(value) is not int or not low <= value <= high:
        bounds = f"from {low} to {high}" if low <= high else "of a tensor, and there is none"
        raise InputError(f"{what} must be a whole number {bounds}; got {reprlib.repr(value)}")
    return value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _float(value: Any) -> Any:
    """A whole number of JSON where any number may stand; what float cannot hold is left for the check to refuse."""
    return float(value) if type(value) is int and abs(value) < 2**128 else value


def _floats(value: Any) -> Any:
    return tuple(map(_float, value)) if isinstance(value, list) else value
