"""TRANSFORMER_RULES: rules for nn.MultiheadAttention and the transformer encoder, which take several arguments."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from lcrbnn.deploy.export.fx_tracing import ModuleExporter
from lcrbnn.deploy.export.graph.graph_builder import GraphBuilder, Value, raise_export_error
from lcrbnn.deploy.export.rules.arithmetic_rules import add_values
from lcrbnn.deploy.export.rules.attention_rules import export_attention, make_score_mask
from lcrbnn.deploy.export.rules.function_rules import FUNCTIONS
from lcrbnn.deploy.export.rules.linear_rules import export_matrix_product
from lcrbnn.deploy.export.rules.reduction_rules import export_mean
from lcrbnn.deploy.export.rules.view_rules import select_elements
from lcrbnn.nn.layers import BinaryLayer


def _export_multihead_attention(
    builder: GraphBuilder,
    name: str,
    module: nn.MultiheadAttention,
    export_module: ModuleExporter,
    query: Value,
    key: Value,
    value: Value,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Value, Value | None]:
    if key_padding_mask is not None or not isinstance(attn_mask, Tensor | None):
        raise_export_error(name, "it has a key_padding_mask, or a mask that is not a constant")
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        raise_export_error(name, "it has add_bias_kv or add_zero_attn")
    if isinstance(module.out_proj, BinaryLayer):
        raise_export_error(name, "its out_proj is binary, but PyTorch uses the real weights of out_proj")
    if attn_mask is None and is_causal:
        raise_export_error(name, "it is causal without a mask: pass the mask too")
    heads, size, embed = module.num_heads, module.head_dim, module.embed_dim
    is_batch_first = module.batch_first
    batch_axis = 0 if is_batch_first else 1
    if any(len(v.torch_shape) != 3 or v.layout.batch_axis != batch_axis for v in (query, key, value)):
        raise_export_error(
            name, f"it has batch_first={is_batch_first}, so it needs tensors with the images on axis {batch_axis}"
        )
    weights = [module.q_proj_weight, module.k_proj_weight, module.v_proj_weight]
    if module.in_proj_weight is not None:
        weights = list(module.in_proj_weight.split(embed))
    biases = [None] * 3 if module.in_proj_bias is None else list(module.in_proj_bias.split(embed))
    axes = (0, 2, 1, 3) if is_batch_first else (1, 2, 0, 3)
    parts = []
    for x, weight, bias, part in zip((query, key, value), weights, biases, ("query", "key", "value"), strict=True):
        y = export_matrix_product(builder, f"{name}.{part}", x, weight, bias)
        parts.append(select_elements(builder, name, y, lambda v: v.unflatten(-1, (heads, size)).permute(axes)))
    queries, keys = parts[0].torch_shape[-2], parts[1].torch_shape[-2]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask  # here, True hides a key; in scaled_dot_product_attention, True shows it
    mask = make_score_mask(name, attn_mask, False, queries, keys)
    if mask is not None and mask.dim() != 2:
        raise_export_error(name, f"its mask has {mask.dim()} axes; only a mask (queries, keys) can be exported")
    y, attention = export_attention(builder, f"{name}.attention", parts[0], parts[1], parts[2], mask, 1 / sqrt(size))
    back = (0, 2, 1, 3) if is_batch_first else (2, 0, 1, 3)
    y = select_elements(builder, name, y, lambda v: v.permute(back).flatten(2))
    y = export_matrix_product(builder, name, y, module.out_proj.weight, module.out_proj.bias)
    if not need_weights:
        return y, None
    return y, export_mean(builder, f"{name}.weights", attention, 1) if average_attn_weights else attention


def _export_encoder_layer(
    builder: GraphBuilder,
    name: str,
    layer: nn.TransformerEncoderLayer,
    export_module: ModuleExporter,
    src: Value,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Value:
    def export(part: str, *inputs: Value, **options: Any) -> Any:
        return export_module(builder, f"{name}.{part}" if name else part, layer.get_submodule(part), *inputs, **options)

    def attend(x: Value) -> Value:
        output: Value = export(
            "self_attn", x, x, x, key_padding_mask=src_key_padding_mask, need_weights=False, attn_mask=src_mask
        )[0]
        return output

    def feed_forward(x: Value) -> Value:
        y = export("linear1", x)
        if isinstance(layer.activation, nn.Module):
            y = export("activation", y)
        elif layer.activation in FUNCTIONS:
            y = FUNCTIONS[layer.activation](builder, f"{name}.activation", y)
        else:
            raise_export_error(name, f"its activation {layer.activation} has no export rule")
        output: Value = export("linear2", y)
        return output

    def add(part: str, x: Value, y: Value) -> Value:
        return add_values(builder, f"{name}.{part}", x, y)

    x = src
    if layer.norm_first:
        x = add("add1", x, attend(export("norm1", x)))
        return add("add2", x, feed_forward(export("norm2", x)))
    x = export("norm1", add("add1", x, attend(x)))
    normalized: Value = export("norm2", add("add2", x, feed_forward(x)))
    return normalized


def _export_encoder(
    builder: GraphBuilder,
    name: str,
    encoder: nn.TransformerEncoder,
    export_module: ModuleExporter,
    src: Value,
    mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool | None = None,
) -> Value:
    x = src
    for part, layer in encoder.layers._modules.items():  # named_children would skip repeated layers
        path = f"{name}.layers.{part}" if name else f"layers.{part}"
        x = export_module(builder, path, layer, x, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
    if encoder.norm is not None:
        x = export_module(builder, f"{name}.norm" if name else "norm", encoder.norm, x)
    return x


TRANSFORMER_RULES: dict[type[nn.Module], Callable[..., Any]] = {
    nn.MultiheadAttention: _export_multihead_attention,
    nn.TransformerEncoderLayer: _export_encoder_layer,
    nn.TransformerEncoder: _export_encoder,
}
