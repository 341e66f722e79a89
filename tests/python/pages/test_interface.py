"""docs/reference/interface.md is what the sources say: every public name, its signature, its first sentence.

`UPDATE_GOLDEN=1 pytest tests/python/pages/test_interface.py` writes it again.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwright as sw

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "interface.md"
STUBS = Path(sw.__file__).parent / "_core.pyi"

HEAD = """# The whole interface

Everything that `import shardwright as sw` offers. Other modules and names may change with every release.
The page is made from the sources by `tests/python/pages/test_interface.py`. The
[console command](commands.md) has a page of its own.
"""

Function = ast.FunctionDef


def page() -> str:
    sections = {
        "Functions": [name for name in sw.__all__ if not inspect.isclass(getattr(sw, name))],
        "Classes": [
            name for name in sw.__all__ if inspect.isclass(getattr(sw, name)) and not _is_error(name)
        ],
        "Exceptions": [name for name in sw.__all__ if _is_error(name)],
    }
    lines = [HEAD]
    for title, names in sections.items():
        lines.append(f"## {title}\n")
        lines += [line for name in names for line in _entry(name)]
    return "\n".join(lines).rstrip() + "\n"


def _is_error(name: str) -> bool:
    public = getattr(sw, name)
    return inspect.isclass(public) and issubclass(public, Exception)


def _entry(name: str) -> Iterator[str]:
    public, node = getattr(sw, name), _node(name)
    if isinstance(node, Function):
        yield f"### `sw.{name}`\n\n```text\n{_signature(node)}\n```\n\n{_documented(name)}\n"
        return
    yield f"### `sw.{name}`\n\n{_documented(name)}\n"
    if _is_error(name):
        return
    inherited = [child for base in public.__mro__[1:] for child in _methods_of(base)]
    members = [_member(public, child) for child in [*node.body, *inherited] if _is_public(child)]
    if members:
        yield "| member | what |\n| --- | --- |\n" + "\n".join(members) + "\n"


def _methods_of(base: type) -> list[ast.stmt]:
    """Of a class of ours, of which a public one is made."""
    ours = base.__module__.startswith("shardwright.")
    return [child for child in _node_of(base).body if isinstance(child, Function)] if ours else []


def _node(name: str) -> Any:
    return _node_of(inspect.unwrap(getattr(sw, name)))


def _node_of(public: Any) -> Any:
    name = public.__name__
    home = STUBS if public.__module__ == "shardwright._core" else Path(str(inspect.getsourcefile(public)))
    tree = ast.parse(home.read_text())
    wanted = [one for one in tree.body if isinstance(one, (Function, ast.ClassDef)) and one.name == name]
    assert wanted, f"{name} is not in {home}"
    return wanted[-1]


def _is_public(child: ast.stmt) -> bool:
    if isinstance(child, ast.AnnAssign):
        return isinstance(child.target, ast.Name) and not child.target.id.startswith("_")
    return isinstance(child, Function) and not child.name.startswith("_")


def _member(owner: Any, child: Any) -> str:
    if isinstance(child, ast.AnnAssign):
        return f"| `{ast.unparse(child.target)}: {_cell(ast.unparse(child.annotation))}` | |"
    attribute = inspect.getattr_static(owner, child.name)
    said = _sentence(attribute.__func__ if isinstance(attribute, staticmethod) else attribute)
    decorators = {ast.unparse(one) for one in child.decorator_list}
    shown = f"{child.name}: {ast.unparse(child.returns)}" if "property" in decorators else _signature(child)
    return f"| `{_cell(shown)}` | {said} |"


def _signature(node: Function) -> str:
    given = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(given, Function)
    bound = "classmethod" in map(ast.unparse, node.decorator_list)
    if bound or (given.args.args and given.args.args[0].arg == "self"):
        del given.args.args[0]
    return (
        f"{node.name}({ast.unparse(given.args)}) -> {ast.unparse(node.returns) if node.returns else 'None'}"
    )


def _documented(name: str) -> str:
    """What the stubs say of a compiled class, else what the object itself says."""
    node = _node(name)
    return _paragraph(ast.get_docstring(node) or inspect.getdoc(getattr(sw, name)) or "")


def _paragraph(text: str) -> str:
    return text.split("\n\n")[0].replace("\n", " ")


def _sentence(documented: Any) -> str:
    text = _paragraph(inspect.getdoc(documented) or "")
    return _cell(re.split(r"(?<=\.) ", text)[0])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


@pytest.mark.skipif(not PAGE.parent.exists(), reason="the tests run away from the repository")
def test_the_page_has_the_whole_interface() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page()


@pytest.mark.parametrize("name", sw.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert _documented(name), f"sw.{name} has no documentation"
