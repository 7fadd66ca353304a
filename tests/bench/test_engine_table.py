"""The tables in the documents are those of the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.engine_table import BEGIN, DOCUMENT, END, all_tables, table, tables


def test_the_document_has_the_tables_of_the_records() -> None:
    assert BEGIN + all_tables() + END in DOCUMENT.read_text()


def record(limits: dict[str, Any]) -> dict[str, Any]:
    row = {
        "others_cpus": 0.1,
        "apart": 1e-6,
        "lcrbnn g++": {"median": 4.004, "ratio": 1.0},
        "onnxruntime": {"median": 34.04, "ratio": 8.5},
    }
    settings = {"1 threads, 1 images": row, "2 threads, 8 images": row}
    figures = {"load_ms": 12.4, "megabytes": 12.34, "speedup_of_two_threads": {"1 images": 1.7}, **settings}
    return {
        "date": "2026-11-15",
        "environment": {"cpu": "a CPU"},
        "settings": {"limits": limits},
        "figures": {"resnet18": figures},
    }


def test_a_table_has_a_row_a_runtime_and_a_column_a_setting() -> None:
    lines = table("Title", record({})).splitlines()
    assert lines[0].startswith("**Title** (a CPU, 2026-11-15). A loaded ResNet-18 takes 12.3 MB, loading it 12 ms. Two")
    assert lines[2:] == [
        "| ResNet-18, 224 pixels | 1 thread, 1 image | 2 threads, 8 images |",
        "|---|---|---|",
        "| lcrbnn g++ | 4.00 (1.00) | 4.00 (1.00) |",
        "| onnxruntime | 34.0 (8.50) | 34.0 (8.50) |",
    ]


def test_what_is_not_limited_has_a_mark(tmp_path: Path) -> None:
    text = table("Title", record({"lcrbnn": {"LCRBNN_KERNEL": "avx2"}}))
    assert "| onnxruntime * |" in text
    assert "| lcrbnn g++ |" in text
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": 1, **record({})}))
    assert tables({"Title": path, "Other": tmp_path / "none"}) == table("Title", record({}))
