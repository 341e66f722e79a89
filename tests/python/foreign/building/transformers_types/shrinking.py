"""A config's numbers made small, by what they are called.

Configs of many hundred types have many names for the same things; the tables here say which names are
layers, widths and experts. A `Way` is one attempt, and the first with which a model runs is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True)
class Way:
    name: str
    widths: str | int | None = "fixed"
    """Widths as `FIXED` says, or all divided by a number, or as they are."""
    layers: int | None = 2
    image: int | None = 96
    experts: bool = True
    filled: bool = False
    """Whether numbers that a config leaves open are given."""
    stages: bool = False
    """Whether the names of a backbone's stages are cut to fit."""


WAYS = (
    Way("fixed"),
    Way("scaled", widths=8, image=224),
    Way("scaled, all layers", widths=4, layers=None, image=None),
    Way("layers", widths=None, image=None),
    Way("filled", filled=True),
    Way("four layers", layers=4, stages=True, filled=True),
    Way("scaled, all experts", widths=4, image=256, experts=False),
    Way("stages", widths=8, image=224, stages=True, filled=True),
    Way("default", widths=None, layers=None, image=None, experts=False),
)

_LAYERS = re.compile(
    r"^(num_hidden_layers|n_layers?|num_layers|depth|num_blocks|n_blocks|num_hidden_groups"
    r"|(num_)?(encoder|decoder|text|vision|audio|hidden|transformer|prediction|refine|fusion|e2e|dec|enc"
    r"|q_former|conv|lstm|resampler|perceiver|mixer|.*transformer|num_self_attends|.*encoder|.*decoder|.*hidden"
    r"|.*depth)_layers|num_self_attends_per_block|num_.*_layers|.*_num_hidden_layers|.*_depth|.*_n_layers?)$"
)
_NO_LAYERS = re.compile(
    r"(feat_extract|conv_layers|predict_layers|adapter_layers|feature_layer|nextn|lstm|postnet"
    r"|speech_decoder_prenet_layers|mtp|upsample|downsample|num_conv|kv_shared|num_down_layers|num_up_layers)"
)
_WIDTHS = re.compile(
    r"(hidden_size|hidden_dim|^dim$|_dim$|_dims$|embd|n_inner|rank|width|d_model|d_ff|d_kv|d_state|d_head|ffn"
    r"|embed_dims?|hidden_sizes|hidden_channels|embedding_size|_channels$|intermediate_size|d_inner|inner_dim"
    r"|projection_size|_size$|projection_dims?|decoder_channels|proj_|filters|units|kv_channels)"
)
_NO_WIDTHS = re.compile(
    r"(patch_size|image_size|kernel_size|window_size|vocab|chunk|kernel|merge_size|num_channels|^in_channels"
    r"|in_chans|batch|pool_size|layers|block_size|tile|stride|max_|num_|crop|temporal|grid|codebook_size|sample"
    r"|frame|bucket|group|expert_capacity|type_vocab|hop|n_fft|context|audio_channels|mel|input_size|conv_size"
    r"|conv_dim_|cardinality|latent_size|box|token|feature_size|out_size|smoothing|min_size|memory_size|scale|shift)"
)
_INDICES = re.compile(
    r"(index|indices|indexes|cross_attention_layers|_layers_idx|layer_ids|global_attn|no_rope_layers|out_layers)"
)
_DROPS = re.compile(
    r"(dropout|drop_path|layerdrop|drop_rate|drop_prob|pdrop|mask_time_prob|mask_feature_prob|drop$"
    r"|jitter_noise|stochastic_depth)"
)
_TOKENS = re.compile(r"(token_ids?|token_index|_token|_id)$")


