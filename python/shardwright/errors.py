"""What Shardwright raises: one tree, and one layout, the same as the compiler's own errors."""

from __future__ import annotations


class ShardwrightError(Exception):
    """A refusal that a user can act on.

    The code is stable (``SW0103``) and explained in ``docs/reference/errors.md``; ``place`` is the model's
    own source line, ``why`` the cause and ``fix`` the way out.
    """

    # Whether all ranks raise an error of this kind at the same place, so that none waits for another.
    everywhere = False

    def __init__(
        self,
        code: str,
        what: str,
        *,
        place: str | None = None,
        why: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.code = code
        self.what = what
        self.place = place
        self.why = why
        self.fix = fix
        super().__init__(str(self))

    def __str__(self) -> str:
        labelled = (("at", self.place), ("why", self.why), ("help", self.fix))
        lines = [f"error[{self.code}]: {self.what}"]
        lines += [f"  {label}: {text}" for label, text in labelled if text is not None]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.code, self.what, self.place, self.why, self.fix)


def _rebuild(
    kind: type[ShardwrightError],
    code: str,
    what: str,
    place: str | None,
    why: str | None,
    fix: str | None,
) -> ShardwrightError:
    return kind(code, what, place=place, why=why, fix=fix)


class CaptureError(ShardwrightError):
    """SW01xx: the model cannot be turned into a graph, or is called in another way than captured."""


class PlanError(ShardwrightError):
    """SW03xx: no plan, or a plan that does not fit."""


class CompileError(ShardwrightError):
    """SW04xx: lowering or emitting the program failed."""


class CheckError(ShardwrightError):
    """SW05xx: the program is not proved equal to the model."""


class RuntimeFault(ShardwrightError):
    """SW07xx: the running program met something that it must not go on with."""


class ClusterError(ShardwrightError):
    """SW09xx: a cluster cannot be read, or a program cannot run on it."""


def with_article(noun: str) -> str:
    """`an int`, `a list`."""
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"
