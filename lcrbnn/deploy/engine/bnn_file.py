"""Read and write .bnn files, whose format is described in docs/format.md."""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from lcrbnn.deploy.engine.attributes import (
    MAX_DIMENSION,
    NumberAttribute,
    TensorAttribute,
    has_padding_bits,
    tensor_type,
)
from lcrbnn.deploy.engine.graph import BnnModel, ModelOutput, Node, PackedSigns
from lcrbnn.deploy.engine.graph_json import (
    check_integer,
    check_list,
    check_object,
    integer_to_float,
    integers_to_floats,
    list_to_tuple,
    parse_graph,
)
from lcrbnn.deploy.engine.operators import MAX_ENTRIES, OPERATORS, find_version_2_feature, infer_shapes
from lcrbnn.errors import InputError

MAGIC = b"\x89BNN\r\n\x1a\n"
# Supported versions of the file format; the writer uses version 1 for every model that version 1 can store
VERSIONS = (1, 2)
MAX_FILE_BYTES = 2**31
MAX_GRAPH_BYTES = 2**24

# Fields of the file header: magic, version, flags, file size, offset and size of graph and of tensors, zero
_HEADER = struct.Struct("<8sIIQQQQQQ")
_ALIGNMENT_BYTES = 64
_CHECKSUM_BYTES = 32
_NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "i32": np.dtype("<i4"),
    "bits": np.dtype(np.uint8),
}
_VERSION_2_TYPES = ("i32",)


def write_model(path: Path | str, model: BnnModel) -> None:
    """Write a model file atomically. Create the folder of the file if it does not exist.

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
    """Return the path as a Path. Raise InputError if the path is invalid."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fsdecode(path):
        raise InputError(f"the path of a file must be a text or a pathlib.Path; got {reprlib.repr(path)}")
    return Path(os.fsdecode(path))


def make_parent_folder(path: Path) -> None:
    """Create the folder of an output file. Raise InputError if the file cannot be written there."""
    try:
        is_occupied = path.exists() and not path.is_file()
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"a model cannot be written to {path}: {error.strerror}") from None
    if is_occupied:
        raise InputError(f"a model cannot be written to {path}: it exists and is not a regular file")


def read_model(path: Path | str) -> BnnModel:
    """Return the checked model of a file, with read-only arrays. Raise InputError with file name and reason."""
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
    """Return the file content of a model, which is deterministic. Raise InputError if the model is invalid."""
    version = 1 if find_version_2_feature(model, infer_shapes(model)) is None else 2
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
        **({"outputs": [output._asdict() for output in model.outputs]} if model.outputs else {}),
    }
    graph_json, tensors_start = b"", 0
    while tensors_start != _align_up(
        _HEADER.size + len(graph_json)
    ):  # loop until nothing changes, because the JSON contains offsets that depend on the length of the JSON
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
        MAGIC, version, 0, size, _HEADER.size, len(graph_json), tensors_start, offset - tensors_start, 0
    )
    body = b"".join(map(_pad_to_alignment, [header, graph_json, *tensor_blocks]))
    return body + hashlib.sha256(body).digest()


def from_bytes(data: bytes, source: str) -> BnnModel:
    """Return the checked model of a file's content. The arrays are read-only views of `data`."""
    try:
        version, graph_json, start, end = _split_sections(data)
        model = _build_model(parse_graph(graph_json), data, version, start, end)
        feature = find_version_2_feature(model, infer_shapes(model))
        if version == 1 and feature is not None:
            raise InputError(f"{feature} needs version 2 of the format, but the file has version 1")
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return model


# --- writing --------------------------------------------------------------------------------------------------------


def _make_node_entry(node: Node, tensor_entries: list[dict[str, Any]], tensor_blocks: list[bytes]) -> dict[str, Any]:
    """Return the JSON entry of a node, with keys in the order of OPERATORS. Append its tensors to both lists."""
    entry: dict[str, Any] = {"op": node.op, "name": node.name, "in": list(node.inputs)}
    for key, attribute in OPERATORS[node.op].attributes.items():
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
        elif isinstance(attribute, NumberAttribute) and key in node.attributes:
            entry[key] = float(value)
        elif key in node.attributes:
            entry[key] = list(value) if isinstance(value, tuple) else value
    return entry


def _align_up(size: int) -> int:
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def _pad_to_alignment(block: bytes) -> bytes:
    return block + bytes(_align_up(len(block)) - len(block))


# --- reading --------------------------------------------------------------------------------------------------------


def _split_sections(data: bytes) -> tuple[int, bytes, int, int]:
    """Check header and checksum. Return the version, the JSON of the graph, and start and end of the tensors."""
    min_bytes = _HEADER.size + _CHECKSUM_BYTES
    if not min_bytes <= len(data) <= MAX_FILE_BYTES:
        raise InputError(f"a file must have {min_bytes} to {MAX_FILE_BYTES} bytes; got {len(data)}")
    magic, version, flags, size, graph_start, graph_size, start, tensors_size, reserved = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InputError(
            f"the file is not a .bnn model: it must start with the bytes {MAGIC.hex(' ')}; got {magic.hex(' ')}"
        )
    if version not in VERSIONS:
        raise InputError(f"the version must be {' or '.join(map(str, VERSIONS))}; the header has {version}")
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
    return version, bytes(data[_HEADER.size : _HEADER.size + graph_size]), start, end


