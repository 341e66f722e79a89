"""Which parameters are trained now: what `requires_grad` says on the ranks that hold them, known to all.

A rank that holds nothing of a parameter cannot see that it was frozen or unfrozen, and has to run the program
that does so all the same. So the ranks that can see it tell all others, once after each change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...errors import RuntimeFault
from ..communication.comm import Comm
from ..communication.verdicts import listed
from ..facade.elsewhere import Elsewhere
from ..programs.program import Program
from ..shards.shards import Shards

# By the number of a tensor whether it is trained.
Words = Mapping[int, bool]


class Trained:
    """Of one model on one rank. `elsewhere` are the parameters of which it holds nothing, by number."""

    def __init__(self, shards: Shards, elsewhere: Mapping[int, Elsewhere]):
        self._program = program = shards.program
        self._agreed = {tensor.id: tensor.trainable for tensor in program.parameters() if tensor.steppable}
        held = [(s.tensor.id, s.data) for s in shards.held if s.tensor.id in self._agreed]
        self._here: list[tuple[int, Tensor]] = held
        self._elsewhere = [(number, it) for number, it in elsewhere.items() if number in self._agreed]

    @property
    def thawed(self) -> list[str]:
        """Those that the first program does not train, and that are trained now."""
        tensors = (self._program.tensors[number] for number, trained in self._agreed.items() if trained)
        return [tensor.names[0] for tensor in tensors if tensor.frozen]

    def has_news(self) -> bool:
        """Whether something was set here since the ranks have agreed."""
        return bool(self._said(self._here) or self._said(self._elsewhere))

    def agree(self, comm: Comm) -> None:
        """All ranks call this where any has news; what the ranks that hold a parameter say is so for all."""
        said: list[tuple[Words, Words]] = comm.all_gather_objects(
            (self._said(self._here), self._said(self._elsewhere))
        )
        changed = sorted({number for words in said for kind in words for number in kind})
        agreed = {number: self._of(number, said) for number in changed}
        self._agreed.update(agreed)
        for number, parameter in (*self._here, *self._elsewhere):
            if number in agreed and parameter.requires_grad != agreed[number]:
                parameter.requires_grad_(agreed[number])

    def _said(self, parameters: Sequence[tuple[int, Tensor]]) -> dict[int, bool]:
        """Of several shards of a tensor the one that was changed speaks for all."""
        return {
            number: parameter.requires_grad
            for number, parameter in parameters
            if parameter.requires_grad != self._agreed[number]
        }

    def _of(self, number: int, said: Sequence[tuple[Words, Words]]) -> bool:
        words: dict[bool, list[int]] = {}
        for rank, (here, elsewhere) in enumerate(said):
            if _holds(self._program, rank, number):
                words.setdefault(here.get(number, self._agreed[number]), []).append(rank)
            elif number in elsewhere:
                words.setdefault(elsewhere[number], []).append(rank)
        if len(words) > 1:
            raise _unlike(self._program.tensors[number].names[0], words)
        return next(iter(words))


def _holds(program: Program, rank: int, number: int) -> bool:
    return any(tensor == number for tensor, _ in program.role(rank).entry["shards"])


def _unlike(name: str, words: Mapping[bool, Sequence[int]]) -> RuntimeFault:
    said = {True: "is trained", False: "is frozen"}
    error = RuntimeFault(
        "SW0781",
        "the ranks have changed the model differently",
        why=" | ".join(f"{listed(ranks)}: {name} {said[value]}" for value, ranks in words.items()),
        fix="set the same `requires_grad` on all ranks",
    )
    error.everywhere = True
    return error
