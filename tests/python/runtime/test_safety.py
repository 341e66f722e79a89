"""No name that a model, a plan or a path has can become code of the emitted program.

Every hostile word is the name of modules, parameters and buffers; and of classes, inputs, the plan
and the source file. The emitted code must have the same statements and calls as that of a twin
with a harmless word, and must compute what the model computes; or the model is refused in words.
"""

from __future__ import annotations

import ast
import contextlib
import re
import tokenize
from collections import Counter
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import shardwright as sw
from equality import assert_equal, reference, run
from shardwright import api
from shardwright.capture import capture
from shardwright.runtime import load_program
from shardwright.start.compiling import Bundle, compile_model

# Names of modules and parameters cannot have dots.
CODE = 'getattr(__import__("builtins"), "open")("PWNED", "w")'
WORDS = {
    "newline": f"x\n{CODE}\n",
    "indented newline": f"x\n    {CODE}\n    ",
    "return": f"x\r{CODE}\r",
    "return and newline": f"x\r\n{CODE}\r\n",
    "end of a string": f'x"]; {CODE}; y["',
    "end of a single string": f"x']; {CODE}; y['",
    "end of a docstring": f'x""" + str({CODE}) + """',
    "end of a docstring and a line": f'"""\n    {CODE}\n    """',
    "end of a single docstring": f"'''\n    {CODE}\n    '''",
    "backslash and quote": f'x\\"]; {CODE}; y[\\"',
    "backslash at the end": "x\\",
    "quote at the end": 'x"',
    "escapes": "\\x22\\n\\u0022\\N{QUOTATION MARK}",
    "form feed": f"x\f{CODE}\f",
    "vertical tab": f"x\v{CODE}",
    "separators": f"x\x1c{CODE}\x1d{CODE}\x1e{CODE}\x85{CODE}\u2028{CODE}\u2029{CODE}",
    "null": "x\0y",
    "control": "x\x1b[2J\x07\x08y",
    "right to left": "x\u202e\u2066y",
    "braces": "{" + CODE + "}{0}%s$x",
    "comment": f"x # {CODE}",
    "encoding": "coding: utf-7 +AAo-",
    "call": CODE,
    "lambda": "lambda: 0",
    "walrus": "(x := 1)",
    "semicolon": "x; import os",
    "bracket": "x](",
    "unicode that is p": "\U0001d561",
    "unicode letters": "größe",
    "empty look": " ",
    "keyword": "import",
    "constant": "None",
    "soft keyword": "match",
    "names of the program": "torch",
    "run": "run",
    "p": "p",
    "function of the program": "backward",
    "dunder": "__getitem__",
    "mangled": "__private",
    "number": "0",
    "suffix of a leaf": "weight__1",
    "call number": "x@1",
    "very long": "x" * 3000,
    "Plan file": 'x"\nop "*": single\n#',
    "graph file": 'x" "y"\noutput %x\n',
}
# What torch.export would take for code of its own, if it were the name of a module or a parameter.
REFUSED = {
    "newline", "indented newline", "return", "return and newline", "end of a string",
    "end of a single string",
    "end of a docstring", "end of a docstring and a line", "end of a single docstring", "backslash and quote",
    "backslash at the end", "quote at the end", "escapes", "form feed", "vertical tab", "separators", "null",
    "control", "right to left", "braces", "comment", "call", "keyword", "constant", "Plan file", "graph file",
}  # fmt: skip
REFUSED_KEYS = (REFUSED - {"keyword", "constant"}) | {"end of a single string"}
SOURCE = """
import torch

def child(self, x):
    own = self._parameters[STATE] + self._buffers[STATE + "b"]
    return torch.tanh(x @ own) * SCALE

def forward(self, batch):
    x = self._modules[STATE](batch[WORD])
    return self._modules[STATE + "2"](x).square().mean()
"""


