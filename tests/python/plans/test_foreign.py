"""A quick sample of the zoo, and the zoo's own parts: what it must find, and what it must not do twice."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import equality
import zoo
from foreign import __main__ as command
from foreign import building, children, figures, results, table, trying
from foreign.building.built import Built, NotBuilt, finished
from foreign.results import Found
from shardwright.errors import RuntimeFault

torch.set_num_threads(1)

# Types of Transformers that are quick: text, images, sound, films, series over time.
SAMPLE = (
    "albert", "audio-spectrogram-transformer", "bert", "biogpt", "codegen", "convbert", "deit", "distilbert",
    "electra", "ernie", "falcon", "gemma", "gpt_neox", "gptj", "granite", "mistral", "opt", "patchtst", "phi",
    "qwen2", "roberta", "stablelm", "timesformer", "vit", "xglm",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_a_type_of_transformers_equals_the_single_device(name: str) -> None:
    result = trying.tried("transformers", name, plans=("data", "megatron"))
    assert result["state"] == "tried", result
    assert results.came_through(result), result["plans"]
    assert trying.why_not_parallelized(result) is None


# ---- what the zoo finds ----------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def small() -> Built:
    torch.manual_seed(0)
    return finished(Small(), args=(torch.randn(4, 8, dtype=torch.float64),))


def empty() -> Found:
    return {"package": "none", "name": "small", "state": "too slow", "seconds": {}}


def test_a_model_that_comes_through_is_parallelized() -> None:
    result = trying.judged(small(), empty())
    assert result["state"] == "tried" and results.came_through(result)
    assert result["plans"]["data"]["share"] == 0.5
    assert trying.is_parallelized(result)
    assert not figures.failures([result])


class Otherwise(nn.Module):
    """What is traced of it is not what it does, and nothing that can be traced says so."""

    def __init__(self) -> None:
        super().__init__()
        self.small = Small()

    def forward(self, x: Tensor) -> Tensor:
        factor = 1.0 if torch.compiler.is_compiling() or torch.compiler.is_exporting() else 2.0
        return self.small(x) * factor


def test_a_capture_that_differs_is_a_failure() -> None:
    built = finished(Otherwise(), args=(torch.randn(4, 8, dtype=torch.float64),))
    result = trying.judged(built, empty())
    assert (result["state"], result["code"]) == ("differs", "SW0114")
    assert figures.failures([result]) == [result]
    assert not trying.is_parallelized(result)


@pytest.mark.parametrize("kind", ["losses", "gradients", "parameters"])
def test_a_program_that_gives_other_numbers_is_a_failure(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = equality.run

    def other(*args: Any, **kwargs: Any) -> equality.Result:
        result = run(*args, **kwargs)
        next(iter(getattr(result, kind).values())).mul_(1 + 1e-6)
        return result

    monkeypatch.setattr(equality, "run", other)
    entry = trying.judged(small(), empty())
    assert {made["outcome"] for made in entry["plans"].values()} == {"wrong"}
    assert figures.failures([entry]) == [entry]
    assert [plan for _, plan in figures.silently_wrong([entry])] == list(trying.PLANS)
    assert f"**none small** under `data`: {kind[:4]}" in page([entry])


def test_gradients_of_zeros_for_none_are_told_and_no_others_are_equal() -> None:
    built = small()
    expected, _ = trying.single_device(built)
    ours, _ = trying.single_device(built)
    name = next(iter(expected.gradients))
    del expected.gradients[name]
    assert trying.compared(built, ours, expected, False)["outcome"] != "equal"
    ours.gradients[name].zero_()
    made = trying.compared(built, ours, expected, False)
    assert made == {"outcome": "equal", "zeros": 1}
    result = empty() | {"state": "tried", "plans": {"data": made}}
    assert figures.has_zeros(result) and not figures.failures([result])


def test_what_draws_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def draws(*args: Any, **kwargs: Any) -> equality.Result:
        raise RuntimeFault("SW0711", "the single device's random numbers are not known")

    monkeypatch.setattr(equality, "run", draws)
    result = trying.judged(small(), empty())
    assert {made["outcome"] for made in result["plans"].values()} == {"refused"}
    assert not figures.failures([result])


def test_the_limit_of_memory_is_no_failure_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def large(*args: Any, **kwargs: Any) -> equality.Result:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 360364800 bytes"
        )

    monkeypatch.setattr(equality, "run", large)
    with pytest.raises(MemoryError, match="360364800"):
        trying.judged(small(), empty())


def test_a_model_whose_results_depend_on_rounding_is_not_called_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Steep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            total = (x * self.weight).sum(-1) - (x * self.weight).flip(-1).sum(-1)
            return (total * 1e12).tanh() + (x * self.weight).sum(-1)

    built = finished(Steep(), args=(torch.randn(4, 8, dtype=torch.float64) * 1e3,))
    monkeypatch.setattr(equality, "run", lambda *args, **kwargs: changed)
    expected, _ = trying.single_device(built)
    changed, _ = trying.single_device(built)
    next(iter(changed.losses.values())).mul_(1.5)
    assert trying.compared(built, changed, expected, False)["outcome"] == "rounding"


def test_operations_that_every_rank_repeats_are_not_parallelized() -> None:
    result = trying.judged(small(), empty())
    result["plans"]["data"]["share"] = 0.56
    assert "a rank computes 56%" in str(trying.why_not_parallelized(result))
    result["plans"]["data"]["share"] = 0.55
    assert trying.is_parallelized(result)
    result["opaque_share"] = 0.051
    assert "run as they are have 5%" in str(trying.why_not_parallelized(result))


class Reading(nn.Module):
    """Its inner module reads a value."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * (2.0 if x.sum().item() > -1e9 else 1.0)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.linear = self.Inner(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.linear(x))


