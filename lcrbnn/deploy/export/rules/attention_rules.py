"""Rules for matrix products of two tensors, attention and transformer layers."""

from __future__ import annotations

import operator
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lcrbnn.deploy.export.binary_layers.sign_rules import to_array
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.graph.layouts import Layout, find_reorderings, simplify_layout
from lcrbnn.deploy.export.rules.activation_rules import export_softmax
from lcrbnn.deploy.export.rules.arithmetic_rules import FunctionRow, add_values, describe_shape, multiply_values
from lcrbnn.deploy.export.rules.constant_calls import make_constant
from lcrbnn.deploy.export.rules.linear_rules import export_matrix_product
from lcrbnn.deploy.export.rules.view_rules import select_elements

MASKED_SCORE = -1e30  # instead of -inf: its softmax is 0 too


def multiply_matrices(builder: GraphBuilder, name: str, input: Any, other: Any) -> Value:
    """Return the matrix product of two tensors, at least one of which is a value."""
    if isinstance(other, Tensor) and other.dim() == 2:
        return export_matrix_product(builder, name, input, other.T)
    if isinstance(input, Tensor) and input.dim() == 2:
        return export_matrix_product(builder, name, other, input, axis=-2)
    first, second = (
        _make_matrices(builder, f"{name}.constant", v, other if v is input else input) if isinstance(v, Tensor) else v
        for v in (input, other)
    )
    return _add_matrix_product(builder, name, builder.resolve(first, name), builder.resolve(second, name))


def _make_matrices(builder: GraphBuilder, name: str, constant: Tensor, value: Value) -> Value:
    """Return a constant as a value whose axis of the images matches that of the other factor."""
    rank, axis = len(value.torch_shape), value.layout.batch_axis
    shape = (1,) * (rank - constant.dim()) + tuple(constant.shape)
    if len(shape) != rank or shape[axis] != 1:
        raise_export_error(
            name, f"it multiplies a constant {tuple(constant.shape)} and a tensor {describe_shape(value)}"
        )
    return make_constant(builder, name, to_array(constant).reshape(shape), axis)


def _add_matrix_product(builder: GraphBuilder, name: str, a: Value, b: Value) -> Value:
    rank, axis = len(a.torch_shape), a.layout.batch_axis
    sizes = {v.torch_shape[v.layout.batch_axis] for v in (a, b)}
    if len(b.torch_shape) != rank or b.layout.batch_axis != axis or axis >= rank - 2 or len(sizes) != 1:
        raise_export_error(
            name, f"it multiplies tensors of the shapes {describe_shape(a)} and {describe_shape(b)} (n images)"
        )
    (m, k), (other_k, n) = a.torch_shape[-2:], b.torch_shape[-2:]
    if k != other_k:
        raise_export_error(name, f"it multiplies matrices of {m} x {k} and {other_k} x {n} numbers")
    leading = np.broadcast_shapes(a.torch_shape[:-2], b.torch_shape[:-2])
    h = prod(leading)
    first = np.broadcast_to(a.layout.indices, (*leading, m, k)).reshape(h, m, k)
    second = np.broadcast_to(b.layout.indices, (*leading, k, n)).reshape(h, k, n)
    plans = [find_reorderings(b.shape, target, b.layout.fill) for target in (second, second.swapaxes(1, 2))]
    lengths = [1000 if plan is None else len(plan) for plan in plans]
    transpose = int(lengths[1] < lengths[0])
    if transpose:
        second = second.swapaxes(1, 2)
    operands = [
        builder.arrange(v, f"{name}.{side}", target, Layout((1, *target.shape)))
        for v, target, side in ((a, first, "left"), (b, second, "right"))
    ]
    shape = (*leading, m, n)
    layout = Layout(shape, axis, np.arange(h * m * n, dtype=np.int32).reshape(shape))
    product = builder.add_node("matmul", name, operands, (h, m, n), layout=layout, transpose=transpose)
    simple_layout = simplify_layout(product.shape, layout)
    return product if simple_layout is layout else Value.from_node(product.node, simple_layout)


