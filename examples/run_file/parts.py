"""What `run.yaml` names: a model, sentences to learn, and how samples become a batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Letters(nn.Module):
    """Says which letter comes next."""

    def __init__(self, width: int, layers: int, dropout: float = 0.0):
        super().__init__()
        self.embedding = nn.Embedding(128, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 128)

    def forward(self, letters: Tensor, following: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(letters.shape[1])
        x = self.blocks(self.embedding(letters), mask, is_causal=True)
        return F.cross_entropy(self.head(x).flatten(0, 1), following.flatten())


class Sums(Dataset[str]):
    """Sentences such as `two and three is 5`; each number always gives the same one."""

    def __init__(self, sentences: int, first: int = 0):
        self.sentences, self.first = sentences, first

    def __len__(self) -> int:
        return self.sentences

    def __getitem__(self, at: int) -> str:
        chance = random.Random(self.first + at)
        a, b = chance.randrange(10), chance.randrange(10)
        return f"{WORDS[a]} and {WORDS[b]} is {a + b}."


def batch(sentences: Sequence[str]) -> dict[str, Any]:
    letters = torch.tensor([list(f"{one:<25}".encode()) for one in sentences])
    return {"letters": letters[:, :-1], "following": letters[:, 1:]}
