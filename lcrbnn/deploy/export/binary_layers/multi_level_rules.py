"""Export binary layers whose weights or activations have more than two opposite levels, as sums of binary products.

    activation  sum_i scale_i sign_i + offset       several signs, several bits, or a learned centre
    weight      sum_j scale_j sign_j + offset       several bases, three levels, or a learned centre

The product of both sums is a sum of binary convolutions, one per pair (i, j). The offsets give three more terms:

    offset of the activations times the weights     a constant, which depends on the position if the border is real
    offset of the weights times the activations     the sum of the inputs of each window, times one number per filter
    bias                                            added to the first convolution
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lcrbnn.deploy.engine.bits import pack_signs
from lcrbnn.deploy.engine.graph import PackedSigns
from lcrbnn.deploy.export.binary_layers.activation_levels import ACTIVATION_LEVELS, ActivationLevels, SignBase
from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.channel_rows import ChannelRows
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, SlidingWindow, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import Layout, Shape, make_standard_layout
from lcrbnn.nn.layers import BinaryConv2d, BinaryLayer
from lcrbnn.nn.methods.binarizer import BinaryTensor


class WeightBase(NamedTuple):
    """One term of a weight, the product of signs and one number per filter."""

    signs: np.ndarray  # signs of the weights, -1 and +1, with the axes in PyTorch's order
    scale: np.ndarray  # scale of each filter in float64, (out,)


def has_several_levels(layer: BinaryLayer, weight: BinaryTensor) -> bool:
    """Return whether a layer needs more than one binary product. `weight` is the layer's binary weight."""
    binarizer = layer.input_binarizer
    if weight.num_bases > 1 or weight.offset is not None or _is_ternary(weight):
        return True
    if type(binarizer) not in ACTIVATION_LEVELS:
        return False
    assert binarizer is not None
    example = torch.zeros(2, layer.weight.shape[1] * getattr(layer, "groups", 1), *[1] * (layer.weight.dim() - 2))
    activation = binarizer(example)
    has_centre = activation.offset is not None and binarizer.has_real_padding
    has_image_scale = activation.scale is not None and activation.scale.numel() != 1
    return activation.num_bases > 1 or has_centre or has_image_scale


def export_sum_of_products(
    builder: GraphBuilder,
    name: str,
    layer: BinaryLayer,
    rows: ChannelRows,
    window: SlidingWindow,
    layout: Layout,
    shape: Shape,
) -> Value:
    """Add the binary products of a layer and their sum, and return the sum, which has this layout and shape."""
    weight = layer.binarize_weight()
    bases = _split_weight(name, weight)
    activation = None
    if layer.input_binarizer is not None:
        rule = ACTIVATION_LEVELS.get(type(layer.input_binarizer))
        if rule is None:
            raise_export_error(
                name,
                f"its activations ({type(layer.input_binarizer).__name__}) have no rule together with a weight of "
                "several bases or levels",
            )
        activation = rule(builder, name, layer.input_binarizer, rows.value)
    products = _Products(builder, name, layer, rows, window, layout, shape, activation)
    bias = np.zeros(shape[2]) if layer.bias is None else to_array(layer.bias).astype(np.float64)
    terms = [
        products.add(base, f"product{i}", bias + products.count_constant(bases) if i == 0 else None)
        for i, base in enumerate(bases)
    ]
    if weight.offset is not None:
        terms.append(products.add_window_sums(_per_filter(name, weight.offset, shape[2])))
    if (border_term := products.add_border_constant(bases)) is not None:
        terms.append(border_term)
    total = terms[0]
    for i, term in enumerate(terms[1:], 1):
        total = builder.add_node("add", f"{name}.sum{i}", [total, term])
    return total


