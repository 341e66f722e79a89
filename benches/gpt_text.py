"""The GPT of `measured_runs.csv` as a graph's text, and the plans that it ran under.

As in Aceso's runtime, a Megatron-LM without FlashAttention. Each of the 13 operators of a layer is a module.
What Megatron's kernels fuse is one operator: the mask is part of the softmax, biases are part of the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

OPERATORS = (
    "norm_1", "qkv", "score", "softmax", "drop", "context", "dense", "residual_1",
    "norm_2", "up", "gelu", "down", "residual_2",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    words: int
    length: int
    batch: int

    @classmethod
    def from_row(cls, row: dict[str, str]) -> Shape:
        names = ("layers", "width", "heads", "words", "length", "micro")
        return cls(*(int(row[name]) for name in names))


class Text:
    def __init__(self) -> None:
        self.modules, self.params, self.ops = ['module "" "Gpt"'], [], []

    def module(self, path: str, kind: str) -> None:
        self.modules.append(f'module "{path}" "{kind}"')

    def param(self, path: str, *shape: int) -> str:
        name = f"%p_{path.replace('.', '_')}"
        self.params.append(f'param {name} f16{list_of(shape)} "{path}"')
        return name

    def op(self, results: str, call: str, path: str) -> str:
        self.ops.append(f'op {results} = {call} in "{path}" at "gpt.py:1"')
        return results.split()[0]

    def whole(self, inputs: list[str], output: str) -> str:
        head = ["shardwright-graph 1", 'model "Gpt"', *self.modules, *inputs, *self.params]
        return "\n".join([*head, *self.ops, f"output {output}"]) + "\n"


def list_of(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def graph_text(shape: Shape) -> str:
    text, b, s, w, n = Text(), shape.batch, shape.length, shape.width, shape.words
    text.module("embedding", "Embedding")
    table, places = text.param("embedding.words", n, w), text.param("embedding.places", s, w)
    text.op(f"%at i64{list_of((s,))}", f"aten.arange.default({s})", "embedding")
    text.op(f"%word f16{list_of((b, s, w))}", f"aten.embedding.default({table}, %tokens)", "embedding")
    text.op(f"%place f16{list_of((s, w))}", f"aten.embedding.default({places}, %at)", "embedding")
    text.op(f"%both f16{list_of((b, s, w))}", "aten.add.Tensor(%word, %place)", "embedding")
    drop = f"f16{list_of((b, s, w))}, _"
    x = text.op(f"%x {drop}", "aten.native_dropout.default(%both, 0.1, True)", "embedding")
    for layer in range(shape.layers):
        x = _layer(text, shape, f"layers.{layer}", f"_{layer}", x)
    text.module("norm", "LayerNorm")
    text.module("loss", "Loss")
    x = _norm(text, shape, "norm", "%end", x)
    rows = list_of((b * s, n))
    text.op(f"%logits f16{list_of((b, s, n))}", f"aten.linear.default({x}, {table})", "loss")
    text.op(f"%rows f16{rows}", f"aten.reshape.default(%logits, [{b * s}, {n}])", "loss")
    text.op(f"%wide f32{rows}", "aten._to_copy.default(%rows, dtype=f32)", "loss")
    text.op(f"%labels i64{list_of((b * s,))}", f"aten.reshape.default(%targets, [{b * s}])", "loss")
    text.op("%loss f32[]", "aten.cross_entropy_loss.default(%wide, %labels)", "loss")
    inputs = [f"input %{name} i64{list_of((b, s))} {at}" for at, name in enumerate(("tokens", "targets"))]
    return text.whole(inputs, "%loss")


def _norm(text: Text, shape: Shape, path: str, result: str, x: str) -> str:
    w = shape.width
    weight, bias = text.param(f"{path}.weight", w), text.param(f"{path}.bias", w)
    whole = list_of((shape.batch, shape.length, w))
    return text.op(
        f"{result} f16{whole}", f"aten.layer_norm.default({x}, [{w}], {weight}, {bias}, 1e-05, False)", path
    )


def _product(text: Text, shape: Shape, path: str, result: str, x: str, sizes: tuple[int, int]) -> str:
    wide, narrow = sizes
    weight, bias = text.param(f"{path}.weight", wide, narrow), text.param(f"{path}.bias", wide)
    whole = list_of((shape.batch, shape.length, wide))
    return text.op(f"{result} f16{whole}", f"aten.linear.default({x}, {weight}, {bias})", path)


def _layer(text: Text, shape: Shape, path: str, end: str, x: str) -> str:
    b, s, w, h = shape.batch, shape.length, shape.width, shape.heads
    d = w // h
    text.module(path, "Layer")
    for name in OPERATORS:
        text.module(f"{path}.{name}", name.title())
    before = x

    def op(name: str, made: str, call: str, part: str) -> str:
        return text.op(f"%{name}{end} {made}", call, f"{path}.{part}")

    whole, split = f"f16{list_of((b, s, w))}", list_of((b, h, s, d))
    x = _norm(text, shape, f"{path}.norm_1", f"%norm_1{end}", x)
    x = _product(text, shape, f"{path}.qkv", f"%qkv{end}", x, (3 * w, w))
    x = op(
        "parts",
        f"f16{list_of((b, s, 3, h, d))}",
        f"aten.reshape.default({x}, [{b}, {s}, 3, {h}, {d}])",
        "qkv",
    )
    three = ", ".join(f"%part_{at}{end} f16{list_of((b, s, h, d))}" for at in "qkv")
    text.op(three, f"aten.unbind.int({x}, 2)", f"{path}.qkv")
    for at in "qkv":
        op(f"turned_{at}", f"f16{split}", f"aten.transpose.int(%part_{at}{end}, 1, 2)", "qkv")
        call = f"aten.reshape.default(%turned_{at}{end}, [{b * h}, {s}, {d}])"
        op(at, f"f16{list_of((b * h, s, d))}", call, "qkv")
    scores = list_of((b * h, s, s))
    op("none", "f16[]", f"aten.new_zeros.default(%q{end}, [])", "score")
    op("across", f"f16{list_of((b * h, d, s))}", f"aten.transpose.int(%k{end}, 1, 2)", "score")
    call = f"aten.baddbmm.default(%none{end}, %q{end}, %across{end}, beta=0.0, alpha={d**-0.5})"
    op("score", f"f16{scores}", call, "score")
    op("softmax", f"f16{scores}", f"aten.softmax.int(%score{end}, -1)", "softmax")
    op("drop", f"f16{scores}, _", f"aten.native_dropout.default(%softmax{end}, 0.1, True)", "drop")
    op("context", f"f16{list_of((b * h, s, d))}", f"aten.bmm.default(%drop{end}, %v{end})", "context")
    op("heads", f"f16{split}", f"aten.reshape.default(%context{end}, [{b}, {h}, {s}, {d}])", "context")
    op("back", f"f16{list_of((b, s, h, d))}", f"aten.transpose.int(%heads{end}, 1, 2)", "context")
    x = op("joined", whole, f"aten.reshape.default(%back{end}, [{b}, {s}, {w}])", "context")
    x = _product(text, shape, f"{path}.dense", f"%dense{end}", x, (w, w))
    op("kept_1", f"{whole}, _", f"aten.native_dropout.default({x}, 0.1, True)", "residual_1")
    before = op("sum_1", whole, f"aten.add.Tensor(%kept_1{end}, {before})", "residual_1")
    x = _norm(text, shape, f"{path}.norm_2", f"%norm_2{end}", before)
    x = _product(text, shape, f"{path}.up", f"%up{end}", x, (4 * w, w))
    inner = list_of((b, s, 4 * w))
    x = op("gelu", f"f16{inner}", f'aten.gelu.default({x}, approximate="tanh")', "gelu")
    x = _product(text, shape, f"{path}.down", f"%down{end}", x, (w, 4 * w))
    op("kept_2", f"{whole}, _", f"aten.native_dropout.default({x}, 0.1, True)", "residual_2")
    return op("sum_2", whole, f"aten.add.Tensor(%kept_2{end}, {before})", "residual_2")


def place(path: str, layers: int) -> int:
    """An operator's number, as Aceso counts: the embedding, 13 for each layer, the last norm, the loss."""
    head, *rest = path.split(".")
    if head == "layers":
        return 1 + 13 * int(rest[0]) + OPERATORS.index(rest[1])
    return {"embedding": 0, "norm": 13 * layers + 1, "loss": 13 * layers + 2}[head]