@pytest.mark.slow
def test_modules_that_run_as_they_are_are_counted() -> None:
    built = finished(Reading(), args=(torch.randn(4, 8, dtype=torch.float64),))
    result = trying.judged(built, empty())
    assert result["opaque"] == ["shardwright.module.default"] and result["opaque_share"] == 0.5
    assert results.came_through(result) and not trying.is_parallelized(result)
    assert result["plans"]["data"]["share"] == 0.8
    # It decides by the sum of the batch, and no rule is right.
    assert not trying.is_parallelized_again(result, "discovered")
    assert "no rule: where test_foreign.py" in str(trying.why_not_again(result, "discovered"))
    assert "| no |   |   | no: equal, 80% | modules that run as they are have 50%" in page([result])


@pytest.mark.slow
def test_a_model_is_tried_again_with_rules_that_are_found() -> None:
    class Rows(Reading.Inner):
        def forward(self, x: Tensor) -> Tensor:
            at = (x.sum(-1) > 0).nonzero()[:, 0]
            return torch.zeros_like(x).index_add(0, at, self.linear(x[at])) if len(at) else 0 * x

    torch.manual_seed(0)  # as many rows in each half
    model = Reading()
    model.inner = Rows()
    result = trying.judged(finished(model, args=(torch.randn(4, 8, dtype=torch.float64),)), empty())
    assert not trying.is_parallelized(result) and trying.is_parallelized_again(result, "discovered")
    assert result["opaque_share"] > 0.3 and result["discovered"]["opaque_share"] == 0
    assert "| no |   |   | yes: equal, 5" in page([result])
    counts = {figure.what: figure.count for figure in figures.figures([result])}
    assert (counts["parallelized"], counts["parallelized, with rules that are found"]) == (0, 1)
    result["discovered"]["plans"]["data"] = {"outcome": "wrong", "reason": "loss"}
    assert figures.failures([result]) and not trying.is_parallelized_again(result, "discovered")
    assert "under `data, with rules that are found`: loss" in page([result])


