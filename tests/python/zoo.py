"""Models of Transformers as their users call them: from a config, random weights, their own losses.

Each function gives (module in float64, args, kwargs); `module(*args, **kwargs).loss` is the loss. All
are tiny, seeded, in training mode, without dropout unless it is asked for.

Some of these models compute norms, tables and losses in float32 whatever their weights are. That
is right for training and hides errors from a comparison in float64, so the comparison runs capture and
reference in `widened()`, where float32 is read as float64. The models themselves are as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from shardwright.as_python import functions, modules

Model = tuple[Any, tuple[Any, ...], dict[str, Any]]

BATCH = 4
IGNORED = -100


class Widened(TorchFunctionMode):
    """Of this thread; but for what runs inside of operators, which a mode does not see."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        if kwargs:
            return func(*map(_wide, args), **{name: _wide(value) for name, value in kwargs.items()})
        return func(*map(_wide, args))


# A model reads tens of thousands of shapes and types: what these are is told without looking into them.
_LEAVES = (bool, int, float, str, slice, torch.device, type(None))


def _wide(value: Any) -> Any:
    kind = type(value)
    if isinstance(value, Tensor) or kind in _LEAVES:
        return value
    if kind in (tuple, list):
        return kind(map(_wide, value))
    return pytree.tree_map(_wide_leaf, value)


def _wide_leaf(leaf: Any) -> Any:
    return torch.float64 if leaf is torch.float32 else leaf


@contextmanager
def widened() -> Iterator[None]:
    """In here a model that asks for float32 gets float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _inside(modules._Forward, "forward"), _inside(functions, "called"), Widened():
            yield
    finally:
        torch.set_default_dtype(before)


def _inside(owner: Any, name: str) -> Any:
    """What operators call that run as the Python that they are is widened, too."""
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with Widened():
            return original(*args, **kwargs)

    return patch.object(owner, name, call)


def prepared(module: Any) -> Any:
    """In float64 and training; weights, biases and norms of their own, so that a mix-up shows."""
    module = module.double().train()
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.add_(0.05 * noise)
    return module


def tokens(vocabulary: int, time: int, batch: int = BATCH) -> Tensor:
    return torch.randint(3, vocabulary, (batch, time))


def some_ignored(labels: Tensor) -> Tensor:
    """Labels of which each row ignores another number."""
    labels = labels.clone()
    for row in range(len(labels)):
        labels[row, : row + 1] = IGNORED
    return labels


def padded(batch: int, time: int) -> Tensor:
    """An attention mask: each row but the first ends in padding."""
    mask = torch.ones(batch, time, dtype=torch.long)
    for row in range(batch):
        mask[row, time - row :] = 0
    return mask


def image(channels: int, size: int, batch: int = BATCH) -> Tensor:
    return torch.randn(batch, channels, size, size, dtype=torch.float64)


# ---- decoders ------------------------------------------------------------------------------


def llama(attention: str = "sdpa", dropout: float = 0.0, heads: int = 4, groups: int = 2) -> Model:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=53,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=32,
        attention_dropout=dropout,
        attn_implementation=attention,
        use_cache=False,
    )
    ids = tokens(53, 8)
    return prepared(LlamaForCausalLM(config)), (), {"input_ids": ids, "labels": some_ignored(ids)}


def gpt2(attention: str = "sdpa", dropout: float = 0.0) -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=53,
        n_positions=16,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        attn_implementation=attention,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    ids = tokens(53, 8)
    return prepared(GPT2LMHeadModel(config)), (), {"input_ids": ids, "labels": some_ignored(ids)}


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


# ---- encoders ------------------------------------------------------------------------------


def bert(attention: str = "sdpa", dropout: float = 0.0) -> Model:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=53,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        attn_implementation=attention,
    )
    ids = tokens(53, 8)
    batch = {"input_ids": ids, "attention_mask": padded(BATCH, 8), "labels": some_ignored(ids)}
    return prepared(BertForMaskedLM(config)), (), batch


# ---- encoders with decoders ----------------------------------------------------------------


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


# ---- images --------------------------------------------------------------------------------


def vit(attention: str = "sdpa", dropout: float = 0.0) -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        image_size=12,
        patch_size=4,
        num_labels=7,
        attn_implementation=attention,
    )
    batch = {"pixel_values": image(3, 12), "labels": torch.randint(7, (BATCH,))}
    return prepared(ViTForImageClassification(config)), (), batch


def resnet() -> Model:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 24],
        depths=[1, 2],
        layer_type="bottleneck",
        num_labels=7,
    )
    module = prepared(ResNetForImageClassification(config))
    # A channel that is positive everywhere behind its pooling only shifts what the next norm centres: the
    # gradient of its bias would be zero, and AdamW would make steps of the rounding errors.
    module.resnet.embedder.embedder.normalization.bias.data -= 1.5
    batch = {"pixel_values": image(3, 16), "labels": torch.randint(7, (BATCH,))}
    return module, (), batch


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


MODELS: dict[str, Callable[[], Model]] = {
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
    "vit": vit,
    "resnet": resnet,
    "t5": t5,
    "whisper": whisper,
    "swin": swin,
    "mixtral": mixtral,
}
# Of the larger ones the same with as little as has everything in it.
SMALL: dict[str, Callable[[], Model]] = {
    **MODELS,
    "t5": partial(t5, 1),
    "whisper": partial(whisper, 1),
    "swin": partial(swin, 1),
    "mixtral": partial(mixtral, layers=1),
}
