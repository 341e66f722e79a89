"""Networks of Diffusers with a width and a depth of their own: to noise, to latents, under control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .built import BATCH, Built, NotBuilt, finished, said

TIME, TEXT, PIXELS = 6, 24, 16
Options = dict[str, Any]
_UNET: Options = {"layers_per_block": 1, "block_out_channels": (16, 32), "norm_num_groups": 4}
_CROSS: Options = {
    **_UNET,
    "sample_size": PIXELS,
    "cross_attention_dim": TEXT,
    "attention_head_dim": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
}
_MOTION: Options = {name: value for name, value in _CROSS.items() if name != "attention_head_dim"}
_CONTROL: Options = {name: value for name, value in _CROSS.items() if name != "sample_size"}
_VAE: Options = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (16, 32),
    "norm_num_groups": 4,
    "latent_channels": 4,
}
_DIT: Options = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2}


def noise(*shape: int) -> Tensor:
    return torch.randn(
        BATCH, *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64
    )


def steps() -> Tensor:
    return torch.arange(BATCH) * 7 + 1


def _seen(channels: int = 4, pixels: int = PIXELS) -> Options:
    return {"sample": noise(channels, pixels, pixels)}


def _told(**others: Any) -> Options:
    return {"timestep": steps(), "encoder_hidden_states": noise(TIME, TEXT), **others}


def _joined(channels: int = 4, **others: Any) -> Options:
    return {"hidden_states": noise(channels, PIXELS, PIXELS), **_told(**others)}


def _film(channels: int = 4, frames: int = 3) -> Options:
    return {"hidden_states": noise(channels, frames, PIXELS, PIXELS), **_told()}


def _ids(length: int, width: int = 3) -> Tensor:
    return torch.arange(length * width, dtype=torch.float64).reshape(length, width) % 5


NETWORKS: dict[str, tuple[Options, Callable[[], Options]]] = {
    "UNet2DModel": (
        _UNET | {"sample_size": PIXELS, "attention_head_dim": 8, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                 "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
        lambda: _seen(3) | {"timestep": steps()},
    ),
    "UNet2DConditionModel": (_CROSS | {"up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}, lambda: _seen() | _told()),
    "UNet3DConditionModel": (
        _CROSS | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                  "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
        lambda: {"sample": noise(4, 4, PIXELS, PIXELS)} | _told(),
    ),
    "UNetMotionModel": (
        _MOTION | {"down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"),
                  "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "motion_num_attention_heads": 2},
        lambda: {"sample": noise(4, 4, PIXELS, PIXELS)} | _told(),
    ),
    "ControlNetModel": (
        _CONTROL | {"conditioning_embedding_out_channels": (8, 16)},
        lambda: _seen() | _told(controlnet_cond=noise(3, 2 * PIXELS, 2 * PIXELS)),
    ),
    "AutoencoderKL": (_VAE, lambda: _seen(3)),
    "AutoencoderTiny": (
        {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1),
         "num_decoder_blocks": (1, 1)},
        lambda: _seen(3),
    ),
    "AsymmetricAutoencoderKL": (
        {"down_block_types": ("DownEncoderBlock2D",) * 2, "down_block_out_channels": (16, 32),
         "up_block_types": ("UpDecoderBlock2D",) * 2, "up_block_out_channels": (16, 32), "norm_num_groups": 4},
        lambda: _seen(3),
    ),
    "AutoencoderKLTemporalDecoder": (
        {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2, "layers_per_block": 1},
        lambda: _seen(3) | {"num_frames": 2},
    ),
    "VQModel": (_VAE | {"latent_channels": 3, "num_vq_embeddings": 16}, lambda: _seen(3)),
    "Transformer2DModel": (
        _DIT | {"in_channels": 16, "norm_num_groups": 4, "cross_attention_dim": TEXT},
        lambda: {"hidden_states": noise(16, PIXELS, PIXELS), "encoder_hidden_states": noise(TIME, TEXT)},
    ),
    "DiTTransformer2DModel": (
        _DIT | {"in_channels": 4, "out_channels": 8, "sample_size": PIXELS, "num_embeds_ada_norm": 8, "norm_num_groups": 4},
        lambda: {"hidden_states": noise(4, PIXELS, PIXELS), "timestep": steps() % 8, "class_labels": steps() % 5},
    ),
    "PixArtTransformer2DModel": (
        _DIT | {"in_channels": 4, "out_channels": 8, "sample_size": PIXELS, "cross_attention_dim": 16,
                "caption_channels": TEXT, "use_additional_conditions": False, "norm_num_groups": 4},
        lambda: _joined(added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
    ),
    "SD3Transformer2DModel": (
        _DIT | {"sample_size": PIXELS, "in_channels": 4, "out_channels": 4, "joint_attention_dim": TEXT,
                "caption_projection_dim": 16, "pooled_projection_dim": 12, "pos_embed_max_size": 16},
        lambda: _joined(pooled_projections=noise(12)),
    ),
    "FluxTransformer2DModel": (
        {"in_channels": 4, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
         "joint_attention_dim": TEXT, "pooled_projection_dim": 12, "axes_dims_rope": (4, 6, 6)},
        lambda: {"hidden_states": noise(16, 4), **_told(pooled_projections=noise(12)), "img_ids": _ids(16),
                 "txt_ids": _ids(TIME)},
    ),
    "AuraFlowTransformer2DModel": (
        {"sample_size": PIXELS, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 8,
         "num_attention_heads": 2, "joint_attention_dim": TEXT, "caption_projection_dim": 16, "pos_embed_max_size": 256},
        lambda: _joined(),
    ),
    "SanaTransformer2DModel": (
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1,
         "num_cross_attention_heads": 2, "cross_attention_head_dim": 8, "cross_attention_dim": 16,
         "caption_channels": TEXT, "sample_size": PIXELS},
        lambda: _joined(),
    ),
    "CogVideoXTransformer3DModel": (
        _DIT | {"in_channels": 4, "out_channels": 4, "time_embed_dim": 8, "text_embed_dim": TEXT, "num_layers": 1,
                "sample_width": PIXELS, "sample_height": PIXELS, "sample_frames": 5, "max_text_seq_length": TIME},
        lambda: {"hidden_states": noise(2, 4, PIXELS, PIXELS), **_told()},
    ),
    "LTXVideoTransformer3DModel": (
        {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1,
         "cross_attention_dim": 16, "caption_channels": TEXT},
        lambda: {"hidden_states": noise(32, 4), **_told(), "num_frames": 2, "height": 4, "width": 4,
                 "encoder_attention_mask": torch.ones(BATCH, TIME, dtype=torch.bool)},
    ),
    "WanTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "text_dim": TEXT,
         "freq_dim": 32, "ffn_dim": 32, "num_layers": 1, "patch_size": (1, 2, 2)},
        lambda: _film(),
    ),
    "MochiTransformer3DModel": (
        {"patch_size": 2, "num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 2, "pooled_projection_dim": 16,
         "in_channels": 4, "text_embed_dim": TEXT, "time_embed_dim": 8},
        lambda: _film() | {"encoder_attention_mask": torch.ones(BATCH, TIME, dtype=torch.bool)},
    ),
    "AllegroTransformer3DModel": (
        {"num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "num_layers": 1,
         "cross_attention_dim": 24, "caption_channels": TEXT, "sample_height": PIXELS, "sample_width": PIXELS,
         "sample_frames": 3},
        lambda: _film(),
    ),
    "StableAudioDiTModel": (
        {"sample_size": 16, "in_channels": 4, "out_channels": 4, "num_layers": 2, "attention_head_dim": 8,
         "num_attention_heads": 2, "num_key_value_attention_heads": 2, "cross_attention_dim": TEXT,
         "cross_attention_input_dim": TEXT, "time_proj_dim": 8, "global_states_input_dim": 8},
        lambda: {"hidden_states": noise(4, 16), "timestep": steps().double(), "encoder_hidden_states": noise(TIME, TEXT),
                 "global_hidden_states": noise(1, 8)},
    ),
    "PriorTransformer": (
        _DIT | {"embedding_dim": TEXT, "num_embeddings": TIME, "additional_embeddings": 4},
        lambda: {"hidden_states": noise(TEXT), "timestep": steps(), "proj_embedding": noise(TEXT),
                 "encoder_hidden_states": noise(TIME, TEXT)},
    ),
    "UVit2DModel": (
        {"hidden_size": 32, "cond_embed_dim": 16, "encoder_hidden_size": TEXT, "num_hidden_layers": 1,
         "num_attention_heads": 2, "intermediate_size": 48, "block_out_channels": 32, "in_channels": 32,
         "block_num_heads": 2, "sample_size": 8, "vocab_size": 40, "codebook_size": 32, "micro_cond_encode_dim": 8,
         "micro_cond_embed_dim": 40},
        lambda: {"input_ids": torch.randint(32, (BATCH, 8, 8), generator=torch.Generator().manual_seed(0)),
                 "encoder_hidden_states": noise(TIME, TEXT), "pooled_text_emb": noise(16), "micro_conds": noise(5)},
    ),
}  # fmt: skip


def names() -> list[str]:
    return list(NETWORKS)


def build(name: str) -> Built:
    import diffusers

    options, example = NETWORKS[name]
    torch.manual_seed(0)
    try:
        module = getattr(diffusers, name)(**options)
    except Exception as error:
        raise NotBuilt(said(error)) from error
    return finished(module, example(), task="diffusion")
