"""The second half of the zoo: encoders with decoders, shifted windows, experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from zoo import BATCH, Model, image, padded, prepared, some_ignored, tokens


def t5(layers: int = 2, dropout: float = 0.0) -> Model:
    """Buckets of relative positions, embeddings tied three times, decoder inputs made from labels."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=53,
        d_model=16,
        d_kv=4,
        d_ff=24,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=10,
        dropout_rate=dropout,
        decoder_start_token_id=0,
        use_cache=False,
    )
    batch = {
        "input_ids": tokens(53, 9),
        "attention_mask": padded(BATCH, 9),
        "labels": some_ignored(tokens(53, 7)),
    }
    return prepared(T5ForConditionalGeneration(config)), (), batch


def whisper(layers: int = 2, dropout: float = 0.0) -> Model:
    """Convolutions before an encoder whose positions do not train."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=53,
        num_mel_bins=6,
        d_model=16,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        max_source_positions=10,
        max_target_positions=12,
        dropout=dropout,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        use_cache=False,
    )
    sound = torch.randn(BATCH, 6, 20, dtype=torch.float64)
    batch = {"input_features": sound, "labels": some_ignored(tokens(53, 7))}
    return prepared(WhisperForConditionalGeneration(config)), (), batch


def swin(stages: int = 2, dropout: float = 0.0) -> Model:
    """The second layer of each stage has shifted windows."""
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    config = SwinConfig(
        image_size=16,
        patch_size=2,
        embed_dim=8,
        depths=[2, 2][:stages],
        num_heads=[2, 4][:stages],
        window_size=2,
        drop_path_rate=dropout,
        hidden_dropout_prob=dropout,
        num_labels=7,
    )
    batch = {"pixel_values": image(3, 16), "labels": torch.randint(7, (BATCH,))}
    return prepared(SwinForImageClassification(config)), (), batch


def mixtral(experts: str = "eager", layers: int = 2, dropout: float = 0.0) -> Model:
    """Two of four experts for each token, the loss of an uneven choice among them included."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=53,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=32,
        sliding_window=None,
        router_aux_loss_coef=0.02,
        attention_dropout=dropout,
        experts_implementation=experts,
        use_cache=False,
    )
    ids = tokens(53, 8)
    batch = {"input_ids": ids, "labels": some_ignored(ids), "output_router_logits": True}
    return prepared(MixtralForCausalLM(config)), (), batch


MODELS: dict[str, Callable[[], Model]] = {"t5": t5, "whisper": whisper, "swin": swin, "mixtral": mixtral}
# The same with as little as has everything in it.
SMALL: dict[str, Callable[[], Model]] = {
    "t5": partial(t5, 1),
    "whisper": partial(whisper, 1),
    "swin": partial(swin, 1),
    "mixtral": partial(mixtral, layers=1),
}
