"""Read and write .bnn files, the file format of docs/format.md."""

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

from lcrbnn.deploy.engine.graph import BnnModel, Node, PackedSigns
from lcrbnn.deploy.engine.operators import (
    MAX_DIMENSION,
    MAX_ENTRIES,
    OPERATORS,
    TensorAttribute,
    has_padding_bits,
    infer_shapes,
    tensor_type,
)
from lcrbnn.errors import InputError

MAGIC = b"\x89BNN\r\n\x1a\n"
VERSION = 1
MAX_FILE_BYTES = 2**31
MAX_GRAPH_BYTES = 2**24
NUMBER_LENGTH_LIMIT = 64  # numbers in the graph must have fewer characters

_HEADER = struct.Struct("<8sIIQQQQQQ")  # magic, version, flags, size, offset and bytes of graph and of tensors, zero
_ALIGNMENT_BYTES = 64
_CHECKSUM_BYTES = 32
_NUMPY_TYPES: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bits": np.dtype(np.uint8)}
_REQUIRED_KEYS = {
    "graph": ("writer", "name", "input", "classes", "tensors", "nodes"),
    "input": ("shape", "top", "mean", "std"),
    "tensor": ("type", "shape", "offset", "bytes"),
}
_OPTIONAL_KEYS = {"input": ("margin",)}


def write_model(path: Path | str, model: BnnModel) -> None:
    """Write a model file atomically; create its folder if it does not exist.

    Raise InputError if the model or the path is invalid, and OSError if writing fails.
    """
    path, data = check_file_path(path), to_bytes(model)
    make_parent_folder(path)
    partial_path = path.with_name(path.name + ".part")
    try:
        with partial_path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial_path.replace(path)
    except BaseException:
        partial_path.unlink(missing_ok=True)
        raise


def check_file_path(path: object) -> Path:
    """Return the path as a Path; raise InputError if it is not a valid path."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fsdecode(path):
        raise InputError(f"the path of a file must be a text or a pathlib.Path; got {reprlib.repr(path)}")
    return Path(os.fsdecode(path))


def make_parent_folder(path: Path) -> None:
    """Create the folder of an output file; raise InputError if the file cannot be written there."""
    try:
        is_occupied = path.exists() and not path.is_file()
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"a model cannot be written to {path}: {error.strerror}") from None
    if is_occupied:
        raise InputError(f"a model cannot be written to {path}: it exists and is not a regular file")


def read_model(path: Path | str) -> BnnModel:
    """Return the checked model of a file; its arrays are read-only. Raise InputError with file name and reason."""
    path = check_file_path(path)
    try:
        if not path.is_file():
            raise InputError(f"{path}: the file does not exist")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path}: a file must have at most {MAX_FILE_BYTES} bytes; got {path.stat().st_size}")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read ({error.strerror})") from None
    return from_bytes(data, str(path))


def to_bytes(model: BnnModel) -> bytes:
    """Return the file content of a model; it is deterministic. Raise InputError if the model is invalid."""
    infer_shapes(model)
    tensor_entries: list[dict[str, Any]] = []
    tensor_blocks: list[bytes] = []
    node_entries = [_make_node_entry(node, tensor_entries, tensor_blocks) for node in model.nodes]
    if len(tensor_entries) > MAX_ENTRIES:
        raise InputError(f"a file must have at most {MAX_ENTRIES} tensors; this model has {len(tensor_entries)}")
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
        "tensors": tensor_entries,
        "nodes": node_entries,
    }
    graph_json, tensors_start = b"", 0
    while tensors_start != _align_up(
        _HEADER.size + len(graph_json)
    ):  # the JSON contains the offsets, and they depend on its length
        tensors_start = _align_up(_HEADER.size + len(graph_json))
        offset = tensors_start
        for entry in tensor_entries:
            entry["offset"] = offset
            offset += _align_up(entry["bytes"])
        graph_json = json.dumps(graph, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    size = offset + _CHECKSUM_BYTES
    if len(graph_json) > MAX_GRAPH_BYTES or size > MAX_FILE_BYTES:
        raise InputError(
            f"a graph must have at most {MAX_GRAPH_BYTES} bytes and a file at most {MAX_FILE_BYTES}; "
            f"this model would have {len(graph_json)} and {size}"
        )
    header = _HEADER.pack(
        MAGIC, VERSION, 0, size, _HEADER.size, len(graph_json), tensors_start, offset - tensors_start, 0
    )
    body = b"".join(map(_pad_to_alignment, [header, graph_json, *tensor_blocks]))
    return body + hashlib.sha256(body).digest()


def from_bytes(data: bytes, source: str) -> BnnModel:
    """Return the checked model of a file's content; its arrays are read-only views of `data`."""
    try:
        graph_json, start, end = _split_sections(data)
        model = _build_model(_parse_graph(graph_json), data, start, end)
        infer_shapes(model)
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return model


