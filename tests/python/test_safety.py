"""No name that a model, a plan or a path has can become code of the emitted program.

Every hostile word is used at once as the name of classes, modules, parameters, buffers, inputs, the
plan and the source file. The emitted code must have the same statements and calls as that of a twin
with harmless words, and must compute what the model computes; or the model is refused in words.
"""

from __future__ import annotations

import ast
import re
import tokenize
from collections import Counter
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import shardwright as sw
import torch
from equality import assert_equal, reference, run
from shardwright import api
from shardwright.compiling import Bundle, compile_model
from shardwright.runtime import load_program
from torch import nn

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
HARMLESS = "odd name"
SOURCE = """
import torch

def child(self, x):
    own = self._parameters[WORD] + self._buffers[WORD + "b"]
    return torch.tanh(x @ own) * SCALE

def forward(self, batch):
    x = self._modules[WORD](batch[WORD])
    return self._modules[WORD + "2"](x).square().mean()
"""


def model(word: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """Two modules of which everything is called so, in a file that is called so."""
    torch.manual_seed(0)
    code: dict[str, Any] = {"WORD": word, "SCALE": 2.0}
    path = f"/models/{word}.py".replace("\0", "0")
    exec(compile(SOURCE, path, "exec"), code)
    child, top = _kind(word, code["child"])(), _kind(word, code["forward"])()
    child.register_parameter(word, nn.Parameter(torch.randn(4, 4)))
    child.register_buffer(word + "b", torch.randn(4))
    top.add_module(word, child)
    top.add_module(word + "2", nn.Linear(4, 4))
    return top.double(), ({word: torch.randn(4, 4, dtype=torch.float64)},)


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


def compiled(word: str) -> Bundle:
    return compile_model(*model(word), plan=plan(word), devices=2)[0]


@pytest.fixture(scope="module")
def harmless() -> Bundle:
    return compiled(HARMLESS)


@pytest.mark.parametrize("title", WORDS)
def test_a_word_is_never_code(
    title: str, harmless: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    word = WORDS[title]
    module, args = model(word)
    try:
        bundle = compile_model(module, args, plan=plan(word), devices=2)[0]
    except sw.ShardwrightError as error:
        raise AssertionError(f"refused: {error}") from error
    assert bundle.files.keys() == harmless.files.keys()
    for name in bundle.files:
        if name.endswith(".py"):
            assert outline(bundle.files[name]) == outline(harmless.files[name]), bundle.files[name]
    assert_equal(run(bundle, module, args), reference(module, args), title)
    folder = api.save(bundle, tmp_path / "program")
    assert load_program(folder, world=2, digest=bundle.digest).plan == word
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program"]


def outline(text: str) -> tuple[Any, ...]:
    """What the code can do: its statements, what it calls, and the names it takes from outside."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    local = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    local |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    local |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    outside = {node.id for node in nodes if isinstance(node, ast.Name) and node.id not in local}
    calls = Counter(_called(node, local) for node in nodes if isinstance(node, ast.Call))
    kinds = Counter(type(node).__name__ for node in nodes)
    imports = [ast.unparse(node) for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    loose = [
        type(node.value).__name__ if not isinstance(node.value, ast.Constant) else "docstring"
        for node in nodes
        if isinstance(node, ast.Expr)
    ]
    return calls, outside, kinds, imports, Counter(loose), [type(node).__name__ for node in tree.body]


def _called(call: ast.Call, local: set[str]) -> str:
    name = ast.unparse(call.func)
    root = name.split(".")[0]
    return "a function of the file" if root in local and root != "run" else name


@pytest.mark.parametrize("title", WORDS)
def test_the_lines_are_the_same_for_every_reader(title: str, harmless: Bundle) -> None:
    """Editors, `grep`, and Python reading bytes see the lines that the checker saw."""
    for name, text in compiled(WORDS[title]).files.items():
        assert text.split("\n") == re.split("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", text)
        assert not re.search("[\0-\x09\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)
        if name.endswith(".py"):
            encoding, _ = tokenize.detect_encoding(BytesIO(text.encode()).readline)
            assert encoding == "utf-8", text.split("\n")[0]
            assert ast.dump(ast.parse(text.encode())) == ast.dump(ast.parse(text))


@pytest.mark.parametrize("title", WORDS)
def test_a_plan_file_with_such_a_name(title: str, tmp_path: Path) -> None:
    """What a plan prints is read back as the same plan, or refused."""
    word = WORDS[title]
    graph = sw.Graph(sw.capture(*model(HARMLESS)).graph_text)
    made = sw.make_plan(graph, plan(word), 2)
    again = sw.Plan.parse(graph, made.text)
    assert [splits for _, splits, _ in again.decisions] == [splits for _, splits, _ in made.decisions]
    assert again.devices == 2


def test_operators_are_named_by_hostile_paths() -> None:
    """A graph's text is read back, whatever its names are."""
    for word in WORDS.values():
        text = sw.capture(*model(word)).graph_text
        assert sw.Graph(text).text == text


