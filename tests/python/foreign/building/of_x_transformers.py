"""Transformers of x-transformers in several of the forms that it has switches for."""

from __future__ import annotations

from typing import Any

import torch

from .built import BATCH, Built, NotBuilt, finished, image, said

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "relative": {"rel_pos_bias": True},
    "dynamic-positions": {"dynamic_pos_bias": True},
    "xpos": {"rotary_xpos": True},
    "gated": {"ff_glu": True, "ff_swish": True, "ff_no_bias": True},
    "squared-relu": {"ff_relu_squared": True},
    "rmsnorm": {"use_rmsnorm": True},
    "scalenorm": {"use_scalenorm": True},
    "sandwich": {"sandwich_norm": True},
    "post-norm": {"pre_norm": False, "residual_attn": True},
    "talking-heads": {"attn_pre_talking_heads": True},
    "one-head-of-keys": {"attn_one_kv_head": True},
    "key-groups": {"attn_kv_heads": 2},
    "normed-keys": {"attn_qk_norm": True},
    "memory-tokens": {"attn_num_mem_kv": 2},
    "gated-values": {"attn_gate_values": True},
    "macaron": {"macaron": True},
    "shifted": {"shift_tokens": 1},
    "sparse-topk": {"attn_sparse_topk": 4},
    "hyper-connections": {"num_residual_streams": 2},
}
WORDS, TIME = 61, 16


def names() -> list[str]:
    return [*(f"decoder-{form}" for form in FORMS), "encoder", "vit", "encoder-decoder"]


def build(name: str) -> Built:
    import x_transformers as x

    torch.manual_seed(0)
    ids = torch.randint(WORDS, (BATCH, TIME))
    size = {"dim": 32, "depth": 2, "heads": 4, "attn_dim_head": 8}
    try:
        if name == "encoder":
            module = x.TransformerWrapper(num_tokens=WORDS, max_seq_len=TIME, attn_layers=x.Encoder(**size))
            return finished(module, args=(ids,), task="text")
        if name == "vit":
            layers = x.Encoder(**size)
            module = x.ViTransformerWrapper(image_size=32, patch_size=8, num_classes=5, attn_layers=layers)
            return finished(module, args=(image(3, 32),), task="images")
        if name == "encoder-decoder":
            module = x.XTransformer(
                dim=32, enc_num_tokens=WORDS, enc_depth=2, enc_heads=4, enc_max_seq_len=TIME,
                dec_num_tokens=WORDS, dec_depth=2, dec_heads=4, dec_max_seq_len=TIME,
            )  # fmt: skip
            return finished(module, args=(ids, ids.roll(1)), task="text")
        layers = x.Decoder(**size, **FORMS[name.removeprefix("decoder-")])
        module = x.TransformerWrapper(num_tokens=WORDS, max_seq_len=TIME, attn_layers=layers)
        return finished(x.AutoregressiveWrapper(module), args=(ids,), task="text")
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(said(error)) from error