def model(word: str, role: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Two modules of which the state, or everything else, is called so."""
    torch.manual_seed(0)
    state, other = (word, "x") if role == "state" else ("part", word)
    code: dict[str, Any] = {"STATE": state, "WORD": other, "SCALE": 2.0}
    exec(compile(SOURCE, f"/models/{other}.py".replace("\0", "0"), "exec"), code)
    child, top = _kind(other, code["child"])(), _kind(other, code["forward"])()
    child.register_parameter(state, nn.Parameter(torch.randn(4, 4)))
    child.register_buffer(state + "b", torch.randn(4))
    top.add_module(state, child)
    top.add_module(state + "2", nn.Linear(4, 4))
    return top.double(), ({other: torch.randn(4, 4, dtype=torch.float64)},)


def _kind(word: str, forward: Callable[..., Any]) -> Any:
    return type(word.replace("\0", "0"), (nn.Module,), {"forward": forward})


def plan(word: str) -> Callable[..., None]:
    """Splits every operator that can be in two."""

    def decide(graph: sw.Graph, draft: sw.Draft) -> None:
        for operator in graph.operators:
            dims = operator.dims
            for part in draft.trans(operator, next(iter(dims), "replicate"), 2):
                draft.assign(part, part.index)

    decide.__name__ = word
    return decide


def compiled(word: str, role: str) -> Bundle:
    named = plan("plan" if role == "state" else word)
    return compile_model(*model(word, role), plan=named, devices=2)[0]


@cache
def harmless(role: str) -> Bundle:
    return compiled("odd name", role)


@pytest.mark.parametrize("role", ["state", "rest"])
@pytest.mark.parametrize("title", WORDS)
def test_a_word_is_never_code(title: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    word = WORDS[title]
    if title in (REFUSED if role == "state" else REFUSED_KEYS):
        with pytest.raises(sw.CaptureError) as caught:
            compiled(word, role)
        what = "a part of the model" if role == "state" else "an input"
        assert str(caught.value) == (
            f"error[SW0120]: {what} has the name {word!a}\n"
            "  why: torch.export writes names into code that it runs, and this one would be taken apart\n"
            "  help: rename it: letters, digits, underscores and spaces are safe, Python's keywords are not"
        )
        assert list(tmp_path.iterdir()) == []
        return
    bundle, other = compiled(word, role), harmless(role)
    assert bundle.files.keys() == other.files.keys()
    for name, text in bundle.files.items():
        _same_lines_for_every_reader(name, text)
        if name.endswith(".py"):
            assert outline(text) == outline(other.files[name]), text
    module, args = model(word, role)
    assert_equal(run(bundle, module, args), reference(module, args), title)
    folder = api.save_program(bundle, tmp_path / "program")
    assert load_program(folder, world=2, digest=bundle.digest).plan == bundle.plan
    assert [path.name for path in tmp_path.iterdir()] == ["program"]


def outline(text: str) -> tuple[Any, ...]:
    """What the code can do: its statements, what it calls, and the names it takes from outside."""
    tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if not _is_text(node)]
    local = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    local |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    outside = {node.id for node in nodes if isinstance(node, ast.Name) and node.id not in local}
    calls = Counter(_called(node, local) for node in nodes if isinstance(node, ast.Call))
    # `p.name` or `p["odd name"]`, and a level of the tree more or less, is all that a name decides.
    kinds = {type(node).__name__ for node in nodes} - {"Attribute", "Subscript"}
    imports = [ast.unparse(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return calls, outside, kinds, imports, [type(node).__name__ for node in tree.body]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _called(call: ast.Call, local: set[str]) -> str:
    name = ast.unparse(call.func)
    root = name.split(".")[0]
    return "a function of the file" if root in local and root != "run" else name


def _same_lines_for_every_reader(name: str, text: str) -> None:
    """Editors, `grep`, and Python reading bytes see the lines that the checker saw."""
    assert text.split("\n") == re.split("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", text)
    if name.endswith(".py"):
        assert not re.search("[\0-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
        encoding, _ = tokenize.detect_encoding(BytesIO(text.encode()).readline)
        assert encoding == "utf-8", text.split("\n")[0]
        assert ast.dump(ast.parse(text.encode())) == ast.dump(ast.parse(text))


def test_a_name_that_torch_would_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for role in ("state", "rest"):
        with contextlib.suppress(sw.ShardwrightError):
            compiled(f'x", {CODE}) or (getattr)(self, "x', role)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("title", WORDS)
def test_a_plan_file_with_such_a_name(title: str, tmp_path: Path) -> None:
    """What a plan prints is read back as the same plan, or refused."""
    word = WORDS[title]
    graph = sw.Graph(capture(*model("odd name", "state")).graph_text)
    made = sw.make_plan(graph, plan(word), 2)
    again = sw.Plan.parse(graph, made.text)
    assert [splits for _, splits, _ in again.decisions] == [splits for _, splits, _ in made.decisions]
    assert again.devices == 2


@pytest.mark.parametrize("title", WORDS)
def test_a_graph_file_with_such_names(title: str) -> None:
    for role in ("state", "rest"):
        if title in (REFUSED if role == "state" else REFUSED_KEYS):
            continue
        graph = sw.Graph(capture(*model(WORDS[title], role)).graph_text)
        assert sw.Graph(graph.text).text == graph.text