# --- writing --------------------------------------------------------------------------------------------------------


def _make_node_entry(node: Node, tensor_entries: list[dict[str, Any]], tensor_blocks: list[bytes]) -> dict[str, Any]:
    """Return the JSON entry of a node, with its keys in the order of OPERATORS; append its tensors to both lists."""
    entry: dict[str, Any] = {"op": node.op, "name": node.name, "in": list(node.inputs)}
    for key in OPERATORS[node.op].attributes:
        value: Any = node.attributes.get(key)
        type_and_shape = tensor_type(value)
        if type_and_shape is not None:
            array = value.packed if isinstance(value, PackedSigns) else value
            tensor_blocks.append(np.ascontiguousarray(array, _NUMPY_TYPES[type_and_shape[0]]).tobytes())
            entry[key] = len(tensor_entries)
            tensor_entries.append(
                {
                    "type": type_and_shape[0],
                    "shape": list(type_and_shape[1]),
                    "offset": 0,
                    "bytes": len(tensor_blocks[-1]),
                }
            )
        elif key in node.attributes:
            entry[key] = list(value) if isinstance(value, tuple) else value
    return entry


def _align_up(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _pad_to_alignment(block: bytes) -> bytes:
    return block + bytes(_align_up(len(block)) - len(block))


# --- reading --------------------------------------------------------------------------------------------------------


def _split_sections(data: bytes) -> tuple[bytes, int, int]:
    """Check header and checksum; return the JSON of the graph, and start and end of the tensors."""
    min_bytes = _HEADER.size + _CHECKSUM_BYTES
    if not min_bytes <= len(data) <= MAX_FILE_BYTES:
        raise InputError(f"a file must have {min_bytes} to {MAX_FILE_BYTES} bytes; got {len(data)}")
    magic, version, flags, size, graph_start, graph_size, start, tensors_size, reserved = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InputError(
            f"the file is not a .bnn model: it must start with the bytes {MAGIC.hex(' ')}; got {magic.hex(' ')}"
        )
    _check_header_field("version", version, VERSION)
    _check_header_field("flags", flags, 0)
    _check_header_field("size of the file", size, len(data))
    _check_header_field("offset of the graph", graph_start, _HEADER.size)
    if graph_size > MAX_GRAPH_BYTES:
        raise InputError(f"a graph must have at most {MAX_GRAPH_BYTES} bytes; the header has {graph_size}")
    _check_header_field("offset of the tensors", start, _align_up(_HEADER.size + graph_size))
    if tensors_size % _ALIGNMENT_BYTES:
        raise InputError(
            f"the bytes of the tensors must be a multiple of {_ALIGNMENT_BYTES}; the header has {tensors_size}"
        )
    _check_header_field("sum of offset and bytes of the tensors", start + tensors_size, len(data) - _CHECKSUM_BYTES)
    _check_header_field("last number of the header", reserved, 0)
    end = start + tensors_size
    if hashlib.sha256(memoryview(data)[:end]).digest() != data[end:]:
        raise InputError("the checksum is wrong: the file is damaged")
    _check_zeros(data, _HEADER.size + graph_size, start)
    return bytes(data[_HEADER.size : _HEADER.size + graph_size]), start, end


def _check_header_field(field: str, value: int, expected: int) -> None:
    if value != expected:
        raise InputError(f"the {field} must be {expected}; the header has {value}")


def _check_zeros(data: bytes, start: int, end: int) -> None:
    """Raise InputError unless all bytes of a gap are zero."""
    if np.frombuffer(data, np.uint8, end - start, start).any():
        raise InputError(f"the gap from byte {start} to {end} must be zeros")


def _parse_graph(graph_json: bytes) -> Any:
    """Return the parsed JSON; reject duplicate keys, NaN and anything that is not UTF-8.

    Deep nesting fails here with RecursionError, or later in the checks of the keys.
    """
    try:
        return json.loads(
            graph_json.decode(),
            object_pairs_hook=_reject_duplicate_keys,
            parse_constant=_reject_constant,
            parse_int=lambda word: int(_check_number_length(word)),
            parse_float=lambda word: float(_check_number_length(word)),
        )
    except InputError:
        raise
    except RecursionError:
        raise InputError("the graph is nested too deeply") from None
    except ValueError as error:
        raise InputError(f"the graph is not valid JSON ({reprlib.repr(str(error))})") from None


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise InputError if a key occurs twice."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise InputError("the graph has an object with the same key twice")
    return unique


def _check_number_length(word: str) -> str:
    """Return a number's text; raise InputError if it is too long."""
    if len(word) >= NUMBER_LENGTH_LIMIT:
        raise InputError(
            f"a number of the graph must have fewer than {NUMBER_LENGTH_LIMIT} characters; got {reprlib.repr(word)}"
        )
    return word


def _reject_constant(name: str) -> NoReturn:
    raise InputError(f"the graph has {name}, which is not a JSON number")


def _build_model(graph: Any, data: bytes, start: int, end: int) -> BnnModel:
    """Return the model of a parsed graph; infer_shapes does the checks that do not depend on the file format."""
    _check_object(graph, "graph", "the graph")
    input_entry = _check_object(graph["input"], "input", "the input")
    tensors = _read_tensors(_check_list(graph["tensors"], "tensors"), data, start, end)
    nodes = [_build_node(entry, index, tensors) for index, entry in enumerate(_check_list(graph["nodes"], "nodes"))]
    return BnnModel(
        name=graph["name"],
        shape=_list_to_tuple(input_entry["shape"]),
        top=_integer_to_float(input_entry["top"]),
        mean=_integers_to_floats(input_entry["mean"]),
        std=_integers_to_floats(input_entry["std"]),
        classes=_list_to_tuple(graph["classes"]),
        nodes=tuple(nodes),
        margin=_integer_to_float(input_entry.get("margin", 1.0)),
        writer=graph["writer"],
    )


def _build_node(entry: Any, index: int, tensors: list[np.ndarray | PackedSigns]) -> Node:
    """Return the node of an entry; replace the index of each tensor by the tensor."""
    location = f"node {index}"
    if not isinstance(entry, dict) or not {"op", "name", "in"} <= entry.keys():
        raise InputError(f"{location} must be an object with the keys op, name, in; got {reprlib.repr(entry)}")
    attributes = {key: _list_to_tuple(value) for key, value in entry.items() if key not in ("op", "name", "in")}
    operator = OPERATORS.get(entry["op"]) if isinstance(entry["op"], str) else None
    for key, attribute in operator.attributes.items() if operator else ():
        if (
            key in attributes
            and isinstance(attribute, TensorAttribute)
            and not (attribute.keyword and attributes[key] == attribute.keyword)
        ):
            tensor_index = _check_integer(attributes[key], f"{location}: {key}", 0, len(tensors) - 1)
            attributes[key] = tensors[tensor_index]
    return Node(entry["op"], entry["name"], _list_to_tuple(entry["in"]), attributes)


def _read_tensors(entries: list[Any], data: bytes, start: int, end: int) -> list[np.ndarray | PackedSigns]:
    """Return the tensors; check that they are inside their section, aligned and disjoint, with zeros between them."""
    tensors, ranges = [], []
    for index, entry in enumerate(entries):
        location = f"tensor {index}"
        _check_object(entry, "tensor", location)
        type_name, shape = entry["type"], _check_list(entry["shape"], f"{location}: shape")
        if not isinstance(type_name, str) or type_name not in _NUMPY_TYPES:
            raise InputError(
                f"{location}: type must be one of {', '.join(_NUMPY_TYPES)}; got {reprlib.repr(type_name)}"
            )
        if not 1 <= len(shape) <= 4 or (type_name == "bits" and len(shape) != 2):
            raise InputError(f"{location}: shape must be 1 to 4 numbers, and 2 for bits; got {reprlib.repr(shape)}")
        for size in shape:
            _check_integer(size, f"{location}: a dimension", 1, MAX_DIMENSION)
        stored_shape = [*shape[:-1], -(-shape[-1] // 8)] if type_name == "bits" else shape
        num_bytes = prod(stored_shape) * _NUMPY_TYPES[type_name].itemsize
        if _check_integer(entry["bytes"], f"{location}: bytes", 0, MAX_FILE_BYTES) != num_bytes:
            raise InputError(f"{location}: {type_name} {shape} has {num_bytes} bytes; got {entry['bytes']}")
        offset = _check_integer(entry["offset"], f"{location}: offset", start, end)
        if offset % _ALIGNMENT_BYTES or offset + num_bytes > end:
            raise InputError(
                f"{location}: it must start at a multiple of {_ALIGNMENT_BYTES} and end by {end}; "
                f"got {offset} and {num_bytes} bytes"
            )
        ranges.append((offset, offset + num_bytes))
        array = np.frombuffer(data, _NUMPY_TYPES[type_name], prod(stored_shape), offset).reshape(stored_shape)
        array.flags.writeable = False
        tensors.append(PackedSigns(array, shape[1]) if type_name == "bits" else array)
        if type_name == "bits" and has_padding_bits(PackedSigns(array, shape[1])):
            raise InputError(f"{location}: the padding bits of each row must be 0")
    starts, ends = zip(*sorted(ranges), strict=True) if ranges else ((), ())
    gaps = list(zip((start, *ends), (*starts, end), strict=True))
    for gap in gaps:
        if gap[0] > gap[1]:
            raise InputError(f"two tensors overlap at byte {gap[1]}")
    for gap in gaps:
        _check_zeros(data, *gap)
    return tensors


def _check_object(value: Any, kind: str, description: str) -> Mapping[str, Any]:
    """Return a JSON object with exactly the keys of its kind (optional keys may be absent)."""
    if not isinstance(value, dict) or value.keys() - set(_OPTIONAL_KEYS.get(kind, ())) != set(_REQUIRED_KEYS[kind]):
        got = list(value) if isinstance(value, dict) else value
        raise InputError(
            f"{description} must be an object with the keys {', '.join(_REQUIRED_KEYS[kind])}; got {reprlib.repr(got)}"
        )
    return value


def _check_list(value: Any, description: str) -> list[Any]:
    """Return a list of at most MAX_ENTRIES entries."""
    if not isinstance(value, list) or len(value) > MAX_ENTRIES:
        raise InputError(f"{description} must be a list of at most {MAX_ENTRIES}; got {reprlib.repr(value)}")
    return value


def _check_integer(value: Any, description: str, low: int, high: int) -> int:
    """Return an integer within bounds; 1.0 and true are not integers."""
    if type(value) is not int or not low <= value <= high:
        bounds = f"from {low} to {high}" if low <= high else "that names a tensor (the file has none)"
        raise InputError(f"{description} must be a whole number {bounds}; got {reprlib.repr(value)}")
    return value


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _integer_to_float(value: Any) -> Any:
    """Return an integer as a float; leave one that is too large for float32 to the later check."""
    return float(value) if type(value) is int and abs(value) < 2**128 else value


def _integers_to_floats(value: Any) -> Any:
    return tuple(map(_integer_to_float, value)) if isinstance(value, list) else value
