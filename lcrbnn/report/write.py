"""A report as files, by the name of the first one: a page, or Markdown with a folder of charts."""

from __future__ import annotations

from pathlib import Path

from lcrbnn.errors import InputError
from lcrbnn.report.charts import Report
from lcrbnn.report.html import page
from lcrbnn.report.markdown import document
from lcrbnn.runs.files import write_whole


def write(report: Report, path: Path) -> None:
    """Write all files of a report; the one that is named last, so that what it shows is there."""
    files: dict[Path, bytes] = {}
    if path.suffix == ".md":
        text, charts = document(report, f"{path.stem}-charts")
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
