"""Where retention is measured: named blocks or layers of any network, or what a form means in one of this package."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from lcrbnn.errors import InputError, names_of
from lcrbnn.models import Network
from lcrbnn.retention.capture import Span, across, between
from lcrbnn.retention.form import Form


def spans_of(model: nn.Module, form: Form, blocks: Sequence[str] | None, layers: Sequence[str] | None) -> list[Span]:
    """The spans between named blocks or layers, or those of the form in a network of this package; the last ones."""
    spans = _spans(model, form, blocks, layers)
    if form.last > len(spans):
        raise InputError(f"last={form.last} matrices are asked for, and there are {len(spans)}")
    return spans[-form.last :]


def _spans(model: nn.Module, form: Form, blocks: Sequence[str] | None, layers: Sequence[str] | None) -> list[Span]:
    given = [n for n in (blocks, layers) if n is not None]
    if len(given) == 2:
        raise InputError("name blocks or layers, not both")
    if given:
        what = "blocks" if blocks is not None else "layers"
        names = module_names(given[0], what, model)
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
        if twice is not None:
            raise InputError(f"{what} names {twice!r} twice; each counts once")
        spans = across(names) if blocks is not None else between(names)
        if not spans:
            raise InputError(
                f"retention needs at least {'one block' if blocks is not None else 'two layers'}; got {list(names)!r}"
            )
        return spans
    if not isinstance(model, Network):
        raise InputError(f"{type(model).__name__} is not a network of this package: name its blocks, blocks=[...]")
    return SPANS[form.spans](model)


SPANS = {
    "layers": lambda net: between(net.chain),
    "blocks": lambda net: across(net.blocks),
    "stages": lambda net: across(net.stages[1:]),
}


def module_names(given: Any, what: str, model: nn.Module) -> list[str]:
    """The names of modules; to a module in the place of one, its name is answered."""
    single = isinstance(given, nn.Module)
    if isinstance(given, Iterable) and not single and not isinstance(given, str):
        given = list(given)
    for found in [given] if single else given if isinstance(given, list) else []:
        if isinstance(found, nn.Module):
            name = next((n for n, m in model.named_modules() if m is found and n), None)
            answer = f": write {name!r}" if name else f", a {type(found).__name__}: write its name in the network"
            raise InputError(f"{what} is a list of names, and {'is' if single else 'holds'} a module{answer}")
    return names_of(given, what)
