"""Models of Transformers in their usual sizes, with a batch as their users give it."""

from __future__ import annotations

import torch

Model = tuple[torch.nn.Module, dict[str, torch.Tensor]]

BATCH = 8


def words(length: int) -> torch.Tensor:
    return torch.zeros(BATCH, length, dtype=torch.long)


def llama() -> Model:
    """Llama 3.2 of 1B."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        use_cache=False,
    )
    ids = words(2048)
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


def gpt2() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    ids = words(1024)
    return GPT2LMHeadModel(GPT2Config(use_cache=False)).train(), {"input_ids": ids, "labels": ids}


def bert() -> Model:
    from transformers import BertConfig, BertForMaskedLM

    ids = words(512)
    batch = {"input_ids": ids, "attention_mask": ids, "labels": ids}
    return BertForMaskedLM(BertConfig()).train(), batch


def vit() -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    module = ViTForImageClassification(ViTConfig(num_labels=1000))
    return module.train(), {"pixel_values": torch.zeros(BATCH, 3, 224, 224), "labels": words(1)[:, 0]}


def resnet() -> Model:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    module = ResNetForImageClassification(ResNetConfig(num_labels=1000))
    return module.train(), {"pixel_values": torch.zeros(BATCH, 3, 224, 224), "labels": words(1)[:, 0]}


def t5() -> Model:
    """T5 base."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=768,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        decoder_start_token_id=0,
        use_cache=False,
    )
    ids = words(512)
    batch = {"input_ids": ids, "attention_mask": ids, "labels": ids}
    return T5ForConditionalGeneration(config).train(), batch


def whisper() -> Model:
    """Whisper small."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        d_model=768,
        encoder_layers=12,
        encoder_attention_heads=12,
        encoder_ffn_dim=3072,
        decoder_layers=12,
        decoder_attention_heads=12,
        decoder_ffn_dim=3072,
        use_cache=False,
    )
    batch = {"input_features": torch.zeros(BATCH, 80, 3000), "labels": words(256)}
    return WhisperForConditionalGeneration(config).train(), batch


def swin() -> Model:
    """Swin tiny."""
    from transformers import SwinConfig, SwinForImageClassification

    module = SwinForImageClassification(SwinConfig(num_labels=1000))
    return module.train(), {"pixel_values": torch.zeros(BATCH, 3, 224, 224), "labels": words(1)[:, 0]}


def mixtral() -> Model:
    """Mixtral 8x7B."""
    from transformers import MixtralConfig, MixtralForCausalLM

    ids = words(2048)
    module = MixtralForCausalLM(MixtralConfig(use_cache=False))
    return module.train(), {"input_ids": ids, "labels": ids}


MODELS = {
    "Llama 3.2, 1B": llama,
    "GPT-2": gpt2,
    "BERT base": bert,
    "ViT base": vit,
    "ResNet-50": resnet,
    "T5 base": t5,
    "Whisper small": whisper,
    "Swin tiny": swin,
    "Mixtral 8x7B": mixtral,
}
