"""DaGAN: a talking head from one picture and a video that drives it.

After Hong et al., "Depth-Aware Generative Adversarial Network for Talking Head Video Generation" (2022). A
face's depth says where its points are. How they move from the picture to a frame gives a field of motion, by
which features of the picture are warped. Depth then attends to these. Small, and written for one device.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def grid(size: tuple[int, int], like: Tensor) -> Tensor:
    """Places of a picture, from -1 to 1 along both sides: [height, width, 2], x before y."""
    height, width = size
    y = torch.linspace(-1, 1, height, dtype=like.dtype, device=like.device)
    x = torch.linspace(-1, 1, width, dtype=like.dtype, device=like.device)
    return torch.stack([x[None, :].expand(height, width), y[:, None].expand(height, width)], dim=-1)


class Down(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(), nn.AvgPool2d(2)
        )


class Up(nn.Sequential):
    def __init__(self, before: int, after: int) -> None:
        super().__init__(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(4, after),
            nn.ReLU(),
        )


class Hourglass(nn.Module):
    """Down and up again, with what was there at each size."""

    def __init__(self, before: int, width: int, depth: int = 2) -> None:
        super().__init__()
        widths = [before, *(width * 2**level for level in range(depth))]
        self.down = nn.ModuleList(Down(a, b) for a, b in itertools.pairwise(widths))
        ups = list(zip(widths[::-1], widths[-2::-1], strict=False))[:-1]
        self.up = nn.ModuleList(Up(a * (1 if at == 0 else 2), b) for at, (a, b) in enumerate(ups))
        self.last = Up(2 * width if depth > 1 else width, width)
        self.channels = width + before

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for down in self.down:
            seen.append(down(seen[-1]))
        x = seen.pop()
        for up in self.up:
            x = torch.cat([up(x), seen.pop()], dim=1)
        return torch.cat([self.last(x), seen.pop()], dim=1)


class Depth(nn.Module):
    """How far away each place of a face is."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = Hourglass(3, width)
        self.head = nn.Conv2d(self.body.channels, 1, 3, padding=1)

    def forward(self, picture: Tensor) -> Tensor:
        return torch.sigmoid(self.head(self.body(picture)))


class Keypoints(nn.Module):
    """Where a face's points are, from its colours and its depth: the mean place of a map each."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.body = Hourglass(4, width)
        self.head = nn.Conv2d(self.body.channels, points, 3, padding=1)

    def forward(self, picture: Tensor, depth: Tensor) -> Tensor:
        maps = self.head(self.body(torch.cat([picture, depth], dim=1)))
        shares = (maps.flatten(2) / 0.1).softmax(-1)
        return shares @ grid(maps.shape[-2:], maps).flatten(0, 1)


class Motion(nn.Module):
    """From where in the picture each place of the frame comes, and how much of it is there."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.body = Hourglass(3 + points + 1, width)
        self.shares = nn.Conv2d(self.body.channels, points + 1, 3, padding=1)
        self.there = nn.Conv2d(self.body.channels, 1, 3, padding=1)

    def forward(self, picture: Tensor, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
        places = grid(picture.shape[-2:], picture)
        # Around each point all moves as the point does; the background stays.
        moved = places - (after - before)[:, :, None, None, :]
        still = places.expand_as(moved[:, :1])
        candidates = torch.cat([still, moved], dim=1)
        heat = (-(places - after[:, :, None, None, :]).square().sum(-1) / 0.02).exp()
        heat = torch.cat([torch.zeros_like(heat[:, :1]), heat], dim=1)
        x = self.body(torch.cat([picture, heat], dim=1))
        field = (self.shares(x).softmax(1)[..., None] * candidates).sum(1)
        return field, torch.sigmoid(self.there(x))


class DepthAttention(nn.Module):
    """Places of the depth ask the warped features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Sequential(Down(1, width), Down(width, width))
        self.query, self.key, self.value = (nn.Conv2d(width, width, 1) for _ in range(3))

    def forward(self, features: Tensor, depth: Tensor) -> Tensor:
        query = self.query(self.depth(depth)).flatten(2).transpose(1, 2)
        key, value = (part(features).flatten(2).transpose(1, 2) for part in (self.key, self.value))
        found = F.scaled_dot_product_attention(query[:, None], key[:, None], value[:, None])[:, 0]
        return features + found.transpose(1, 2).reshape(features.shape)


class Generator(nn.Module):
    def __init__(self, width: int = 16, points: int = 5) -> None:
        super().__init__()
        self.depth, self.keypoints, self.motion = (
            Depth(width),
            Keypoints(width, points),
            Motion(width, points),
        )
        self.encode = nn.Sequential(Down(3, width), Down(width, width))
        self.attention = DepthAttention(width)
        self.decode = nn.Sequential(Up(width, width), Up(width, width), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, picture: Tensor, frame: Tensor) -> Tensor:
        """The picture's face as it looks in the frame."""
        near = self.depth(picture)
        before, after = self.keypoints(picture, near), self.keypoints(frame, self.depth(frame))
        field, there = self.motion(picture, before, after)
        features = self.encode(picture)
        coarse = F.avg_pool2d(field.permute(0, 3, 1, 2), 4).permute(0, 2, 3, 1)
        features = F.grid_sample(features, coarse, align_corners=True) * F.avg_pool2d(there, 4)
        return torch.sigmoid(self.decode(self.attention(features, near)))


class Discriminator(nn.Module):
    """Says of each patch how real it looks."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(Down(3, width), Down(width, 2 * width), nn.Conv2d(2 * width, 1, 1))

    def forward(self, picture: Tensor) -> Tensor:
        return self.body(picture)
