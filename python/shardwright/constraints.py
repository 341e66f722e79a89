"""What a plan that is chosen must respect: a file, its text, the name of a plan, or lines built here."""

from __future__ import annotations

from pathlib import Path

from .errors import PlanError

HEADER = "shardwright-constraints 1"
# What is no file is called so in messages.
CALLED = "the constraints"


class Constraints:
    """Lines in the words of plans, which `plan="auto"` respects.

    Operators are named by the path of their module, a glob, and their `kind`, such as `aten.linear.*`, or
    by the class of a `module` that they are in. With `nodes`, `"between"` or `"inside"`, only how nodes, or
    the devices of each, divide them is meant. `text` is what a file would say.
    """

    def __init__(self, *lines: str):
        self._lines = list(lines)

    @property
    def text(self) -> str:
        return "\n".join([HEADER, *self._lines, ""])

    def pin(
        self,
        what: str,
        path: str = "*",
        *,
        kind: str = "",
        module: str | None = None,
        nodes: str | None = None,
    ) -> Constraints:
        """Operators are divided so, and in no other way: `split inner 4`, `split batch`, `single`."""
        return self._add(f"pin {_who(path, kind, module, nodes)}: {what}")

    def forbid(
        self,
        what: str,
        path: str = "*",
        *,
        kind: str = "",
        module: str | None = None,
        nodes: str | None = None,
    ) -> Constraints:
        """`split DIM`: operators are not divided along it. `recompute`, `offload`: nothing is."""
        whole = what in ("recompute", "offload")
        return self._add(f"forbid {what}" if whole else f"forbid {_who(path, kind, module, nodes)}: {what}")

    def limit(
        self,
        what: str,
        path: str = "*",
        *,
        kind: str = "",
        module: str | None = None,
        nodes: str | None = None,
    ) -> Constraints:
        """`split DIM WAYS`: at most in so many. `memory SIZE`, `stages NUMBER`: of the whole plan."""
        whole = what.startswith(("memory ", "stages "))
        return self._add(f"limit {what}" if whole else f"limit {_who(path, kind, module, nodes)}: {what}")

    def tie(self, path: str = "*", *, kind: str = "", module: str | None = None) -> Constraints:
        """Each operator is divided as those in its place in other layers."""
        return self._add(f"tie {_who(path, kind, module, None)}")

    def use(self, name: str, *, nodes: str | None = None) -> Constraints:
        """Operators are divided as a named plan divides them."""
        return self._add(f'use "{name}"{_at(nodes)}')

    def _add(self, line: str) -> Constraints:
        return Constraints(*self._lines, line)


ConstraintsLike = str | Path | Constraints


def _who(path: str, kind: str, module: str | None, nodes: str | None) -> str:
    selected = f'"{path}" {kind}'.rstrip() if module is None else module
    return selected + _at(nodes)


def _at(nodes: str | None) -> str:
    return "" if nodes is None else f" {nodes} nodes"


def constraints_of(given: ConstraintsLike | None) -> tuple[str, str] | None:
    """What constraints are called in messages, and what they say."""
    if given is None:
        return None
    if isinstance(given, Constraints):
        return CALLED, given.text
    if isinstance(given, Path) or _is_file(given):
        return str(given), _read(Path(given))
    if "\n" in given:
        return CALLED, given
    return CALLED, Constraints().use(given).text


def _is_file(given: str) -> bool:
    return "\n" not in given and (given.endswith((".constraints", ".plan")) or "/" in given)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            "SW0336",
            f"the file of constraints {path} cannot be read",
            why=getattr(error, "strerror", None) or "it is not text",
            fix="give the path of a file of constraints or of a partial plan, or the name of a plan",
        ) from None


def nothing_to_choose(plan: object) -> PlanError:
    """Of constraints beside a plan that is not chosen."""
    return PlanError(
        "SW0334",
        f"there are constraints, but the plan {plan} is not chosen",
        why="constraints are for a plan that is searched for",
        fix='give the plan "auto" and a cluster, or leave the constraints out',
    )
