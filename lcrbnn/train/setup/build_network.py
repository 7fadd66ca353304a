"""Build the network and the LCR variant that a training spec describes."""

from __future__ import annotations

import torch
from torch import nn

from lcrbnn.device import derive_seed
from lcrbnn.errors import InputError, check_known_names, lookup
from lcrbnn.lcr.choose_blocks import LcrModules, choose_lcr_modules
from lcrbnn.lcr.lcr_variants import LCR_VARIANTS, LcrVariant
from lcrbnn.lcr.regularizers import REGULARIZERS
from lcrbnn.nn.methods.binarizer import Method
from lcrbnn.nn.methods.method_registry import get_method
from lcrbnn.nn.model_hooks import iter_binary_layers
from lcrbnn.nn.models.model_registry import FULL_PRECISION, create_model
from lcrbnn.nn.models.network import Network
from lcrbnn.train.setup.dataset import find_dataset
from lcrbnn.train.setup.network_file import parse_reference, read_spec_network
from lcrbnn.train.setup.own_network import build_own_network, make_example
from lcrbnn.train.setup.spec import TrainSpec, parse_options


def build_lcr_variant(spec: TrainSpec) -> LcrVariant:
    """Return the LCR variant of a spec, with its options and lambda."""
    changes = parse_options(spec.lcr_options, "lcr_options")
    if "weight" in changes:
        raise InputError("lcr_options cannot set weight: use the setting lcr_weight")
    return lookup(LCR_VARIANTS, spec.lcr_variant, "variant of the LCR loss", "docs/method.md").replace(
        weight=1.0 if spec.lcr_gradient_ratio > 0 else spec.lcr_weight, **changes
    )


def is_lcr_active(variant: LcrVariant) -> bool:
    """Return whether any term of this variant is part of the loss."""
    return variant.weight > 0 or variant.quantization_error_weight > 0


def find_lcr_modules(spec: TrainSpec, model: nn.Module) -> LcrModules:
    """Return the blocks or layers that LCR compares, or no names: then the network knows its own blocks.

    Raise InputError if a network with binary layers has no suitable blocks.
    """
    variant = build_lcr_variant(spec)
    if spec.lcr_blocks:
        return LcrModules(blocks=list(spec.lcr_blocks))
    if isinstance(model, Network) or not any(iter_binary_layers(model)):
        return LcrModules()
    return choose_lcr_modules(model, variant.granularity, make_example(find_dataset(spec)))


def build_network(spec: TrainSpec, network_source: bytes | None = None) -> nn.Module:
    """Return the network of a spec on the CPU, initialized from its seed.

    `network_source` is the content of the network file, if the model is FILE.py:FUNCTION. Without it, the file is read.
    """
    dataset = find_dataset(spec)
    if dataset.num_classes == 0:
        raise InputError(f"the number of classes of {dataset.name} is not known yet: set num_classes")
    method, reference = configure_method(spec), parse_reference(spec.model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(spec.seed, "start"))
        model: nn.Module
        if reference is not None:
            source = read_spec_network(spec) if network_source is None else network_source
            assert source is not None
            model = build_own_network(reference, source, method, spec.method, dataset)
        else:
            model = create_model(
                spec.model,
                method,
                num_classes=dataset.num_classes,
                in_channels=dataset.channels,
                image_size=dataset.image_size,
            )
        attach = REGULARIZERS[spec.regularizer].attach
        if attach is not None:
            attach(model)
    if spec.bn_gamma_init != 1.0:
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.constant_(module.weight, spec.bn_gamma_init)
    if spec.precision == "float64":
        convert_to_float64(model)
    return model


def convert_to_float64(model: nn.Module) -> None:
    """Let a network compute in float64. The network then converts its inputs."""
    model.double().register_forward_pre_hook(lambda module, inputs: tuple(x.double() for x in inputs))


def configure_method(spec: TrainSpec) -> Method | None:
    """Return the binarization method of a spec with its options, or None for a full-precision network."""
    options = parse_options(spec.method_options, "method_options")
    if spec.method == FULL_PRECISION:
        if options or spec.bits:
            raise InputError("full precision has neither bits nor method_options")
        if spec.regularizer != "none":
            raise InputError("a full-precision network has no binary layers for a regularizer")
        return None
    method = get_method(spec.method)
    check_known_names(options, method.option_names(), f"option of {method.name}", "docs/methods.md")
    return method.configure(spec.bits or None, **options)