def _export_einsum(builder: GraphBuilder, name: str, equation: str, *operands: Any) -> Value:
    """Export a contraction of two tensors as a matrix product."""
    operands = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or len(operands) != 2 or "." in equation or "->" not in equation:
        raise ValueError("only an equation of two tensors with -> and without ... can be exported")
    if any(len(set(term)) != len(term) for term in (*terms, output)):
        raise ValueError("a letter occurs twice in a term")
    first, second = terms
    if set(first + second) - set(output) - (set(first) & set(second)):
        raise ValueError("it sums over a letter of one tensor alone")
    images = {t[v.layout.batch_axis] for t, v in zip(terms, operands, strict=True) if isinstance(v, Value)}
    if len(images) != 1 or not images <= set(output):
        raise ValueError("the axes of the images differ, or the sum includes them")
    image = images.pop()
    shared = [letter for letter in output if (letter in first and letter in second) or letter == image]
    summed = [letter for letter in first if letter in second and letter not in output]
    free = [[letter for letter in output if letter in term and letter not in shared] for term in terms]
    sides = []
    for term, operand, own_letters, is_left in zip(terms, operands, free, (True, False), strict=True):
        x = operand
        if isinstance(x, Tensor):
            if image in term:
                raise ValueError("a constant has the axis of the images")
            x = make_constant(builder, f"{name}.constant", to_array(x.unsqueeze(0)), 0)
            term = image + term
        sides.append(_arrange_factor(builder, name, x, term, shared, own_letters, summed, is_left))
    product = _add_matrix_product(builder, name, *sides)
    letter_sizes = {
        letter: size
        for term, v in zip(terms, operands, strict=True)
        for letter, size in zip(term, v.torch_shape if isinstance(v, Value) else v.shape, strict=True)
    }
    order = [*shared, *free[0], *free[1]]
    free_sizes = [letter_sizes[letter] for letter in (*free[0], *free[1])]
    return select_elements(
        builder,
        name,
        product,
        lambda v: v.reshape(*v.shape[: len(shared)], *free_sizes).permute([order.index(letter) for letter in output]),
    )


def _arrange_factor(
    builder: GraphBuilder,
    name: str,
    x: Value,
    term: str,
    shared: list[str],
    own_letters: list[str],
    summed: list[str],
    is_left: bool,
) -> Value:
    """Return a factor with the axes (shared letters, own letters as one, summed letters as one), or with the last two
    axes swapped."""
    present = [letter for letter in shared if letter in term]
    order = [term.index(letter) for letter in (*present, *own_letters, *summed)]
    num_own_elements = prod(builder.resolve(x, name).torch_shape[term.index(letter)] for letter in own_letters)

    def arrange(v: Tensor) -> Tensor:
        v = v.permute(order)
        sizes = [v.shape[present.index(letter)] if letter in present else 1 for letter in shared]
        v = v.reshape(*sizes, num_own_elements, -1)
        return v if is_left else v.transpose(-1, -2)

    return select_elements(builder, name, x, arrange)


def make_score_mask(name: str, mask: Tensor | None, is_causal: bool, queries: int, keys: int) -> Tensor | None:
    """Return the numbers to add to the scores of an attention; None if nothing is masked."""
    if is_causal:
        if mask is not None:
            raise_export_error(name, "it has a mask and is_causal")
        mask = torch.ones(queries, keys, dtype=torch.bool).tril()
    if mask is None:
        return None
    scores = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask
    if (scores == -torch.inf).all(-1).any() or scores.isnan().any():
        raise_export_error(name, "its mask hides all keys of a query")
    return scores.clamp_min(MASKED_SCORE)


def export_attention(
    builder: GraphBuilder, name: str, query: Value, key: Value, value: Value, mask: Tensor | None, scale: float
) -> tuple[Value, Value]:
    """Return the output of a scaled dot-product attention and its weights; all inputs are (n, heads, tokens, size)."""
    transposed = select_elements(builder, name, key, lambda v: v.transpose(-1, -2))
    scores = multiply_matrices(builder, f"{name}.scores", query, transposed)
    if scale != 1:
        scores = multiply_values(builder, f"{name}.scale", scores, scale)
    if mask is not None:
        scores = add_values(builder, f"{name}.mask", scores, mask)
    weights = export_softmax(builder, f"{name}.softmax", scores, -1)
    return multiply_matrices(builder, name, weights, value), weights


def _export_scaled_dot_product(
    builder: GraphBuilder,
    name: str,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p or enable_gqa or isinstance(attn_mask, Value):
        raise ValueError("dropout_p, enable_gqa or a mask that is not a constant")
    query, key = builder.resolve(query, name), builder.resolve(key, name)
    mask = make_score_mask(name, attn_mask, is_causal, query.torch_shape[-2], key.torch_shape[-2])
    factor = 1 / sqrt(query.torch_shape[-1]) if scale is None else float(scale)
    return export_attention(builder, name, query, key, value, mask, factor)[0]


MATRIX_ROWS: list[FunctionRow] = [
    ((operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"), multiply_matrices),
    ((torch.einsum,), _export_einsum),
    ((F.scaled_dot_product_attention,), _export_scaled_dot_product),
]
