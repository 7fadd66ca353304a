"""Binary neural networks with the Lipschitz-continuity-retention (LCR) loss.

`import lcrbnn` does not import PyTorch. Each public name imports its module at its first use. The function that trains
a run is called `run_training`, because `lcrbnn.train` is a subpackage.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from lcrbnn import zoo as zoo
    from lcrbnn.deploy.engine.runtime import Engine as Engine
    from lcrbnn.deploy.export.check_export import check_export as check_export
    from lcrbnn.deploy.export.export_model import export_model as export_model
    from lcrbnn.errors import InputError as InputError
    from lcrbnn.lcr.lcr_variants import LCR_VARIANTS as LCR_VARIANTS
    from lcrbnn.lcr.lcr_variants import LcrVariant as LcrVariant
    from lcrbnn.lcr.retention import Retention as Retention
    from lcrbnn.nn.convert import binarize as binarize
    from lcrbnn.nn.layers import BinaryConv2d as BinaryConv2d
    from lcrbnn.nn.layers import BinaryLinear as BinaryLinear
    from lcrbnn.nn.methods.method_registry import METHODS as METHODS
    from lcrbnn.nn.methods.method_registry import get_method as get_method
    from lcrbnn.nn.model_hooks import extra_loss as extra_loss
    from lcrbnn.nn.model_hooks import fit_output_shapes as fit_output_shapes
    from lcrbnn.nn.model_hooks import project_weights as project_weights
    from lcrbnn.nn.model_hooks import set_progress as set_progress
    from lcrbnn.nn.model_hooks import start_epoch as start_epoch
    from lcrbnn.nn.models.model_registry import MODELS as MODELS
    from lcrbnn.nn.models.model_registry import create_model as create_model
    from lcrbnn.train.setup.load import load_network as load_network
    from lcrbnn.train.setup.spec import TrainSpec as TrainSpec
    from lcrbnn.train.train import train as _train

    run_training = _train

_LAZY_EXPORTS = {
    "BinaryConv2d": "lcrbnn.nn.layers",
    "BinaryLinear": "lcrbnn.nn.layers",
    "Engine": "lcrbnn.deploy.engine.runtime",
    "InputError": "lcrbnn.errors",
    "LCR_VARIANTS": "lcrbnn.lcr.lcr_variants",
    "LcrVariant": "lcrbnn.lcr.lcr_variants",
    "METHODS": "lcrbnn.nn.methods.method_registry",
    "MODELS": "lcrbnn.nn.models.model_registry",
    "Retention": "lcrbnn.lcr.retention",
    "TrainSpec": "lcrbnn.train.setup.spec",
    "binarize": "lcrbnn.nn.convert",
    "check_export": "lcrbnn.deploy.export.check_export",
    "create_model": "lcrbnn.nn.models.model_registry",
    "export_model": "lcrbnn.deploy.export.export_model",
    "extra_loss": "lcrbnn.nn.model_hooks",
    "fit_output_shapes": "lcrbnn.nn.model_hooks",
    "get_method": "lcrbnn.nn.methods.method_registry",
    "load_network": "lcrbnn.train.setup.load",
    "project_weights": "lcrbnn.nn.model_hooks",
    "run_training": "lcrbnn.train.train:train",
    "set_progress": "lcrbnn.nn.model_hooks",
    "start_epoch": "lcrbnn.nn.model_hooks",
    "zoo": "lcrbnn.zoo",  # the subpackage itself, not a name in it
}

_RENAMED = {
    "Form": "LcrVariant",
    "PRESETS": "LCR_VARIANTS",
    "advance": "set_progress",
    "fit": "fit_output_shapes",
    "method": "get_method",
    "network": "create_model",
    "project": "project_weights",
}

__all__ = ["__version__", *_LAZY_EXPORTS]


def _find_closest_names(name: str) -> str:
    from difflib import get_close_matches

    return ", ".join(get_close_matches(name, _LAZY_EXPORTS, n=3, cutoff=0))


def __getattr__(name: str) -> Any:
    """Return a public name from its module. For a renamed name, raise AttributeError with the new name."""
    if name in _RENAMED:
        message = f"lcrbnn.{name} is called lcrbnn.{_RENAMED[name]} now"
        # The statement `from lcrbnn import network` calls this function through importlib, which replaces the text of
        # an AttributeError. The text of an ImportError reaches the user unchanged.
        if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            raise ImportError(message, name=__name__)
        raise AttributeError(message)
    if name not in _LAZY_EXPORTS:
        raise AttributeError(f"lcrbnn has no name {name!r}; the closest are {_find_closest_names(name)}")
    module_name, _, attribute = _LAZY_EXPORTS[name].partition(":")
    module = import_module(module_name)
    return module if module_name == f"lcrbnn.{name}" else getattr(module, attribute or name)
