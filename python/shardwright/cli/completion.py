"""`shardwright completion bash`: what a shell needs to complete the command, made from the parser."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .parser import Commands


@dataclass(frozen=True)
class Option:
    flags: tuple[str, ...]
    help: str
    takes: bool
    """Whether a value follows."""
    values: tuple[str, ...]


@dataclass(frozen=True)
class Level:
    """What may follow after some words: `("ckpt",)` is what may follow `shardwright ckpt`."""

    path: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    options: tuple[Option, ...]
    values: tuple[str, ...]
    """Of the first argument that has a list of them."""


def add(commands: Commands) -> None:
    completion = commands.add_parser("completion", help="a script that completes the command in a shell")
    completion.add_argument("shell", choices=sorted(SHELLS))
    completion.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from . import parser

    print(SHELLS[arguments.shell](list(levels(parser()))), end="")


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
    commands: dict[str, argparse.ArgumentParser] = {}
    helps: list[tuple[str, str]] = []
    options: list[Option] = []
    values: tuple[str, ...] = ()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = dict(action.choices)
            helps = [(choice.dest, choice.help or "") for choice in action._choices_actions]
        elif action.option_strings:
            options.append(_option(action))
        else:
            values = values or _values(action)
    yield Level(path, tuple(helps), tuple(options), values)
    for name, command in commands.items():
        yield from levels(command, (*path, name))


def _option(action: argparse.Action) -> Option:
    return Option(tuple(action.option_strings), action.help or "", action.nargs != 0, _values(action))


def _values(action: argparse.Action) -> tuple[str, ...]:
    """The choices of an argument, or the best known of what it may be."""
    suggestions = getattr(action, "suggestions", ())
    return tuple(suggestions() if callable(suggestions) else suggestions or action.choices or ())


def _bash(levels: list[Level]) -> str:
    def known(words: Iterable[str]) -> str:
        return f"known={shlex.quote(' '.join(words))}"

    lines = ["_shardwright() {", *_follow(levels, "${COMP_WORDS[@]:1:COMP_CWORD-1}")]
    lines += _cases(
        levels,
        "${COMP_WORDS[COMP_CWORD-1]}",
        values=lambda option: known(option.values),
        files="known=",
        words=lambda offered: known(word for word, _ in offered),
    )
    lines += ["    esac;;", "  esac"]
    lines += ['  COMPREPLY=($(compgen -W "$known" -- "${COMP_WORDS[COMP_CWORD]}"))', "}"]
    return "\n".join([*lines, "complete -o default -F _shardwright shardwright", ""])


def _zsh(levels: list[Level]) -> str:
    def described(offered: Iterable[tuple[str, str]]) -> str:
        return f"offered=({' '.join(shlex.quote(_described(*pair)) for pair in offered)})"

    lines = ["#compdef shardwright", "_shardwright() {", *_follow(levels, "${(@)words[2,CURRENT-1]}")]
    lines.append("  local -a offered")
    lines += _cases(
        levels,
        "${words[CURRENT-1]}",
        values=lambda option: f"compadd -- {shlex.join(option.values)}; _files",
        files="_files",
        words=described,
    )
    lines += ["      esac", "      _describe shardwright offered || _files;;", "  esac", "}"]
    return "\n".join([*lines, "compdef _shardwright shardwright", ""])


def _cases(
    levels: list[Level],
    word_before: str,
    *,
    values: Callable[[Option], str],
    files: str,
    words: Callable[[list[tuple[str, str]]], str],
) -> Iterator[str]:
    """What is offered: after an option with values, after one that takes something else, and elsewhere the
    words that may come, with what they are. The two last cases are left open."""
    yield f'  case "$at {word_before}" in'
    for level in levels:
        for option in level.options:
            if option.takes:
                offered = values(option) if option.values else files
                yield f"    {_patterns(level, option)}) {offered};;"
    yield '    *) case "$at" in'
    for level in levels:
        may_come = [*level.commands, *((value, "") for value in level.values)]
        may_come += [(flag, option.help) for option in level.options for flag in option.flags]
        yield f"      {shlex.quote('/'.join(level.path))}) {words(may_come)};;"


def _fish(levels: list[Level]) -> str:
    lines = []
    for level in levels:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in level.path)
        names = [name for name, _ in level.commands]
        if names:
            not_yet = f"not __fish_seen_subcommand_from {' '.join(names)}"
            seen = f"{seen}; and {not_yet}" if seen else not_yet
        line = f"complete -c shardwright -n {shlex.quote(seen or 'true')}"
        for name, help in level.commands:
            lines.append(f"{line} -f -a {name} -d {shlex.quote(help)}")
        if level.values:
            lines.append(f"{line} -f -a {shlex.quote(' '.join(level.values))}")
        for option in level.options:
            flags = " ".join(_fish_flag(flag) for flag in option.flags)
            values = f" -a {shlex.quote(' '.join(option.values))}" if option.values else ""
            takes = " -r" if option.takes else ""
            lines.append(f"{line} {flags}{takes}{values} -d {shlex.quote(option.help)}")
    return "\n".join([*lines, ""])


def _follow(levels: list[Level], words: str) -> list[str]:
    """Shell lines that put the path of the commands said so far into `at`."""
    lines = ["  local at= known= word", f'  for word in "{words}"; do', '    case "$at/$word" in']
    for level in levels:
        if level.path:
            at = "/".join(level.path)
            said = at if len(level.path) > 1 else f"/{at}"
            lines.append(f"      {shlex.quote(said)}) at={shlex.quote(at)};;")
    return [*lines, "    esac", "  done"]


def _patterns(level: Level, option: Option) -> str:
    return "|".join(shlex.quote(f"{'/'.join(level.path)} {flag}") for flag in option.flags)


def _described(word: str, help: str) -> str:
    return f"{word}:{help}".replace("\n", " ") if help else word


def _fish_flag(flag: str) -> str:
    return f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"


SHELLS = {"bash": _bash, "fish": _fish, "zsh": _zsh}
