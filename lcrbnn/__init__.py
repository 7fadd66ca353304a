"""Binary neural networks that keep the Lipschitz continuity of their full-precision counterparts (LCR).

Importing the package loads nothing heavy; each name below loads its module on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lcrbnn import zoo as zoo
    from lcrbnn.convert import binarize as binarize
    from lcrbnn.errors import InputError as InputError
    from lcrbnn.layers import BinaryConv2d as BinaryConv2d
    from lcrbnn.layers import BinaryLinear as BinaryLinear
    from lcrbnn.layers import advance as advance
    from lcrbnn.layers import extra_loss as extra_loss
    from lcrbnn.layers import fit as fit
    from lcrbnn.layers import project as project
    from lcrbnn.layers import start_epoch as start_epoch
    from lcrbnn.methods import METHODS as METHODS
    from lcrbnn.methods import method as method
    from lcrbnn.models import MODELS as MODELS
    from lcrbnn.models import network as network
    from lcrbnn.retention import PRESETS as PRESETS
    from lcrbnn.retention import Retention as Retention

_HOME = {
    "binarize": "lcrbnn.convert",
    "InputError": "lcrbnn.errors",
    "BinaryConv2d": "lcrbnn.layers",
    "BinaryLinear": "lcrbnn.layers",
    "advance": "lcrbnn.layers",
    "extra_loss": "lcrbnn.layers",
    "fit": "lcrbnn.layers",
    "project": "lcrbnn.layers",
    "start_epoch": "lcrbnn.layers",
    "METHODS": "lcrbnn.methods",
    "method": "lcrbnn.methods",
    "MODELS": "lcrbnn.models",
    "network": "lcrbnn.models",
    "PRESETS": "lcrbnn.retention",
    "Retention": "lcrbnn.retention",
    "zoo": "lcrbnn.zoo",  # the module itself
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"lcrbnn has no name {name!r}; there are {', '.join(_HOME)}")
    home = import_module(_HOME[name])
    return home if _HOME[name] == f"lcrbnn.{name}" else getattr(home, name)
