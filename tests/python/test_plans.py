"""Named plans keep their purpose: what they save, measured."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright import Bundle, Graph, Plan
from shardwright._core import compile
from shardwright.capture import capture
from shardwright.compiling import sources
from shardwright.runtime import ParallelModule, load_program, run_local

torch.set_num_threads(1)


class Live(TorchDispatchMode):
    """Counts the bytes of what operators make, until it is freed: what an allocator would say."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id(x.untyped_storage()) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage(), given)
        return made

    def _add(self, storage: Any, given: set[int]) -> None:
        key = id(storage)
        if key in self._known or key in given:
            return
        self._known.add(key)
        self.bytes += storage.nbytes()
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._free, key, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def llama(vocabulary: int = 8, head: int = 4, time: int = 128) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=head,
        use_cache=False,
    )
    ids = torch.randint(3, vocabulary, (2, time))
    return LlamaForCausalLM(config), (), {"input_ids": ids, "labels": ids}


def peak(model: Any, plan: str) -> int:
    """The most bytes that live at once in a training step on one device, besides parameters and inputs."""
    module, args, kwargs = model
    captured = capture(module, args, kwargs)
    compiled = compile(Plan.named(Graph(captured.graph_text), plan, 1))
    bundle = Bundle(dict(compiled.files), compiled.digest, plan, 1, captured, "", "")
    program = load_program(bundle.files, digest=bundle.digest, world=1)
    values = sources(module, captured)

    def rank(_: int, comm: Any) -> int:
        parallel = ParallelModule(program, comm, values, captured)
        parallel(*args, **kwargs).loss.backward()  # gradients are there from here on
        live = Live()
        with live:
            parallel(*args, **kwargs).loss.backward()
        return live.peak

    (found,) = run_local(1, rank)
    return found


def test_coshard_keeps_the_attention_of_one_part() -> None:
    """Queries, keys and values are nearly all that this model keeps."""
    whole, half, quarter = (peak(llama(head=256), plan) for plan in ("replicate", "coshard:2", "coshard:4"))
    assert half < 0.6 * whole
    assert quarter < 0.4 * whole
