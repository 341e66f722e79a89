"""The reference models of the tests: each function gives a module in training mode and its args.

They are float64 and seeded, and small: a forward and backward takes a millisecond or two.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MlpLayer(width, hidden) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return F.mse_loss(self.head(x), target)


class MlpLayer(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def mlp(batch: int = 8, width: int = 32, hidden: int = 64, depth: int = 2) -> Model:
    torch.manual_seed(0)
    model = Mlp(width, hidden, depth).double()
    return model, (_normal(batch, width), _normal(batch, 1))


@dataclass
class GptConfig:
    vocabulary: int = 101
    context: int = 16
    depth: int = 2
    heads: int = 4
    width: int = 32
    dropout: float = 0.0
    bias: bool = True


class LayerNorm(nn.Module):
    """With an optional bias."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Attention(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(config.width, config.width, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)
        self.heads = config.heads
        self.width = config.width
        self.dropout = config.dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        parts = self.c_attn(x).split(self.width, dim=2)
        q, k, v = (p.view(batch, time, self.heads, -1).transpose(1, 2) for p in parts)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, time, width)
        return self.drop(self.c_proj(y))


class GptMlp(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.c_proj(F.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.ln_1 = LayerNorm(config.width, config.bias)
        self.attn = Attention(config)
        self.ln_2 = LayerNorm(config.width, config.bias)
        self.mlp = GptMlp(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """After nanoGPT: one projection for q, k and v, and an output layer tied to the embedding."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.ln_f = LayerNorm(config.width, config.bias)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        positions = torch.arange(idx.size(1), dtype=torch.long, device=idx.device)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        flat = logits.view(-1, logits.size(-1))
        loss = F.cross_entropy(flat, targets.view(-1), ignore_index=-1)
        return logits, loss


def gpt(
    batch: int = 4,
    time: int = 16,
    vocabulary: int = 101,
    dropout: float = 0.0,
    bias: bool = True,
    depth: int = 2,
    width: int = 32,
    heads: int = 4,
) -> Model:
    torch.manual_seed(0)
    model = Gpt(GptConfig(vocabulary, time, depth, heads, width, dropout, bias)).double()
    for parameter in model.parameters():  # biases and norms of their own, so that a mix-up shows
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    idx = torch.randint(vocabulary, (batch, time))
    targets = torch.randint(vocabulary, (batch, time))
    targets[:, -2:] = -1
    targets[0, :5] = -1
    return model, (idx, targets)


class ConvBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            shortcut = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        shortcut = x if self.downsample is None else self.downsample(x)
        y += shortcut
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = ConvBlock(width, width, 1)
        self.layer2 = ConvBlock(width, 2 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(image))))
        x = self.layer2(self.layer1(x))
        return F.cross_entropy(self.fc(torch.flatten(self.avgpool(x), 1)), label)


def resnet(batch: int = 6, size: int = 12, width: int = 8, classes: int = 10) -> Model:
    torch.manual_seed(0)
    model = ResNet(width, classes).double()
    return model, (_normal(batch, 3, size, size), torch.randint(classes, (batch,)))


class TwoLosses(nn.Module):
    """Two scalar losses, a skip over all layers, and a sub-module that is called twice."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.inside = nn.Linear(width, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.shared = MlpLayer(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, width)
        self.aux_head = nn.Linear(width, 1)

    def forward(self, x: Tensor, target: Tensor) -> dict[str, Tensor]:
        start = self.inside(x)
        y = self.shared(start)
        for layer in self.layers:
            y = torch.tanh(layer(y))
        aux = F.mse_loss(self.aux_head(y).squeeze(-1), target.mean(dim=1))
        y = self.norm(self.shared(y) + start)
        loss = F.smooth_l1_loss(self.head(y), target) + 0.3 * aux
        return {"loss": loss, "aux": aux}


def two_losses(batch: int = 5, width: int = 32, depth: int = 3) -> Model:
    torch.manual_seed(0)
    model = TwoLosses(width, depth).double()
    return model, (_normal(batch, width), _normal(batch, width))


MODELS = {"mlp": mlp, "gpt": gpt, "resnet": resnet, "two_losses": two_losses}


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)
