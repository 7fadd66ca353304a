"""The engine tables in the documents are rendered from the records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.deploy.engine_tables import BEGIN, DOCUMENT, END, render_generated_block, render_table, render_tables


def test_the_document_contains_the_rendered_tables() -> None:
    assert BEGIN + render_generated_block() + END in DOCUMENT.read_text()


def make_record(limits: dict[str, Any]) -> dict[str, Any]:
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


def test_a_table_has_a_row_per_runtime_and_a_column_per_setting() -> None:
    lines = render_table("Title", make_record({})).splitlines()
    assert lines[0].startswith("**Title** (a CPU, 2026-11-15). A loaded ResNet-18 takes 12.3 MB and 12 ms to load. Two")
    assert lines[2:] == [
        "| ResNet-18, 224 pixels | 1 thread, 1 image | 2 threads, 8 images |",
        "|---|---|---|",
        "| lcrbnn g++ | 4.00 (1.00) | 4.00 (1.00) |",
        "| onnxruntime | 34.0 (8.50) | 34.0 (8.50) |",
    ]


def test_runtimes_without_an_instruction_limit_are_marked(tmp_path: Path) -> None:
    text = render_table("Title", make_record({"lcrbnn": {"LCRBNN_KERNEL": "avx2"}}))
    assert "| onnxruntime * |" in text
    assert "| lcrbnn g++ |" in text
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": 1, **make_record({})}))
    assert render_tables({"Title": path, "Other": tmp_path / "none"}) == render_table("Title", make_record({}))
