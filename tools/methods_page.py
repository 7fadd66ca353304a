"""Generate docs/methods.md from METHODS and the docstrings of its classes.

The command is `python -m tools.methods_page FILE`.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import METHODS

INTRODUCTION = """# Binarisation methods

This page is generated from `METHODS` by `make docs`.
Each entry is the documentation of the two classes of a method: formula, gradient, differences to the published code,
and choices where the paper and its code leave something open. *Exported*: whether a layer can be stored as 1 bit
(`lcrbnn export`), and if not, why, according to the exporter. 32/1 (real weights) is the first of two training steps
and is never exported.

![forward and gradient of every method](methods.svg)

Values are blue and slopes (used as the derivative in the backward pass) are orange, at three fractions of training, in
evaluation mode. Learned parameters are set to 0.5. Two methods can be combined: `--method irnet/recu` uses the weights
of the first and the activations of the second. Other regularizers than LCR: `lcrbnn/lcr/regularizers.py`.
"""


def render_methods_page(explain_unexportable: Callable[[Method], str]) -> str:
    """Return the page as Markdown. `explain_unexportable` returns why a method cannot be exported, or "" if it can."""
    return "\n".join(
        [
            INTRODUCTION,
            _render_overview(explain_unexportable),
            *(_render_entry(method, explain_unexportable) for method in METHODS.values()),
        ]
    )


def _render_overview(explain_unexportable: Callable[[Method], str]) -> str:
    lines = ["| method | source | summary | bits | exported |", "|---|---|---|---|---|"]
    anchors = _make_anchors()
    for method in METHODS.values():
        exportable = [
            b for b in method.supported_activation_bits if not explain_unexportable(method.configure(f"1/{b}"))
        ]
        bits = ", ".join(method.supported_bit_widths)
        exported = ", ".join(f"1/{b}" for b in exportable) or "no"
        summary = method.summary.replace("|", "\\|")
        lines.append(f"| [{method.name}](#{anchors[method.name]}) | {method.paper} | {summary} | {bits} | {exported} |")
    return "\n".join([*lines, ""])


def _render_entry(method: Method, explain_unexportable: Callable[[Method], str]) -> str:
    lines = [f"## {method.name}", "", f"{method.paper}: {method.summary}.", ""]
    if names := method.option_names():
        lines += [f"Options: {', '.join(f'`{name}`' for name in names)}.", ""]
    lines += [f"**Weights.** {_format_docstring(method.weight_class)}", ""]
    if method.supported_activation_bits != (32,):
        lines += [f"**Activations.** {_format_docstring(method.activation_class)}", ""]
    if method.equivalence_note:
        lines += [f"**Equivalent.** {method.equivalence_note[:1].upper()}{method.equivalence_note[1:]}.", ""]
    reasons: dict[str, list[int]] = {}
    for bits in method.supported_activation_bits:
        if reason := explain_unexportable(method.configure(f"1/{bits}")):
            reasons.setdefault(reason, []).append(bits)
    for reason, bit_widths in reasons.items():
        lines += [f"**Not exported** ({', '.join(f'1/{b}' for b in bit_widths)}): {reason}.", ""]
    return "\n".join(lines)


def _format_docstring(binarizer: Callable[..., Any]) -> str:
    """Return the docstring of a class, followed by those of its base classes in the same module, as one paragraph."""
    classes = inspect.getmro(binarizer) if inspect.isclass(binarizer) else ()
    documented: list[Any] = [cls for cls in classes if cls.__module__ == binarizer.__module__] or [binarizer]
    text = " ".join(inspect.getdoc(cls) or "" for cls in documented)
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*")


def _make_anchors() -> dict[str, str]:
    """Return the link anchor of each method's heading. If anchors are equal, -1, -2, ... are appended as on GitHub."""
    anchors: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for name in METHODS:
        anchor = "".join(c for c in name if c.isalnum() or c == "-")
        anchors[name] = f"{anchor}-{counts[anchor]}" if counts[anchor] else anchor
        counts[anchor] += 1
    return anchors


def main(arguments: list[str]) -> None:
    """Write the page to the file that the first argument names."""
    from lcrbnn.deploy.export.export_model import explain_unexportable_method
    from lcrbnn.runs.atomic_files import write_atomic

    write_atomic(Path(arguments[0]), [render_methods_page(explain_unexportable_method).encode()])
    print(arguments[0])


if __name__ == "__main__":
    main(sys.argv[1:])
