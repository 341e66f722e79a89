"""Models of Transformers, with a batch as their users give it: in their usual sizes, and in chosen ones."""

from __future__ import annotations

import torch

Batch = dict[str, torch.Tensor]
Model = tuple[torch.nn.Module, Batch]

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

# Smaller ones, with values: they are run.


def sized_llama(
    layers: int, width: int, heads: int, inner: int, words: int, batch: int, length: int
) -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 3,
        max_position_embeddings=length,
        use_cache=False,
    )
    ids = torch.randint(0, words, (batch, length))
    return LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids.clone()}


def sized_gpt2(layers: int, width: int, heads: int, words: int, batch: int, length: int) -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=words,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_positions=length,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    ids = torch.randint(0, words, (batch, length))
    return GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids.clone()}


def llama_100m(batch: int, length: int) -> Model:
    return sized_llama(12, 768, 12, 2048, 16384, batch, length)


def t5_100m(batch: int, length: int) -> Model:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=16384,
        d_model=640,
        d_kv=64,
        d_ff=2048,
        num_layers=9,
        num_heads=10,
        decoder_start_token_id=0,
        dropout_rate=0.0,
        use_cache=False,
    )
    ids, labels = (torch.randint(2, 16384, (batch, length)) for _ in range(2))
    return T5ForConditionalGeneration(config).train(), {"input_ids": ids, "labels": labels}
