"""The models that the benches run: shapes only, small code, written for this purpose."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        size = width // heads
        self.ln_1 = nn.RMSNorm(width)
        self.q = nn.Linear(width, heads * size, bias=False)
        self.k = nn.Linear(width, kv_heads * size, bias=False)
        self.v = nn.Linear(width, kv_heads * size, bias=False)
        self.o = nn.Linear(heads * size, width, bias=False)
        self.ln_2 = nn.RMSNorm(width)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        y = self.ln_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.q(x).view(batch, length, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        v = self.v(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        gqa = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
        return self.o(y.transpose(1, 2).reshape(batch, length, width))


class Gpt(nn.Module):
    """Embeddings, blocks, a projection and the loss."""

    def __init__(
        self, layers: int, width: int, heads: int, kv_heads: int, inner: int, words: int, length: int
    ):
        super().__init__()
        self.wte = nn.Embedding(words, width)
        self.wpe = nn.Embedding(length, width)
        self.h = nn.ModuleList(Block(width, heads, kv_heads, inner) for _ in range(layers))
        self.ln_f = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


Example = tuple[nn.Module, tuple[Tensor, Tensor]]


def gpt_24l(batch: int = 32, length: int = 1024) -> Example:
    """A GPT of 24 layers on `meta`: 406M parameters."""
    with torch.device("meta"):
        return Gpt(24, 1024, 16, 16, 4096, 50257, length), _words(batch, length)


def llama_3_8b(batch: int = 64, length: int = 8192) -> Example:
    """Llama-3-8B's shape on `meta`: 32 layers, full size, no memory."""
    return llama_of(32, batch, length)


def llama_of(layers: int, batch: int = 64, length: int = 8192) -> Example:
    """The same with so many layers."""
    return _llama(batch, length, layers, 4096, 32, 14336)


def llama_3_70b(batch: int = 512, length: int = 8192) -> Example:
    """Llama-3-70B's shape on `meta`: 80 layers."""
    return _llama(batch, length, 80, 8192, 64, 28672)


def llama_3_405b(batch: int = 8192, length: int = 8192) -> Example:
    """Llama-3-405B's shape on `meta`: 126 layers."""
    return _llama(batch, length, 126, 16384, 128, 53248)


def _llama(batch: int, length: int, layers: int, width: int, heads: int, inner: int) -> Example:
    with torch.device("meta"):
        model = Gpt(layers, width, heads, 8, inner, 128256, length).to(torch.bfloat16)
        return model, _words(batch, length)


def _words(batch: int, length: int) -> tuple[Tensor, Tensor]:
    words = torch.zeros(batch, length, dtype=torch.long)
    return words, words.clone()


def gpt_100m(batch: int = 4, length: int = 256) -> Example:
    """A GPT of about 100M parameters, with values."""
    torch.manual_seed(0)
    model = Gpt(12, 768, 12, 12, 2048, 16384, length)
    words = torch.randint(0, 16384, (batch, length + 1))
    return model, (words[:, :-1].contiguous(), words[:, 1:].contiguous())


class Loss(nn.Module):
    """A language model of Transformers, as a function of words that gives its loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        return self.model(input_ids=idx, labels=targets).loss


def deepseek_16b(batch: int = 512, length: int = 4096) -> Example:
    """DeepSeek-V3's architecture with 16B parameters on `meta`: 27 layers, 64 experts."""
    sizes = {"hidden_size": 2048, "intermediate_size": 11264, "moe_intermediate_size": 1408}
    return _deepseek(batch, length, **_smaller(27, 16, 64), **sizes, n_group=1, topk_group=1)


def deepseek_236b(batch: int = 512, length: int = 4096) -> Example:
    """With 236B parameters: 60 layers, 160 experts."""
    sizes = {"hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536}
    return _deepseek(batch, length, **_smaller(60, 128, 160), **sizes, n_group=8, topk_group=3)


def deepseek_671b(batch: int = 512, length: int = 4096) -> Example:
    """DeepSeek-V3 itself: 61 layers, 256 experts."""
    return _deepseek(batch, length)


def _smaller(layers: int, heads: int, experts: int) -> dict[str, int]:
    """What both smaller ones have alike, too."""
    return {
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "n_routed_experts": experts, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "first_k_dense_replace": 1, "vocab_size": 102400,
    }  # fmt: skip


def _deepseek(batch: int, length: int, **sizes: int) -> Example:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    with torch.device("meta"):
        model = DeepseekV3ForCausalLM(DeepseekV3Config(use_cache=False, **sizes)).to(torch.bfloat16)
        return Loss(model.train()), _words(batch, length)


def gpt_24(batch: int = 8, length: int = 1024) -> Example:
    """A GPT of 350M parameters on `meta`: 24 layers."""
    return _gpt_on_meta(24, batch, length)


def gpt_48(batch: int = 8, length: int = 1024) -> Example:
    """The same with 48 layers."""
    return _gpt_on_meta(48, batch, length)


def _gpt_on_meta(layers: int, batch: int, length: int) -> Example:
    with torch.device("meta"):
        model = Gpt(layers, 1024, 16, 16, 4096, 50304, length).to(torch.bfloat16)
        return model, _words(batch, length)