def _check_header_field(field: str, value: int, expected: int) -> None:
    if value != expected:
        raise InputError(f"the {field} must be {expected}; the header has {value}")


def _check_zeros(data: bytes, start: int, end: int) -> None:
    """Raise InputError unless all bytes of a gap are zero."""
    if np.frombuffer(data, np.uint8, end - start, start).any():
        raise InputError(f"the gap from byte {start} to {end} must be zeros")


def _build_model(graph: Any, data: bytes, version: int, start: int, end: int) -> BnnModel:
    """Return the model of a parsed graph. infer_shapes does the checks that do not depend on the file format."""
    check_object(graph, "graph", "the graph")
    if version == 1 and "outputs" in graph:
        raise InputError("a list of outputs needs version 2 of the format, but the file has version 1")
    input_entry = check_object(graph["input"], "input", "the input")
    tensors = _read_tensors(check_list(graph["tensors"], "tensors"), data, version, start, end)
    nodes = [_build_node(entry, index, tensors) for index, entry in enumerate(check_list(graph["nodes"], "nodes"))]
    return BnnModel(
        name=graph["name"],
        shape=list_to_tuple(input_entry["shape"]),
        top=integer_to_float(input_entry["top"]),
        mean=integers_to_floats(input_entry["mean"]),
        std=integers_to_floats(input_entry["std"]),
        classes=list_to_tuple(graph["classes"]),
        nodes=tuple(nodes),
        margin=integer_to_float(input_entry.get("margin", 1.0)),
        writer=graph["writer"],
        outputs=_build_outputs(graph["outputs"]) if "outputs" in graph else (),
    )


def _build_outputs(entries: Any) -> tuple[ModelOutput, ...]:
    """Return the outputs of a graph that lists outputs. infer_shapes checks their names and values."""
    if not check_list(entries, "outputs"):
        raise InputError("outputs must have at least one entry")
    for index, entry in enumerate(entries):
        check_object(entry, "output", f"output {index}")
    return tuple(ModelOutput(**entry) for entry in entries)


def _build_node(entry: Any, index: int, tensors: list[np.ndarray | PackedSigns]) -> Node:
    """Return the node of an entry. The index of each tensor is replaced by the tensor."""
    location = f"node {index}"
    if not isinstance(entry, dict) or not {"op", "name", "in"} <= entry.keys():
        raise InputError(f"{location} must be an object with the keys op, name, in; got {reprlib.repr(entry)}")
    attributes = {key: list_to_tuple(value) for key, value in entry.items() if key not in ("op", "name", "in")}
    operator = OPERATORS.get(entry["op"]) if isinstance(entry["op"], str) else None
    for key, attribute in operator.attributes.items() if operator else ():
        if key in attributes and isinstance(attribute, NumberAttribute):
            attributes[key] = integer_to_float(attributes[key])
        if (
            key in attributes
            and isinstance(attribute, TensorAttribute)
            and not (attribute.keyword and attributes[key] == attribute.keyword)
        ):
            tensor_index = check_integer(attributes[key], f"{location}: {key}", 0, len(tensors) - 1)
            attributes[key] = tensors[tensor_index]
    return Node(entry["op"], entry["name"], list_to_tuple(entry["in"]), attributes)


def _read_tensors(
    entries: list[Any], data: bytes, version: int, start: int, end: int
) -> list[np.ndarray | PackedSigns]:
    """Return the tensors. All tensors must be inside their section, aligned and disjoint, with zeros between them."""
    tensors, ranges = [], []
    for index, entry in enumerate(entries):
        location = f"tensor {index}"
        check_object(entry, "tensor", location)
        type_name, shape = entry["type"], check_list(entry["shape"], f"{location}: shape")
        if not isinstance(type_name, str) or type_name not in _NUMPY_TYPES:
            raise InputError(
                f"{location}: type must be one of {', '.join(_NUMPY_TYPES)}; got {reprlib.repr(type_name)}"
            )
        if version == 1 and type_name in _VERSION_2_TYPES:
            raise InputError(f"{location}: the type {type_name} needs version 2 of the format")
        if not 1 <= len(shape) <= 4 or (type_name == "bits" and len(shape) != 2):
            raise InputError(f"{location}: shape must be 1 to 4 numbers, and 2 for bits; got {reprlib.repr(shape)}")
        for size in shape:
            check_integer(size, f"{location}: a dimension", 1, MAX_DIMENSION)
        stored_shape = [*shape[:-1], -(-shape[-1] // 8)] if type_name == "bits" else shape
        num_bytes = prod(stored_shape) * _NUMPY_TYPES[type_name].itemsize
        if check_integer(entry["bytes"], f"{location}: bytes", 0, MAX_FILE_BYTES) != num_bytes:
            raise InputError(f"{location}: {type_name} {shape} has {num_bytes} bytes; got {entry['bytes']}")
        offset = check_integer(entry["offset"], f"{location}: offset", start, end)
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
