"""Small models of which the channels may be split: convolution nets and graph nets. Each function gives a
module in training mode and its args, float64 and seeded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]

GROUPS = 4


class ResidualBlock(nn.Module):
    """Group norm, SiLU and a convolution, twice, with an embedding of the time between them."""

    def __init__(self, before: int, after: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(embedding, after)
        self.norm2 = nn.GroupNorm(GROUPS, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(F.silu(self.norm2(y)))


class SpatialAttention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(GROUPS, width)
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, width, height, _ = x.shape
        rows = self.norm(x).view(batch, width, -1).transpose(1, 2)
        q, k, v = (
            to(rows).view(batch, -1, self.heads, width // self.heads).transpose(1, 2)
            for to in (self.to_q, self.to_k, self.to_v)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, width)
        return x + self.to_out(y).transpose(1, 2).reshape(batch, width, height, -1)


class UNet(nn.Module):
    """After diffusers: two levels, skips that are put beside the channels, attention at the bottom."""

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.time1, self.time2 = nn.Linear(width, embedding), nn.Linear(embedding, embedding)
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.down1 = ResidualBlock(width, width, embedding)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = ResidualBlock(width, 2 * width, embedding)
        self.middle = ResidualBlock(2 * width, 2 * width, embedding)
        self.attention = SpatialAttention(2 * width, 4)
        self.up2 = ResidualBlock(4 * width, 2 * width, embedding)
        self.grow = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up1 = ResidualBlock(3 * width, width, embedding)
        self.norm_out = nn.GroupNorm(GROUPS, width)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, time: Tensor, noise: Tensor) -> Tensor:
        t = self.time2(F.silu(self.time1(time)))
        high = self.down1(self.conv_in(image), t)
        low = self.down2(self.shrink(high), t)
        x = self.attention(self.middle(low, t))
        x = self.up2(torch.cat([x, low], 1), t)
        x = self.grow(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up1(torch.cat([x, high], 1), t)
        return F.mse_loss(self.conv_out(F.silu(self.norm_out(x))), noise)


def unet(batch: int = 2, size: int = 8, width: int = 16) -> Model:
    model = _made(lambda: UNet(width, 4 * width))
    return model, (_normal(batch, 3, size, size), _normal(batch, width), _normal(batch, 3, size, size))


class Inverted(nn.Module):
    """Near MobileNet's block: wider, a window of each channel, how much of each, narrower."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        inner = 4 * before
        self.expand = nn.Conv2d(before, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.depthwise = nn.Conv2d(inner, inner, 3, stride, padding=1, groups=inner, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.squeeze, self.excite = nn.Conv2d(inner, before, 1), nn.Conv2d(before, inner, 1)
        self.project = nn.Conv2d(inner, after, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(after)
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y = F.hardswish(self.bn1(self.expand(x)))
        y = F.hardswish(self.bn2(self.depthwise(y)))
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        y = self.bn3(self.project(y))
        return F.hardswish(x + y if self.residual else y)


class MobileNet(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            Inverted(width, width, 1), Inverted(width, 2 * width, 2), Inverted(2 * width, 2 * width, 1)
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        x = self.blocks(F.hardswish(self.bn(self.stem(image))))
        return F.cross_entropy(self.head(x.mean((2, 3))), label)


def mobilenet(batch: int = 4, size: int = 8, width: int = 8) -> Model:
    model = _made(lambda: MobileNet(width, 10))
    return model, (_normal(batch, 3, size, size), torch.randint(10, (batch,)))


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(0.5 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, stride=2)
        self.blocks = nn.Sequential(ConvNextBlock(width), ConvNextBlock(width))
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.blocks(self.stem(image)).mean((2, 3))), label)


def convnext(batch: int = 4, size: int = 8, width: int = 8) -> Model:
    model = _made(lambda: ConvNext(width, 10))
    return model, (_normal(batch, 3, size, size), torch.randint(10, (batch,)))


class Gcn(nn.Module):
    """Rows of neighbours, weighted, are added up behind each linear."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        widths = [features, hidden, hidden, hidden, hidden]
        self.layers = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairwise(widths))
        self.biases = nn.ParameterList(torch.zeros(hidden) for _ in self.layers)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor, label: Tensor) -> Tensor:
        source, target = edges
        for layer, bias in zip(self.layers, self.biases, strict=True):
            rows = layer(x)
            sent = rows.index_select(0, source) * weights[:, None]
            x = F.relu(torch.zeros_like(rows).index_add_(0, target, sent) + bias)
        return F.cross_entropy(self.head(x), label)


class Sage(nn.Module):
    """The mean of the neighbours beside the node itself."""

    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        widths = [features, hidden, hidden, hidden]
        pairs = list(pairwise(widths))
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.others = nn.ModuleList(nn.Linear(*pair, bias=False) for pair in pairs)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edges: Tensor, label: Tensor) -> Tensor:
        source, target = edges
        degree = x.new_zeros(x.shape[0]).scatter_add_(0, target, x.new_ones(target.shape[0])).clamp(min=1)
        for own, others in zip(self.own, self.others, strict=True):
            place = target[:, None].expand(-1, x.shape[1])
            near = x.new_zeros(x.shape).scatter_add_(0, place, x[source]) / degree[:, None]
            x = F.relu(own(x) + others(near))
        return F.cross_entropy(self.head(x), label)


class GatLayer(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(width, hidden, bias=False)
        self.of_source = nn.Parameter(torch.randn(heads, hidden // heads))
        self.of_target = nn.Parameter(torch.randn(heads, hidden // heads))

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        nodes = x.shape[0]
        rows = self.linear(x).view(nodes, self.heads, -1)
        scores = (rows * self.of_source).sum(-1)[source] + (rows * self.of_target).sum(-1)[target]
        scores = F.leaky_relu(scores, 0.2)
        place = target[:, None].expand(-1, self.heads)
        most = scores.new_full((nodes, self.heads), -1e9).scatter_reduce(0, place, scores.detach(), "amax")
        shares = (scores - most[target]).exp()
        total = shares.new_zeros(nodes, self.heads).index_add_(0, target, shares)
        sent = rows[source] * (shares / total[target])[..., None]
        return torch.zeros_like(rows).index_add_(0, target, sent).reshape(nodes, -1)


class Gat(nn.Module):
    def __init__(self, features: int, hidden: int, heads: int, classes: int) -> None:
        super().__init__()
        self.first = GatLayer(features, hidden, heads)
        self.second = GatLayer(hidden, hidden, heads)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edges: Tensor, label: Tensor) -> Tensor:
        source, target = edges
        x = F.elu(self.first(x, source, target))
        return F.cross_entropy(self.head(F.elu(self.second(x, source, target))), label)


def _nodes(nodes: int = 12, edges: int = 40, features: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    pairs = torch.cat([torch.randint(nodes, (2, edges)), torch.arange(nodes).expand(2, -1)], 1)
    return _normal(nodes, features), pairs, torch.randint(5, (nodes,))


def gcn() -> Model:
    x, edges, label = _nodes()
    weights = torch.rand(edges.shape[1], dtype=torch.float64)
    return _made(lambda: Gcn(6, 16, 5)), (x, edges, weights, label)


def sage() -> Model:
    return _made(lambda: Sage(6, 16, 5)), _nodes()


def gat() -> Model:
    return _made(lambda: Gat(6, 16, 4, 5)), _nodes()


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = make().double()
    for parameter in model.parameters():  # biases and norms of their own, so that a mix-up shows
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return model


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


MODELS = {
    "unet": unet,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "gcn": gcn,
    "sage": sage,
    "gat": gat,
}
