"""The tables of docs/engine.md, from the records of bench.engine.

python -m bench.engine_table       # writes them, and that of bench.page, between the two marks there
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.processes import ROOT
from lcrbnn.runs.files import write_whole
from lcrbnn.runs.record import read_record

DOCUMENT = ROOT / "docs" / "engine.md"
BEGIN, END = "<!-- tables of bench.engine -->\n", "<!-- end -->\n"
RECORDS = {
    "All that the CPU has, AVX-512 too": ROOT / "results" / "bench" / "engine-avx512.json",
    "No more than AVX2": ROOT / "results" / "bench" / "engine-avx2.json",
}
TITLES = {
    "resnet18": "ResNet-18, 224 pixels",
    "resnet18's convolutions": "its 16 binary convolutions, within the network",
    "convolutions alone": "the same, one behind the other",
    "resnet20": "ResNet-20, 32 pixels",
}


PAGE = ROOT / "results" / "bench" / "page.json"


def tables(records: dict[str, Path]) -> str:
    """A table for each record that there is."""
    return "\n".join(table(title, read_record(path)) for title, path in records.items() if path.exists())


def all_tables() -> str:
    """What stands between the marks."""
    return tables(RECORDS) + "\n" + page_table(read_record(PAGE))


def page_table(record: dict[str, Any]) -> str:
    """Milliseconds of an image in a page, a row a runtime."""
    figures, versions = record["figures"], record["settings"]["versions"]
    there = ", ".join(f"{name} {version.lstrip('v')}" for name, version in versions.items())
    where = f"{record['environment']['cpu']}, {record['date']}; {there}"
    lines = [f"**In a page**: WebAssembly, `python -m bench.page` ({where}).", ""]
    lines += [f"| | {' | '.join(TITLES[case] for case in figures)} |", "|---" * (len(figures) + 1) + "|"]
    for runtime in [name for name, row in next(iter(figures.values())).items() if isinstance(row, dict)]:
        lines.append(f"| {runtime} | {' | '.join(_cell(found[runtime]) for found in figures.values())} |")
    return "\n".join([*lines, ""])


def table(title: str, record: dict[str, Any]) -> str:
    """Milliseconds of a call, medians, and in brackets how many times as long as ours."""
    figures, free = record["figures"], record["settings"]["limits"]
    lines = [f"**{title}** ({record['environment']['cpu']}, {record['date']}). {_said(record)}", ""]
    for case, name in TITLES.items():
        if case not in figures:
            continue
        rows = {setting: row for setting, row in figures[case].items() if setting.endswith(" images")}
        heads = [setting.replace("1 threads", "1 thread").replace(", 1 images", ", 1 image") for setting in rows]
        lines += [f"| {name} | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
        for runtime in [key for key, value in next(iter(rows.values())).items() if isinstance(value, dict)]:
            mark = "" if not free or runtime.split(",")[0] in free or runtime.startswith("lcrbnn") else " *"
            lines.append(f"| {runtime}{mark} | {' | '.join(_cell(row[runtime]) for row in rows.values())} |")
        lines.append("")
    return "\n".join(lines)


def _cell(row: dict[str, Any]) -> str:
    return f"{row['median']:.{1 if row['median'] >= 10 else 2}f} ({row['ratio']:.2f})"


def _said(record: dict[str, Any]) -> str:
    """What else the record says of our engine."""
    found, said = record["figures"].get("resnet18", {}), ""
    if found:
        said = f"A loaded ResNet-18 takes {found['megabytes']:.1f} MB, loading it {found['load_ms']:.0f} ms."
        faster = found.get("speedup_of_two_threads", {}).get("1 images")
        said += f" Two threads are {faster:.2f} times as fast as one." if faster else ""
    return said + (" *: knows no such limit." if record["settings"]["limits"] else "")


def main() -> None:
    """Put the tables into the document."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    write_whole(DOCUMENT, [(before + BEGIN + all_tables() + END + after).encode()])


if __name__ == "__main__":
    main()
