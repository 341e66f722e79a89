"""The console command by itself: quick answers, explanations, completion, suggestions, colour."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright as sw
from shardwright.cli import COMMANDS, main, parser
from shardwright.cli.completion import SHELLS, levels
from shardwright.cli.explain import explained

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "errors.md"


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["plan", "--help"], ["explain", "SW0310"], ["completion", "bash"]]
)
def test_what_needs_no_model_does_not_wait_for_pytorch(words: list[str]) -> None:
    """Nor for anything else that takes time to import: this is what makes it answer at once."""
    slow = {"torch", "numpy", "tqdm", "transformers", "safetensors"}
    # The names of plans are Rust's; a shell is given the script once.
    slow |= set() if words[0] == "completion" else {"shardwright._core"}
    code = f"import sys\nfrom shardwright.cli import main\ntry: main({words})\nexcept SystemExit: pass\n"
    assert python(code + f"print(sorted({slow} & set(sys.modules)))").endswith("\n[]\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "shardwright", "--version"], capture_output=True, text=True)
    assert done.stdout == f"shardwright {sw.__version__}\n"


def test_type_checkers_read_the_same_imports_that_are_made_at_first_use() -> None:
    tree = ast.parse(Path(sw.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in guarded.body if isinstance(node, ast.ImportFrom)]
    imported = {alias.name: node.module for node in imports for alias in node.names}
    assert imported == sw._HOMES
    assert sorted(imported) == sorted(sw.__all__) and set(sw.__all__) <= set(dir(sw))


def test_no_public_name_is_a_module_of_its_own() -> None:
    """Importing the module would put it in the place of what the name means."""
    modules = {file.stem for file in Path(sw.__file__).parent.iterdir()}
    assert not modules & set(sw.__all__)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'paralelize'"):
        _ = sw.paralelize


@pytest.mark.parametrize("given", ["SW0310", "sw310", "310", "error[SW0310]:"])
def test_an_error_is_explained_by_its_code(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", given]) == 0
    said = capsys.readouterr().out
    assert said.startswith("SW0310: the axes of a named plan do not fit the devices\n\n")
    assert "`data:2 x megatron:4`" in said and "###" not in said


@pytest.mark.skipif(not PAGE.exists(), reason="the tests run away from the repository")
def test_every_section_of_the_page_is_explained() -> None:
    headings = [line[4:] for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert [f"{code}: {title}" for code, (title, _) in explained().items()] == headings
    assert all(text and "\n## " not in text for _, text in explained().values())


def test_an_unknown_code_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "SW9999"]) == 1
    assert "error[SW0155]: there is no error SW9999" in capsys.readouterr().err


def test_a_misspelt_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["emmit"])
    assert "did you mean `emit`?" in capsys.readouterr().err


def test_every_command_is_in_every_completion() -> None:
    every_level = list(levels(parser()))
    assert {level.path[0] for level in every_level if level.path} == {
        command.__name__.rpartition(".")[2] for command in COMMANDS
    }
    for write in SHELLS.values():
        script = write(every_level)
        assert not [flag for level in every_level for option in level.options for flag in option.flags
                    if flag.lstrip("-") not in script]  # fmt: skip


LINES = {
    "shardwright em": "emit",
    "shardwright emit --outputs ": "all loss",
    "shardwright ckpt m": "merge",
    "shardwright emit --dev": "--devices",
    "shardwright completion ": "bash fish zsh",
}


@pytest.mark.parametrize("line", LINES)
def test_bash_completes(line: str, tmp_path: Path) -> None:
    bash = shutil.which("bash") or pytest.skip("there is no bash")
    words = line.split(" ")
    given = " ".join(f"'{word}'" for word in words)
    code = f"COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _shardwright; echo ${{COMPREPLY[@]}}"
    assert set(LINES[line].split()) <= set(_shell(bash, tmp_path, "bash", code).split())


@pytest.mark.parametrize("line", LINES)
def test_fish_completes(line: str, tmp_path: Path) -> None:
    fish = shutil.which("fish") or pytest.skip("there is no fish")
    said = _shell(fish, tmp_path, "fish", f'complete -C "{line}"')
    assert set(LINES[line].split()) <= {row.split("\t")[0] for row in said.splitlines()}


def test_zsh_reads_its_completion(tmp_path: Path) -> None:
    zsh = shutil.which("zsh") or pytest.skip("there is no zsh")
    assert "_shardwright" in _shell(zsh, tmp_path, "zsh", "which _shardwright", "compdef() { }; ")


def _shell(shell: str, folder: Path, name: str, code: str, before: str = "") -> str:
    file = folder / "script"
    file.write_text(SHELLS[name](list(levels(parser()))))
    done = subprocess.run(
        [shell, "-c", f"{before}. {file}; {code}"], capture_output=True, text=True, check=True, cwd=folder,
        env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False), ({}, False)],
)
def test_colour_is_for_who_sees_it(
    variables: dict[str, str],
    expected: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    main(["explain", "nonsense"])
    said = capsys.readouterr().err
    assert ("\033[31merror[SW0155]:\033[0m" in said) is expected
    assert expected or "\033" not in said


def test_operators_are_counted_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    first, _, head, *rows = capsys.readouterr().out.splitlines()
    counts = [int(row.split()[1]) for row in rows[: rows.index("")]]
    assert first == f"{sum(counts)} operators of {len(counts)} families have rules"
    assert head.split() == ["family", "operators", "such", "as"] and max(map(len, rows)) <= 100
    assert main(["ops", "list"]) == 0
    assert len(re.findall(r"`aten\.linear\.default`", capsys.readouterr().out)) == 1
