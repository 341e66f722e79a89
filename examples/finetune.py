"""Tunes a causal language model of Transformers, with a `DataLoader` and padded batches.

    torchrun --nproc-per-node 2 examples/finetune.py --plan data --inputs local
    python examples/finetune.py --plain        the same loop without shardwright

With `--inputs local` each rank loads its own part of every batch, with `global` all of it.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

import shardwright as sw

VOCABULARY, LENGTH = 64, 24
SAMPLES, BATCH, EPOCHS, RATE = 27, 8, 2, 1e-2


class Answers(Dataset[dict[str, Tensor]]):
    """Prompts of random words, each answered by its own words backwards: the prompt is no label, and
    what is left of the length is padding."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator()
        generator.manual_seed(index)
        count = int(torch.randint(4, LENGTH // 2, (1,), generator=generator))
        prompt = torch.randint(1, VOCABULARY, (count,), generator=generator)
        ids = torch.zeros(LENGTH, dtype=torch.long)
        ids[: 2 * count] = torch.cat([prompt, prompt.flip(0)])
        labels = torch.full((LENGTH,), -100)
        labels[count : 2 * count] = ids[count : 2 * count]
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def main() -> None:
    args = arguments()
    torch.manual_seed(1)
    data = Answers()
    model: Any = LlamaForCausalLM(config()).to(getattr(torch, args.dtype)).train()
    sampler: Any = None
    if args.plain:
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    else:
        example = torch.utils.data.default_collate([data[index] for index in range(BATCH)])
        model = sw.parallelize(model, example, plan=args.plan, inputs=args.inputs, progress=False)
        optimizer = sw.optimizer(model, torch.optim.AdamW, lr=RATE)
    if args.inputs == "local" and not args.plain:
        sampler = sw.sampler(model, data, BATCH, seed=1)
    steps = EPOCHS * -(-SAMPLES // BATCH)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, steps)
    for epoch in range(EPOCHS):
        for number, batch in enumerate(loader(data, sampler, epoch)):
            loss = model(**batch).loss
            loss.backward()
            if args.plain:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            else:
                sw.clip_grad_norm_(model, 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            say(f"epoch {epoch}, batch {number}: loss {loss.item()!r}")
    if dist.is_initialized():
        dist.destroy_process_group()


def config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )


def loader(data: Answers, sampler: Any, epoch: int) -> DataLoader[dict[str, Tensor]]:
    """This rank's part of the batches, or all of them, in the same order."""
    if sampler is not None:
        sampler.set_epoch(epoch)
        return DataLoader(data, batch_sampler=sampler)
    generator = torch.Generator()
    generator.manual_seed(1 + epoch)
    return DataLoader(data, BATCH, sampler=torch.randperm(SAMPLES, generator=generator).tolist())


def say(line: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        print(line, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plan", default="data", help="a name such as data or megatron, or a plan file")
    parser.add_argument("--plain", action="store_true", help="one device, without shardwright")
    parser.add_argument("--inputs", default="global", choices=["global", "local"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    return parser.parse_args()


if __name__ == "__main__":
    main()
