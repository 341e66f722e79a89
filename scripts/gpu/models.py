"""Models of Transformers as their users have them, and small ones of the same kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Batch = dict[str, torch.Tensor]


def _words(vocabulary: int, batch: int, length: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (batch, length), generator=generator, device="cpu")
    return {"input_ids": ids, "labels": ids.clone()}


def llama(batch: int, length: int, layers: int, width: int = 4096, **options: Any) -> tuple[nn.Module, Batch]:
    """Llama 3's shapes at a width of 4,096 (8B) or 2,048 (1B)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    chosen = {
        "vocab_size": 128256,
        "hidden_size": width,
        "intermediate_size": {4096: 14336, 2048: 8192}.get(width, 2 * width),
        "num_hidden_layers": layers,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": max(length, 16),
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "use_cache": False,
        **options,
    }
    config = LlamaConfig(**chosen)
    return LlamaForCausalLM(config).train(), _words(config.vocab_size, batch, length)


def gpt2(batch: int, length: int, **options: Any) -> tuple[nn.Module, Batch]:
    """GPT-2 small, with its dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False, **options)
    return GPT2LMHeadModel(config).train(), _words(config.vocab_size, batch, length)


def small_llama(batch: int = 4, length: int = 16) -> tuple[nn.Module, Batch]:
    return llama(batch, length, 4, 32, vocab_size=64, num_attention_heads=4, num_key_value_heads=2)


def small_gpt2(batch: int = 4, length: int = 16, *, dropout: float = 0.1) -> tuple[nn.Module, Batch]:
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return gpt2(batch, length, vocab_size=64, n_embd=32, n_layer=4, n_head=4, n_positions=length, **rates)


def small_t5(batch: int = 4, length: int = 16) -> tuple[nn.Module, Batch]:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    given = _words(64, batch, length)
    return T5ForConditionalGeneration(config).train(), {
        **given,
        "attention_mask": given["labels"].ne(0).long(),
    }


def small_mixtral(batch: int = 4, length: int = 16) -> tuple[nn.Module, Batch]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=length,
        use_cache=False,
        output_router_logits=False,
    )
    return MixtralForCausalLM(config).train(), _words(64, batch, length)


class Waves(nn.Module):
    """Creation operators and a Fourier transform, which no language model has."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-1]
        window = torch.hann_window(size, dtype=x.dtype, device=x.device)
        turned = torch.fft.rfft(self.first(x) * window, dim=-1)
        damped = turned * torch.exp(-torch.fft.rfftfreq(size, device=x.device).to(x.dtype))
        back = torch.fft.irfft(damped, n=size, dim=-1)
        mixed = back @ (torch.eye(size, dtype=x.dtype, device=x.device) * 0.5)
        upper = torch.triu_indices(size, size, device=x.device)
        ramp = torch.linspace(0, 1, size, dtype=x.dtype, device=x.device)
        return (
            self.last(mixed + ramp).square().mean() + mixed.T[:, :size].sum() * 0 + upper.float().mean() * 0
        )


def waves(batch: int = 8, width: int = 16) -> tuple[nn.Module, Batch]:
    generator = torch.Generator().manual_seed(0)
    return Waves(width), {"x": torch.randn(batch, width, generator=generator)}


SMALL: dict[str, Callable[[], tuple[nn.Module, Batch]]] = {
    "gpt2": lambda: small_gpt2(dropout=0.0),
    "gpt2 with dropout": small_gpt2,
    "llama": small_llama,
    "t5": small_t5,
    "mixtral": small_mixtral,
    "waves": waves,
}