class _Products:
    """The data that all products of a layer share."""

    def __init__(
        self,
        builder: GraphBuilder,
        name: str,
        layer: BinaryLayer,
        rows: ChannelRows,
        window: SlidingWindow,
        layout: Layout,
        shape: Shape,
        activation: ActivationLevels | None,
    ) -> None:
        self.builder, self.name, self.layer, self.rows, self.x = builder, name, layer, rows, rows.value
        self.window, self.layout, self.shape, self.activation = window, layout, shape, activation
        self.padding_value = float(getattr(layer, "padding_value", 0.0))
        binarizer = layer.input_binarizer
        self.has_real_border = any(window.pad) and binarizer is not None and binarizer.has_real_padding
        self.pad_sign = 0
        if binarizer is not None and any(window.pad) and not binarizer.has_real_padding:
            self.pad_sign = self._check_pad_sign(binarizer.padding_sign(self.padding_value))
        if binarizer is None and any(window.pad) and self.padding_value != 0:
            raise_export_error(
                name, f"its real input is padded with {self.padding_value:g}, but the format pads with 0"
            )

    def _check_pad_sign(self, sign: float) -> int:
        if sign not in (-1, 0, 1):
            raise_export_error(
                self.name, f"a padding_value of {self.padding_value:g} is the sign {sign:g}, not -1, 0 or 1"
            )
        return int(sign)

    def add(self, base: WeightBase, step: str, b: np.ndarray | None) -> Value:
        """Add the products of one base of the weight with all signs of the activation; `b` is added to the first."""
        zeros = np.zeros(self.shape[2])
        attributes = self._weight_attributes(base.signs) | self.window.to_attributes()
        if self.activation is None:
            return self._add_node(
                "wconv", step, self.x, self.shape, a=base.scale, b=zeros if b is None else b, **attributes
            )
        products = []
        for i, sign_base in enumerate(self.activation.bases):
            is_number = isinstance(sign_base.scale, float)
            first_b = b if i == 0 and b is not None and is_number else zeros
            a = base.scale * sign_base.scale if isinstance(sign_base.scale, float) else base.scale
            products.append(self._add_sign_product(f"{step}.sign{i}", sign_base, self.shape, a, first_b, attributes))
        if b is not None and b.any() and not isinstance(self.activation.bases[0].scale, float):
            products[0] = self._add_node("shift", f"{step}.constant", products[0], self.shape, b=b)
        return self._sum(products, step)

    def _add_sign_product(
        self, step: str, base: SignBase, shape: Shape, a: np.ndarray, b: np.ndarray, attributes: dict[str, Any]
    ) -> Value:
        signs = {"threshold": self.rows.reorder(base.threshold), "pad_sign": self.pad_sign}
        product = self._add_node("bconv", step, base.x, shape, a=a, b=b, **signs, **attributes)
        torch_a, torch_b = (torch.from_numpy(numbers.astype(np.float32)) for numbers in (a, b))
        product.node.torch_functions.append(partial(_scale_channels, factors=(torch_a, torch_b)))
        product.node.torch_sign = partial(_take_signs, threshold=torch.from_numpy(base.threshold))
        if isinstance(base.scale, Value):
            product = self.builder.add_node("multiply", f"{self.name}.{step}.scaled", [product, base.scale])
        return product

    def add_window_sums(self, offset: np.ndarray) -> Value:
        """Add the sum of the inputs of each window and group, times the offset of the weight of each filter."""
        groups, step = self.window.groups, "window_sums"
        shape = (*self.shape[:2], groups)
        ones = np.ones((groups, *self.layer.weight.shape[1:]), np.float32)
        attributes = self._weight_attributes(ones) | self.window.to_attributes()
        if self.activation is None:
            sums = self._add_node("wconv", step, self.x, shape, a=np.ones(groups), b=np.zeros(groups), **attributes)
        else:
            bases = self.activation.bases
            constant = np.full(groups, self._constant_of_filter(ones).reshape(-1)[:groups])
            products = []
            for i, base in enumerate(bases):
                a = np.full(groups, base.scale if isinstance(base.scale, float) else 1.0)
                b = constant if i == 0 else np.zeros(groups)
                products.append(self._add_sign_product(f"{step}.sign{i}", base, shape, a, b, attributes))
            sums = self._sum(products, step)
        if (border := self.add_border_constant([WeightBase(ones, np.ones(groups))])) is not None:
            sums = self.builder.add_node("add", f"{self.name}.{step}.border", [sums, border])
        weight = offset.reshape(-1, 1, 1, 1)
        window = SlidingWindow((1, 1), groups=groups).to_attributes()
        return self._add_node("conv", "weight_offset", sums, self.shape, weight=weight, **window)

    def count_constant(self, bases: list[WeightBase]) -> np.ndarray:
        """Return the constant of each filter from the activations' offset, if all positions have the same constant."""
        total = np.zeros(self.shape[2])
        for base in bases:
            total += base.scale * self._constant_of_filter(base.signs)
        return total

    def _constant_of_filter(self, signs: np.ndarray) -> np.ndarray:
        if self.activation is None or self.has_real_border:
            return np.zeros(len(signs))
        return self.activation.offset * signs.reshape(len(signs), -1).sum(1, dtype=np.float64)

    def add_border_constant(self, bases: list[WeightBase]) -> Value | None:
        """Add the constant of each position if the border has a real value, or return None if there is none."""
        if self.activation is None or not self.has_real_border:
            return None
        if self.activation.offset == 0 and self.padding_value == 0:
            return None
        assert isinstance(self.layer, BinaryConv2d)
        h, w, channels = self.x.shape
        constant_input = torch.full((1, channels, h, w), self.activation.offset, dtype=torch.float64)
        total = 0.0
        for base in bases:
            signs = torch.from_numpy(base.signs).double()
            output = self.layer._apply_linear(constant_input, signs, self.padding_value)[0].numpy()
            total = total + base.scale[:, None, None] * output
        value = np.asarray(total).transpose(1, 2, 0)
        return self.builder.add_constant(f"{self.name}.border", value, make_standard_layout(value.shape, 4))

    def _weight_attributes(self, signs: np.ndarray) -> dict[str, Any]:
        rows = self.rows.reorder(signs) if signs.ndim == 2 else signs.transpose(0, 2, 3, 1).reshape(len(signs), -1)
        return {"weight": PackedSigns(pack_signs(rows), rows.shape[1])}

    def _add_node(self, op: str, step: str, x: Value, shape: Shape, **attributes: Any) -> Value:
        layout = self.layout if shape == self.shape else make_standard_layout(shape, 4)
        return self.builder.add_node(op, f"{self.name}.{step}", x, shape, None, layout, **attributes)

    def _sum(self, products: list[Value], step: str) -> Value:
        total = products[0]
        for i, product in enumerate(products[1:], 1):
            total = self.builder.add_node("add", f"{self.name}.{step}.add{i}", [total, product])
        return total


