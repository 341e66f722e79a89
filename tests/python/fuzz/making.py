"""A random program of a few operators, from a seed; the same seed gives the same program."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .operators import OPERATORS, Operator
from .pool import D, Pool, Spoiled, Unfit
from .programs import Program, Step

ATTEMPTS = 12
MOST = 9
"""Operators of a program."""


def program(seed: int, number: int) -> Program:
    """The program of this number. Each operator is wanted by one of as many programs as there are."""
    for attempt in range(60):
        rng = random.Random(f"{seed}.{number}.{attempt}")
        wanted = OPERATORS[number % len(OPERATORS)] if attempt < 50 else None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _program(rng, f"{seed}.{number}", wanted)
        except Exception:  # a line may fail in any way
            continue
    raise AssertionError(f"no program could be made of seed {seed}, number {number}")


def _program(rng: random.Random, seed: str, wanted: Operator | None) -> Program:
    steps = rng.random() < 0.4
    pool = Pool(rng, zero=rng.random() < 0.06, single=rng.random() < 0.08, steps=steps)
    if wanted and wanted.name in ("rounded_float32", "float32_back"):
        pool.single = True
    count = rng.randint(1, MOST)
    place = rng.randrange(count)
    names = [name for at in range(count) for name in _more(pool, wanted if at == place else None)]
    if wanted and wanted.name not in names:
        raise Unfit
    losses = _losses(pool)[: 1 if steps else None]
    results = () if steps else _results(pool, losses)
    coarse = (
        any(t.dtype == torch.float32 for t in pool.values.values() if isinstance(t, Tensor)) and pool.single
    )
    program = Program(
        seed=seed,
        leaves=tuple(pool.leaves),
        steps=tuple(pool.steps),
        losses=losses,
        results=results,
        coarse=coarse,
        random=pool.random,
        outside=rng.random() < 0.3,
        operators=tuple(names),
    )
    # Export drops what nothing reads, and with it the numbers that it would have drawn.
    return program.without_dead() if program.random else program.pruned()


def _more(pool: Pool, wanted: Operator | None) -> list[str]:
    """Adds one operator; its name, or nothing if none that was tried fits."""
    for _ in range(ATTEMPTS):
        chosen = wanted or pool.rng.choice(OPERATORS)
        mark = pool.mark()
        try:
            chosen.make(pool)
            return [chosen.name]
        except Spoiled:
            raise
        except Exception:
            pool.back(mark)
    return []


def _losses(pool: Pool) -> tuple[str, ...]:
    """One to three scalars; what nothing has read is preferred."""
    able = [name for name in pool.made if _trains(pool.values[name])]
    if not able:
        raise Unfit
    read = {name for step in pool.steps for name in step.reads}
    unread = [name for name in able if name not in read]
    rng = pool.rng
    chosen = {rng.choice(unread or able)} | {rng.choice(able) for _ in range(rng.randint(0, 2))}
    return tuple(_scalar(pool, name) for name in sorted(chosen))


def _trains(t: Tensor) -> bool:
    return t.requires_grad and t.numel() > 0 and t.is_floating_point()


def _scalar(pool: Pool, name: str) -> str:
    v = pool.value(name)
    double = "" if v.t.dtype == D else ".double()"
    if v.t.dim() == 0:
        return pool.step(f"{v}{double} * 1.0").name
    line = pool.rng.choice(["weighted", "weighted", "{}{}.sin().sum()", "{}{}.pow(2).mean()", "{}{}.mean()"])
    if line == "weighted":
        weights = pool.data(f"normal({', '.join(map(str, v.t.shape))})")
        return pool.step(f"({v}{double} * {weights}).sum()").name
    return pool.step(line.format(v, double)).name


def _results(pool: Pool, losses: Sequence[str]) -> tuple[str, ...]:
    """Some results besides the loss, of any kind."""
    made = [name for name in pool.made if name not in losses]
    chosen = pool.rng.sample(made, min(len(made), pool.rng.choice([0, 0, 1, 1, 2])))
    return tuple(name for name in chosen if not _is_leaf(pool, name))


def _is_leaf(pool: Pool, name: str) -> bool:
    """A parameter or a buffer that is returned itself is refused."""
    storages = {t.untyped_storage().data_ptr() for t in _held(pool)}
    return pool.values[name].untyped_storage().data_ptr() in storages


def _held(pool: Pool) -> list[Tensor]:
    return [pool.values[leaf.name] for leaf in pool.leaves if leaf.kind not in ("module", "input")]


def unread(program: Program) -> list[Step]:
    """Steps whose results nothing needs."""
    read = {name for step in program.steps for name in step.reads} | {*program.losses, *program.results}
    return [step for step in program.steps if step.targets and not read.intersection(step.targets)]
