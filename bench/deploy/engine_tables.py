"""Render the tables of docs/engine.md from the benchmark records.

    python -m bench.deploy.engine_tables

It writes the tables of bench.deploy.engine_vs_runtimes and bench.deploy.wasm_vs_onnxruntime_web into the generated
block of the document.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.worker_processes import ROOT
from lcrbnn.runs.atomic_files import write_atomic
from lcrbnn.runs.record import read_record

DOCUMENT = ROOT / "docs" / "engine.md"
BEGIN, END = "<!-- tables of bench.deploy.engine_vs_runtimes -->\n", "<!-- end -->\n"
RECORDS = {
    "All instructions of the CPU, including AVX-512": ROOT / "bench" / "records" / "engine-avx512.json",
    "Limited to AVX2": ROOT / "bench" / "records" / "engine-avx2.json",
}
TITLES = {
    "resnet18": "ResNet-18, 224 pixels",
    "resnet18's convolutions": "the 16 binary convolutions of ResNet-18, inside the network",
    "convolutions alone": "the same convolutions alone, in sequence",
    "resnet20": "ResNet-20, 32 pixels",
}


WASM_RECORD = ROOT / "bench" / "records" / "page.json"


def render_tables(records: dict[str, Path]) -> str:
    """Return one table per existing record."""
    return "\n".join(render_table(title, read_record(path)) for title, path in records.items() if path.exists())


def render_generated_block() -> str:
    """Return the generated block of the document."""
    return render_tables(RECORDS) + "\n" + render_wasm_table(read_record(WASM_RECORD))


def render_wasm_table(record: dict[str, Any]) -> str:
    """Return a table with the milliseconds per image in a web page. Each runtime has one row."""
    figures, versions = record["figures"], record["settings"]["versions"]
    runtimes = ", ".join(f"{name} {version.lstrip('v')}" for name, version in versions.items())
    environment = f"{record['environment']['cpu']}, {record['date']}; {runtimes}"
    lines = [f"**In a web page**: WebAssembly, `python -m bench.deploy.wasm_vs_onnxruntime_web` ({environment}).", ""]
    lines += [f"| | {' | '.join(TITLES[case] for case in figures)} |", "|---" * (len(figures) + 1) + "|"]
    for runtime in [name for name, row in next(iter(figures.values())).items() if isinstance(row, dict)]:
        lines.append(
            f"| {runtime} | {' | '.join(_format_cell(case_figures[runtime]) for case_figures in figures.values())} |"
        )
    return "\n".join([*lines, ""])


def render_table(title: str, record: dict[str, Any]) -> str:
    """Return a table of median milliseconds per call and, in brackets, the ratio to the engine."""
    figures, limits = record["figures"], record["settings"]["limits"]
    lines = [f"**{title}** ({record['environment']['cpu']}, {record['date']}). {_describe_engine(record)}", ""]
    for case, name in TITLES.items():
        if case not in figures:
            continue
        rows = {setting: row for setting, row in figures[case].items() if setting.endswith(" images")}
        header = [setting.replace("1 threads", "1 thread").replace(", 1 images", ", 1 image") for setting in rows]
        lines += [f"| {name} | {' | '.join(header)} |", "|---" * (len(header) + 1) + "|"]
        for runtime in [key for key, value in next(iter(rows.values())).items() if isinstance(value, dict)]:
            unlimited_mark = (
                "" if not limits or runtime.split(",")[0] in limits or runtime.startswith("lcrbnn") else " *"
            )
            lines.append(
                f"| {runtime}{unlimited_mark} | {' | '.join(_format_cell(row[runtime]) for row in rows.values())} |"
            )
        lines.append("")
    return "\n".join(lines)


def _format_cell(row: dict[str, Any]) -> str:
    return f"{row['median']:.{1 if row['median'] >= 10 else 2}f} ({row['ratio']:.2f})"


def _describe_engine(record: dict[str, Any]) -> str:
    """Return a sentence about memory, loading time and thread scaling of the engine."""
    figures, text = record["figures"].get("resnet18", {}), ""
    if figures:
        text = f"A loaded ResNet-18 takes {figures['megabytes']:.1f} MB and {figures['load_ms']:.0f} ms to load."
        speedup = figures.get("speedup_of_two_threads", {}).get("1 images")
        text += f" Two threads are {speedup:.2f} times as fast as one." if speedup else ""
    return text + (" *: has no setting for this limit." if record["settings"]["limits"] else "")


def main() -> None:
    """Write the tables into the document."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    write_atomic(DOCUMENT, [(before + BEGIN + render_generated_block() + END + after).encode()])


if __name__ == "__main__":
    main()
