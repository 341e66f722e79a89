"""Trains DaGAN's generator and discriminator in one loop: two parallel models, each with a plan of its own.

torchrun --nproc-per-node 2 examples/dagan/train.py --plan data
python examples/dagan/train.py --plain        the same loop without shardwright
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.nn.functional as F
from model import Discriminator, Generator
from torch import Tensor

import shardwright as sw

BATCH, SIZE = 4, 32


def main() -> None:
    args = arguments()
    torch.set_default_dtype(getattr(torch, args.dtype))
    torch.manual_seed(0)
    generator: Any = Generator()
    discriminator: Any = Discriminator()
    if not args.plain:
        example = pictures(0)
        generator = sw.parallelize(generator, example, plan=args.plan, outputs="all", progress=False)
        discriminator = sw.parallelize(
            discriminator, example[:1], plan=args.plan, outputs="all", progress=False
        )
    one = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    two = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for step in range(args.steps):
        picture, frame = pictures(step)
        made = generator(picture, frame)
        likeness = F.l1_loss(made, frame)
        fooled = (discriminator(made) - 1).square().mean()
        (10 * likeness + fooled).backward()
        one.step()
        one.zero_grad()
        # What the generator's loss left in the discriminator is not meant for it.
        two.zero_grad()
        real, false = discriminator(frame), discriminator(made.detach())
        judged = (real - 1).square().mean() + false.square().mean()
        judged.backward()
        two.step()
        two.zero_grad()
        if int(os.environ.get("RANK", "0")) == 0:
            print(
                f"step {step}: likeness {likeness.item()!r} fooled {fooled.item()!r} judged {judged.item()!r}"
            )


def pictures(step: int) -> tuple[Tensor, Tensor]:
    """A bright disc that moves: the picture, and a frame of the video."""
    generator = torch.Generator().manual_seed(step)
    places = torch.rand(2, BATCH, 2, generator=generator) - 0.5
    line = torch.linspace(-1, 1, SIZE)
    far = (line[None, :] - places[..., :1, None]).square() + (line[:, None] - places[..., 1:, None]).square()
    discs = (-far * 20).exp()[:, :, None].expand(2, BATCH, 3, SIZE, SIZE)
    return discs[0].contiguous(), discs[1].contiguous()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", default="data", help="a plan's name, for both models")
    parser.add_argument("--plain", action="store_true", help="one device, without shardwright")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
