"""A report as files, by the name of the first one: a page, or Markdown with a folder of charts."""

from __future__ import annotations

from pathlib import Path

from lcrbnn.errors import InputError
from lcrbnn.outputs import check_output_file, check_output_folder
from lcrbnn.report.charts import Report
from lcrbnn.report.html import page
from lcrbnn.report.markdown import document
from lcrbnn.runs.files import write_whole


def check_output(path: Path) -> None:
    """Raise unless a report can be written to this path, and its charts to their folder."""
    check_output_file(path, "a report")
    if path.suffix == ".md":
        check_output_folder(path.parent / _charts_name(path), "the charts of a report")


def _charts_name(path: Path) -> str:
    return f"{path.stem}-charts"


def write(report: Report, path: Path) -> None:
    """Write all files of a report; the one that is named last, so that what it shows is there."""
    files: dict[Path, bytes] = {}
    if path.suffix == ".md":
        text, charts = document(report, _charts_name(path))
        files |= {path.parent / name: content for name, content in charts.items()}
    else:
        text = page(report)
    files[path] = text.encode()
    try:
        for place, content in files.items():
            place.parent.mkdir(parents=True, exist_ok=True)
            write_whole(place, [content])
    except OSError as error:
        raise InputError(f"a report cannot be written to {path}: {error.strerror}") from None
