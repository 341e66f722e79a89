"""MkDocs' hook: pages of the repository's root, and sources that pages link to, are pages of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
# Of the root, by their place in the site.
PAGES = {"index.md": "README.md"} | {
    f"{name}.md": f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "SECURITY")
}
# What a search for a kind of parallelism finds first: other pages name it in their titles, too.
FIRST = {
    "reference/plan-names.md",
    "how-to/writing-a-plan.md",
    *(
        f"explanation/{name}.md"
        for name in (
            "activation-checkpointing",
            "context-parallel",
            "data-parallel",
            "expert-parallel",
            "novel-plans",
            "pipeline-parallel",
            "tensor-parallel",
        )
    ),
}
BOOST = 3
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for place, name in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / name).read_text()))
    for source in sorted(set(sources())):
        files.append(File.generated(config, place_of(source), content=page_of(source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links as they are in the repository lead to places of the site."""
    source = ROOT / PAGES[page.file.src_uri] if page.file.src_uri in PAGES else DOCS / page.file.src_uri
    if page.file.src_uri in FIRST:
        page.meta["search"] = {"boost": BOOST}

    def there(match: re.Match[str]) -> str:
        path = (source.parent / match[1]).resolve().relative_to(ROOT)
        here = page.file.src_uri.rpartition("/")[0] or "."
        return f"]({os.path.relpath(place_of(path), here)}{match[2] or ''})"

    return LINK.sub(there, markdown)


def sources() -> Iterator[Path]:
    """What pages link to that is no page, and no picture of theirs."""
    for page in [*DOCS.rglob("*.md"), *(ROOT / name for name in PAGES.values())]:
        for match in LINK.finditer(page.read_text()):
            path = (page.parent / match[1]).resolve().relative_to(ROOT)
            if path.parts[0] != "docs" and str(path) not in PAGES.values():
                yield path


def place_of(path: Path) -> str:
    """In the site."""
    if path.parts[0] == "docs":
        return path.relative_to("docs").as_posix()
    places = {name: place for place, name in PAGES.items()}
    return places.get(str(path), f"source/{path.as_posix()}.md")


def page_of(path: Path) -> str:
    language = path.suffix.removeprefix(".") or "text"
    head = f"---\nsearch:\n  exclude: true\n---\n# {path.as_posix()}\n\n"
    text = (ROOT / path).read_text().rstrip()
    # A page may have fences itself.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{head}{fence}{language}\n{text}\n{fence}\n"