def _each(size: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


FIXED = {
    **_each(
        64,
        "hidden_size d_model n_embd embed_dim dim hidden_dim word_embed_proj_dim embedding_size encoder_hidden_size"
        " decoder_hidden_size cross_attention_hidden_size projection_dim out_hidden_size moe_intermediate_size"
        " shared_expert_intermediate_size text_hidden_size vision_hidden_size audio_hidden_size output_dim encoder_dim"
        " decoder_dim lm_hidden_size d_embed multi_modal_hidden_size mm_hidden_size emb_dim attention_hidden_size",
    ),
    **_each(
        128,
        "intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim n_inner_dim ffn_hidden_size"
        " decoder_intermediate_size encoder_intermediate_size",
    ),
    **_each(
        16,
        "head_dim global_head_dim d_kv kv_channels qk_nope_head_dim qk_rope_head_dim v_head_dim rotary_dim"
        " rotary_dims hidden_size_per_layer_input index_head_dim linear_key_head_dim linear_value_head_dim swa_head_dim",
    ),
    **_each(32, "q_lora_rank kv_lora_rank qk_head_dim"),
    **_each(
        4,
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads"
        " index_n_heads linear_num_value_heads encoder_num_attention_heads decoder_num_attention_heads",
    ),
    **_each(2, "num_key_value_heads num_heads_kv num_kv_heads linear_num_key_heads"),
}
EXPERTS = {
    **_each(4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    **_each(
        2,
        "num_experts_per_tok moe_topk moe_k num_selected_experts num_experts_per_token top_k_experts moe_top_k router_topk",
    ),
    **_each(1, "n_group topk_group num_expert_group num_limited_groups"),
    "expert_capacity": 16,
}
PERIODS = {
    **_each(
        1,
        "encoder_sparse_step decoder_sparse_step first_k_dense_replace attn_layer_offset expert_layer_offset"
        " num_sparse_encoder_layers num_sparse_decoder_layers",
    ),
    **_each(2, "attn_layer_period expert_layer_period"),
}
OPEN = {
    **_each(
        4, "n_routed_experts num_experts num_local_experts num_key_value_heads moe_num_experts compress_ratio"
    ),
    **_each(1, "n_shared_experts n_group topk_group first_k_dense_replace"),
    **_each(64, "moe_intermediate_size shared_expert_intermediate_size"),
    **_each(32, "kv_lora_rank q_lora_rank"),
    **_each(8, "sliding_window token_budget"),
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "intermediate_size": 128,
    "prediction_length": 8,
    "routed_scaling_factor": 1.0,
    "vocab_size": 1024,
}
SAME_HEADS = "_same_heads"
"""A mark, while shrinking: the config has as many heads of keys as of queries."""
_NOT_PARTS = ("id2label", "label2id", "task_specific_params", "quantization_config")
VOCABULARY = 1024


def each_part(config: Config, function: Callable[[Config], object]) -> None:
    """For a config and those inside of it, the outer first."""
    function(config)
    for name, value in list(config.items()):
        if isinstance(value, dict) and name not in _NOT_PARTS:
            each_part(value, function)


def shrunk(config: Config, way: Way) -> None:
    each_part(config, _mark_heads)
    each_part(config, lambda part: _shrink(part, way))
    each_part(config, lambda part: part.pop(SAME_HEADS, None))
    fit_tokens(config)
    each_part(config, without_chance)
    if way.filled:
        each_part(config, _fill)
    if way.stages:
        each_part(config, _fit_stages)


def _mark_heads(part: Config) -> None:
    heads = part.get("num_attention_heads") or part.get("num_heads")
    if is_int(heads) and part.get("num_key_value_heads") == heads:
        part[SAME_HEADS] = True


def _shrink(part: Config, way: Way) -> None:
    if way.layers:
        fewer_layers(part, way.layers)
    for name, value in list(part.items()):
        if is_int(value):
            part[name] = _number(name, value, part, way)
        elif _are_ints(value):
            part[name] = _numbers(name, value, way)
    if way.image:
        _smaller_image(part, way.image)


def _number(name: str, value: int, part: Config, way: Way) -> int:
    if name.endswith("vocab_size") and "codebook" not in name:
        return min(value, VOCABULARY)
    if way.experts and name in EXPERTS:
        return min(value, EXPERTS[name])
    if way.layers and name in PERIODS:
        return min(value, PERIODS[name])
    if way.widths == "fixed" and name in FIXED and value > 0:
        if name == "num_key_value_heads" and (value == 1 or SAME_HEADS in part):
            return 1 if value == 1 else FIXED["num_attention_heads"]
        return FIXED[name]
    if isinstance(way.widths, int) and _is_width(name) and value >= 32 and value % 8 == 0:
        return max(4, value // way.widths)
    return value


def _numbers(name: str, values: list[int], way: Way) -> list[int]:
    if name == "mrope_section":
        if way.widths == "fixed":
            return [2, 3, 3]
        return [max(1, x // way.widths) for x in values] if isinstance(way.widths, int) else values
    if (
        isinstance(way.widths, int)
        and _is_width(name)
        and max(values) >= 64
        and not any(x % 8 for x in values)
    ):
        return [max(4, x // way.widths) for x in values]
    return values


def _is_width(name: str) -> bool:
    return bool(_WIDTHS.search(name)) and not _NO_WIDTHS.search(name)


def _smaller_image(part: Config, most: int) -> None:
    patch, size = part.get("patch_size"), part.get("image_size")
    large = patch if is_int(patch) and patch >= 7 else None
    if is_int(size) and size > most:
        part["image_size"] = large * 4 if large else most
    elif _are_ints(size) and max(size) > most:
        part["image_size"] = [(large or 16) * 4] * len(size)


# ---- layers --------------------------------------------------------------------------------


def fewer_layers(part: Config, keep: int) -> None:
    """Of lists with an entry a layer each kind that occurs is kept, if they are few."""
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    before = next((part[name] for name in names if is_int(part.get(name))), None)
    kept = _kept(part, before, keep) if before and before > keep else None
    for name, value in list(part.items()):
        if is_int(value) and _LAYERS.match(name) and not _NO_LAYERS.search(name) and value > keep:
            part[name] = len(kept) if kept and value == before else keep
        elif isinstance(value, list) and value:
            part[name] = _fewer(name, value, before, kept)


def _kept(part: Config, before: int, keep: int) -> list[int]:
    for value in part.values():
        if isinstance(value, list) and len(value) == before and isinstance(value[0], (str, int)):
            first: dict[Any, int] = {}
            for at, kind in enumerate(value):
                first.setdefault(kind, at)
            if 1 < len(first) <= 4:
                chosen = sorted(first.values())
                while len(chosen) < keep:
                    chosen.append(chosen[-1] + 1)
                return sorted(set(chosen))
    return list(range(keep))


def _fewer(name: str, value: list[Any], before: int | None, kept: list[int] | None) -> list[Any]:
    if kept and len(value) == before and not isinstance(value[0], dict):
        return [value[at] for at in kept if at < len(value)]
    depths = ("depths", "layers", "num_blocks", "encoder_depths", "decoder_depths", "layer_depths")
    if name in depths and _are_ints(value):
        return [min(depth, 2) if at < 2 else 1 for at, depth in enumerate(value)]
    if kept and _are_ints(value) and _INDICES.search(name) and max(value) >= len(kept):
        if "out_indices" in name or "deepstack" in name:
            return [min(at, len(kept) - 1) for at in range(len(value))]
        return [at for at in value if at < len(kept)] or [len(kept) - 1]
    return value


# ---- the rest ------------------------------------------------------------------------------


def without_chance(part: Config) -> None:
    for name, value in list(part.items()):
        if isinstance(value, bool):
            if name in ("use_cache", "apply_spec_augment"):
                part[name] = False
        elif isinstance(value, (int, float)) and _DROPS.search(name):
            part[name] = type(value)(0)


def _fill(part: Config) -> None:
    for name, value in list(part.items()):
        if value is None and name in OPEN:
            part[name] = OPEN[name]


def _fit_stages(part: Config) -> None:
    for name, value in list(part.items()):
        if name == "stage_names":
            part.pop(name)
        elif name == "out_features" and isinstance(value, list):
            part[name] = [f"stage{at + 1}" for at in range(min(4, len(value)))]
        elif name == "out_indices" and isinstance(value, list):
            part[name] = list(range(1, 1 + len(value)))
        elif name == "backbone_out_indices" and isinstance(value, list):
            part[name] = list(range(len(value)))


def fit_tokens(config: Config) -> None:
    """Special tokens lie in the smaller vocabulary, each at a place of its own."""
    sizes: list[int] = []

    def note(part: Config) -> None:
        sizes.extend(v for k, v in part.items() if k.endswith("vocab_size") and is_int(v) and v >= 64)

    each_part(config, note)
    if not sizes:
        return
    most, places = min(sizes), dict[int, int]()

    def fitting(token: int) -> int:
        return token if token < most else places.setdefault(token, most - 1 - len(places))

    def fit(part: Config) -> None:
        for name, value in list(part.items()):
            if not _TOKENS.search(name):
                continue
            if is_int(value):
                part[name] = fitting(value)
            elif _are_ints(value):
                part[name] = [fitting(token) for token in value]

    each_part(config, fit)


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_ints(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(map(is_int, value))
