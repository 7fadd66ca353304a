"""The page about METHODS: the picture, then what each row says of itself, all of it from the table and its classes."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from lcrbnn.methods import METHODS, Method

HEAD = """# Binarisation methods

Made from `METHODS` by `lcrbnn methods --page docs/methods.md --curves docs/methods.svg`: a new row appears here.
Each entry is what the two classes of the row say of themselves: formula, gradient, what the published code does
otherwise, and what was chosen where a paper or its code is silent. *Exported*: whether a layer can be written as 1 bit
(`lcrbnn export`), and if not, why; the exporter itself was asked. 32/1, real weights, is the first of two steps of
training and never exported.

![forward and gradient of every method](methods.svg)

Value in blue, slope (what backward takes for the derivative) in orange, at three moments of training, in evaluation
mode. Learned numbers are drawn at 0.5. Halves go together: `--method irnet/recu` has the weights of the first and the
activations of the second. Beside retention there are other regularisers: `lcrbnn/regularizers/`.
"""


def methods_page(refusal: Callable[[Method], str]) -> str:
    """The page as Markdown; `refusal` says why a method cannot be exported, or nothing."""
    return "\n".join([HEAD, _overview(refusal), *(_entry(row, refusal) for row in METHODS.values())])


def _overview(refusal: Callable[[Method], str]) -> str:
    lines = ["| method | source | in short | bits | exported |", "|---|---|---|---|---|"]
    anchors = _anchors()
    for row in METHODS.values():
        good = [b for b in row.activation_bits if not refusal(row.configure(f"1/{b}"))]
        bits = ", ".join(row.bit_widths)
        shipped = ", ".join(f"1/{b}" for b in good) or "no"
        summary = row.summary.replace("|", "\\|")
        lines.append(f"| [{row.name}](#{anchors[row.name]}) | {row.paper} | {summary} | {bits} | {shipped} |")
    return "\n".join([*lines, ""])


def _entry(row: Method, refusal: Callable[[Method], str]) -> str:
    lines = [f"## {row.name}", "", f"{row.paper}: {row.summary}.", ""]
    if names := row.option_names():
        lines += [f"Options: {', '.join(f'`{name}`' for name in names)}.", ""]
    lines += [f"**Weights.** {_said(row.weight)}", ""]
    if row.activation_bits != (32,):
        lines += [f"**Activations.** {_said(row.activation)}", ""]
    if row.alike:
        lines += [f"**Alike.** {row.alike[:1].upper()}{row.alike[1:]}.", ""]
    reasons: dict[str, list[int]] = {}
    for bits in row.activation_bits:
        if reason := refusal(row.configure(f"1/{bits}")):
            reasons.setdefault(reason, []).append(bits)
    for reason, refused in reasons.items():
        lines += [f"**Not exported** ({', '.join(f'1/{b}' for b in refused)}): {reason}.", ""]
    return "\n".join(lines)


def _said(part: Callable[..., Any]) -> str:
    """The docstring of a class as one paragraph, and that of what it is built on in its own file."""
    kinds = inspect.getmro(part) if inspect.isclass(part) else ()
    own: list[Any] = [one for one in kinds if one.__module__ == part.__module__] or [part]
    said = " ".join(inspect.getdoc(one) or "" for one in own)
    return " ".join(said.split()).replace("|", "\\|").replace("*", "\\*")


def _anchors() -> dict[str, str]:
    """What a heading is linked by where Markdown is shown: letters and dashes; the second of two alike ends in -1."""
    found: dict[str, str] = {}
    met: Counter[str] = Counter()
    for name in METHODS:
        plain = "".join(c for c in name if c.isalnum() or c == "-")
        found[name] = f"{plain}-{met[plain]}" if met[plain] else plain
        met[plain] += 1
    return found