def plan_text(core: Any, graph: Any, layers: int, stages: str, recompute: str) -> tuple[str, int]:
    """`stages` has for each the number of its operators, and data by tensor parallelism: `157@1x2 158@2x1`.

    Spans that are recomputed are ranges of operators: `4-7 11-12`.
    """
    operators = [(operator.name.lstrip("%"), place(operator.path, layers)) for operator in graph.operators]
    lines, named, first, device = [], {}, 0, 0
    for stage in stages.split():
        count, sizes = stage.split("@")
        data, tensor = map(int, sizes.split("x"))
        if (data, tensor) not in named:
            plan = core.Plan.named(graph, f"data:{data} x megatron:{tensor}", data * tensor)
            named[data, tensor] = dict(_decided(plan.text))
        inside = [name for name, at in operators if first <= at < first + int(count)]
        lines.append(f"block %{inside[0]}..%{inside[-1]}")
        lines += [
            f"op %{name}: {named[data, tensor][name]} on {device}..{device + data * tensor}"
            for name in inside
        ]
        first, device = first + int(count), device + data * tensor
    for span in recompute.split() if recompute != "none" else []:
        low, _, high = span.partition("-")
        inside = [name for name, at in operators if int(low) <= at <= int(high or low)]
        lines.append(f"recompute %{inside[0]}..%{inside[-1]}")
    head = ["shardwright-plan 1", 'name "measured"', f"devices {device}", "schedule 1f1b"]
    return "\n".join([*head, *lines]) + "\n", device


def _decided(text: str) -> list[tuple[str, str]]:
    rows = [line for line in text.splitlines() if line.startswith("op %")]
    return [(name[4:], how.split(" on ")[0]) for name, how in (row.split(": ", 1) for row in rows)]