@pytest.mark.slow
def test_a_model_that_reads_values_is_tried_again_without() -> None:
    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, sizes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
            return self.out(x) + self.part(x, sizes) + input_ids[:, None]

        def part(self, x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.linear(piece) for piece in x.split(sizes.tolist())])

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pieces = nn.Linear(8, 8), Pieces()

        def forward(self, x: torch.Tensor, sizes: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
            return self.pieces(self.first(x), sizes, input_ids)

    torch.manual_seed(0)
    x, sizes = torch.randn(4, 8, dtype=torch.float64), torch.tensor([1, 3])
    built = finished(Model(), kwargs={"x": x, "sizes": sizes, "input_ids": torch.tensor([1, 2, 3, 4])})
    result = trying.judged(built, empty())
    assert result["opaque_share"] == 0 and result["reads"] == ["kwargs['sizes']"]
    assert result["plans"]["data"]["outcome"] == "equal" and figures.under_rules(result)
    before = trying.as_without(result)
    assert before["opaque_share"] > 0.3 and before["plans"]["data"]["outcome"] == "equal"
    assert not trying.is_parallelized(before) and not figures.under_rules(before)
    counts = {figure.what: figure.count for figure in figures.figures([result])}
    whole = "captured whole", "captured whole, with `known_inputs=()`"
    assert [counts[what] for what in whole] == [1, 0]
    assert "| `kwargs['sizes']` | no: equal, " in page([result])


def test_a_model_that_is_refused_without_is_told_so() -> None:
    refused = {"outcome": "refused", "code": "SW0102", "reason": "it reads"}
    result = {"package": "none", "name": "one", "state": "tried", **came_through(), "reads": ["x"]}
    before = trying.as_without(result | {"without": {"plans": {"data": refused}}})
    assert trying.is_parallelized(result) and trying.why_not_parallelized(before) == "it reads"
    assert not figures.is_whole(before) and not figures.is_equal(before, "data")
    assert trying.as_without(result) is result


def test_operators_of_ours_that_have_rules_do_not_run_as_they_are() -> None:
    targets = {"module": None, "function": None, "expert_linear": "e k, e n k -> e n"}
    operators = [
        SimpleNamespace(target=f"shardwright.{name}.default", rule=rule, shapes=([], []), line="")
        for name, rule in [*targets.items(), ("function", "b -> b")]
    ]
    captured: Any = SimpleNamespace(notes=[], graph_text="", known_names=[])
    result = trying.of_graph(SimpleNamespace(operators=operators), captured)  # type: ignore[arg-type]
    assert result["opaque"] == ["shardwright.module.default", "shardwright.function.default"]
    assert result["without_rule"] == {}


@pytest.mark.slow
def test_float32_inside_of_what_runs_as_it_is_is_widened() -> None:
    class Asks(Reading.Inner):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to(torch.float32).to(torch.float64))

    model = Reading()
    model.inner = Asks()
    built = finished(model, args=(torch.randn(4, 8, dtype=torch.float64),))
    with zoo.widened():
        captured = trying.capture(built.module, built.args, {})
    assert captured.verified and not trying.is_coarse(captured)
    graph = trying.Graph(captured.graph_text)
    assert graph.operators
    result = trying.judged(built, empty())
    assert result["state"] == "tried" and results.came_through(result)


def test_what_does_not_train_is_not_built() -> None:
    with pytest.raises(NotBuilt, match="none of its results has a gradient"):
        finished(nn.Identity(), args=(torch.randn(4, 8, dtype=torch.float64),))
    with pytest.raises(NotBuilt, match="shapes cannot be multiplied"):
        finished(Small(), args=(torch.randn(4, 9, dtype=torch.float64),))


# ---- a run goes on ---------------------------------------------------------------------------


def fake_trial(package: str, name: str, say: Any) -> Found:
    """In place of a model: what its name says."""
    entry: Found = {"package": package, "name": name, "state": "too slow", "phase": "capture"}
    say(entry)
    if name == "hangs":
        while True:
            pass
    if name == "sleeps":
        time.sleep(600)
    if name == "looks":
        say(entry | {"phase": "discovered", "plans": {}})
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "dies":
        raise MemoryError("no more")
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return entry | {"state": "tried", "plans": {plan: {"outcome": "equal"} for plan in trying.PLANS}}


@pytest.mark.slow
def test_children_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "WAITING", 2)
    keys = [("none", name) for name in ("good", "hangs", "sleeps", "dies", "killed", "looks", "good-too")]
    told: list[list[str]] = []
    found = children.run(keys, fake_trial, 3, 1.0, lambda running: told.append([name for _, name in running]))
    by_name = {one["name"]: one for one in found}
    assert told[:3] == [["good"], ["good", "hangs"], ["good", "hangs", "sleeps"]]
    assert [running[-1] for running in told] == [name for _, name in keys] and max(map(len, told)) == 3
    states = {name: one["state"] for name, one in by_name.items()}
    assert states == {
        "good": "tried",
        "good-too": "tried",
        "hangs": "too slow",
        "sleeps": "too slow",
        "dies": "died",
        "killed": "died",
        "looks": "tried",
    }
    assert by_name["looks"]["discovered"]["plans"]["data"]["outcome"] == "fails"
    assert by_name["hangs"]["reason"].endswith("were over in capture")
    assert by_name["dies"]["reason"] == "MemoryError: no more"