def _scale_channels(x: Tensor, factors: tuple[Tensor, Tensor]) -> Tensor:
    """Return a * x + b for a map or a vector, with one a and one b per channel."""
    a, b = (factor[:, None, None] if x.dim() == 4 else factor for factor in factors)
    return a * x + b


def _take_signs(x: Tensor, threshold: Tensor) -> Tensor:
    """Return the signs of a map or of a vector, for one threshold per channel."""
    return torch.where(x < (threshold[:, None, None] if x.dim() == 4 else threshold), -1.0, 1.0)


def _is_ternary(weight: BinaryTensor) -> bool:
    return bool((weight.signs == 0).any()) and bool(((weight.signs == 0) | (weight.signs.abs() == 1)).all())


def _split_weight(name: str, weight: BinaryTensor) -> list[WeightBase]:
    """Return the bases of a weight.

    Levels -1, 0 and +1 are half of the sum of two signs, which differ where the level is 0.
    """
    bases = []
    for base in weight.split_bases():
        levels = to_array(base.signs)
        scale = _per_filter(name, base.scale, len(levels))
        if np.isin(levels, (-1, 1)).all():
            bases.append(WeightBase(levels, scale))
        elif np.isin(levels, (-1, 0, 1)).all():
            signs = (np.where(levels >= 0, 1, -1), np.where(levels > 0, 1, -1))
            bases += [WeightBase(plane.astype(np.float32), scale / 2) for plane in signs]
        else:
            raise_export_error(name, weight.non_binary_reason or "its weights have more than three levels")
    return bases


def _per_filter(name: str, scale: Tensor | None, num_filters: int) -> np.ndarray:
    """Return one float64 number per filter."""
    if scale is None:
        return np.ones(num_filters)
    values = to_array(scale).astype(np.float64).reshape(-1)
    if len(values) not in (1, num_filters):
        raise_export_error(
            name, f"a scale of shape {tuple(scale.shape)} is not supported together with several bases or levels"
        )
    return np.broadcast_to(values, num_filters).copy()