def test_a_run_goes_on_where_it_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def run(keys: Any, *rest: Any) -> Any:
        tried.extend(name for _, name in keys)
        return ({"package": package, "name": name, "state": "not built"} for package, name in keys)

    class Named:
        names = staticmethod(lambda: ["one", "two", "three"])

    monkeypatch.setattr(building, "PACKAGES", {"json": "none"})
    monkeypatch.setattr(building, "_of", lambda package: Named)
    monkeypatch.setattr(children, "run", run)
    file = tmp_path / "results.jsonl"
    words = ["--results", str(file), "--page", str(tmp_path / "zoo.md")]
    results.append(file, {"package": "json", "name": "two", "state": "tried", **came_through()})
    assert command.main(words) == 0
    assert sorted(tried) == ["one", "three"]
    said = capsys.readouterr()
    assert [line.split(" s: ")[0] for line in said.out.splitlines()[:2]] == ["1 of 2, 0", "2 of 2, 0"]
    assert said.err == "", "a bar is for terminals"
    tried.clear()
    assert command.main(words) == 0 and tried == []
    assert command.main([*words, "--retry-failed"]) == 0
    assert sorted(tried) == ["one", "three"]
    tried.clear()
    assert command.main([*words, "--retry-failed", "--only", "json:two"]) == 0 and tried == []
    assert "3 of 3 models were tried" in (tmp_path / "zoo.md").read_text()


def came_through() -> Found:
    made = {"outcome": "equal", "share": 0.5, "split": 1.0, "split_operations": 1.0, "repeated": []}
    return {
        "plans": dict.fromkeys(trying.PLANS, made),
        "opaque": [],
        "opaque_share": 0.0,
        "without_rule": {},
        "coarse": False,
        "reads": [],
    }


def test_what_was_found_before_inputs_were_noticed_is_tried_again() -> None:
    result = {"package": "none", "name": "one", "state": "tried", **came_through()}
    old = {key: value for key, value in result.items() if key != "reads"}
    refused: Found = {"package": "none", "name": "one", "state": "refused", "code": "SW0102"}
    again = [old | {"opaque": ["shardwright.module.default"]}, refused, result | {"plans": {}}]
    for one in again:
        assert results.left([("none", "one")], {("none", "one"): one})
        assert table.OF_BEFORE.format(1) in page(
            [one | {"reason": "it reads", "plans": result["plans"]}]
        ) or (one is again[2])
    for one in (result, old, refused | {"reads": []}):
        assert not results.left([("none", "one")], {("none", "one"): one})


def test_a_line_that_was_cut_off_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    one = {"package": "none", "name": "one", "state": "not built"}
    results.append(file, one)
    with file.open("a") as out:
        out.write(json.dumps(one | {"name": "two"})[:20])
    assert list(results.read(file)) == [("none", "one")]
    results.append(file, one | {"name": "three"})
    assert list(results.read(file)) == [("none", "one"), ("none", "three")]
    results.append(file, one | {"state": "died"})
    assert results.read(file)["none", "one"]["state"] == "died"


def page(entry: list[Found]) -> str:
    return table.page(entry, {"none": 2}, "none 1.0", "2000-01-01")


def test_the_page_tells_what_is_wrong_first_and_what_was_not_tried() -> None:
    good = {"package": "none", "name": "good", "state": "tried", **came_through()}
    bad: Found = {
        "package": "none",
        "name": "bad",
        "state": "differs",
        "code": "SW0114",
        "reason": "a|b in /x/y/z.py",
    }
    text = page([good, bad])
    assert "2 of 2 models were tried (none 1.0; 2000-01-01)." in text
    assert "None: no program that was proved gave other numbers" in text
    assert "- none bad: a/b in z.py" in text
    assert "| good |   | whole | equal, 50% | equal, 50% | equal, 50% | yes |   |   |   |" in text
    assert text.index("none bad") < text.index("## Figures")
    text = page([good | {"state": "not built", "reason": "no"}])
    assert table.PARTIAL in text and table.PARTIAL not in page([good, bad])
    assert "1 of 2 models were tried" in text and "| none | good | not built | no |" in text


@pytest.mark.parametrize(
    ("made", "fails"),
    [
        ({"outcome": "fails", "reason": "ranks disagree"}, True),
        ({"outcome": "refused", "code": "SW0504", "reason": "not proved"}, True),
        ({"outcome": "refused", "code": "SW0302", "reason": "no such dim"}, False),
        ({"outcome": "nothing", "code": "SW0309", "reason": "nothing"}, False),
    ],
)
def test_a_program_that_does_not_run_or_is_not_proved_is_a_failure(made: Found, fails: bool) -> None:
    result = {"package": "none", "name": "one", "state": "tried", **came_through()}
    result["plans"] = {**result["plans"], "random": made}
    assert bool(figures.failures([result])) == fails
    assert not results.came_through(result) or made["outcome"] == "nothing"
    assert [code for code, _ in figures.codes([result])] == (
        [made["code"]] if made.get("code", "SW0309") != "SW0309" else []
    )
