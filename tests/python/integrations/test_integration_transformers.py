"""Transformers' Trainer with a plan, on real processes, beside the plain Trainer in one process.

What they log must be equal: losses, norms, learning rates, metrics. So must the weights that they save.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import forked
import shardwright as sw

pytest.importorskip("accelerate", reason="Transformers' Trainer is built on Accelerate")

SCRIPT = Path(__file__).parents[1] / "trainer_runs.py"
HAS_PEFT = importlib.util.find_spec("peft") is not None
HAS_TRL = importlib.util.find_spec("trl") is not None
HAS_TENSORBOARD = importlib.util.find_spec("tensorboard") is not None
# What takes long to import.
MODULES = (
    "shardwright.integrations.transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    *(("peft",) if HAS_PEFT else ()),
    *(("trl", "trl.trainer.sft_trainer", "trl.trainer.dpo_trainer") if HAS_TRL else ()),
)
# All runs of the plain Trainer, which are quick.
PLAIN = ("llama", "gpt2", "bert", "bf16", "own loss", "checkpointing", "best", "lengths", "saved")
PLAIN += ("lora",) * HAS_PEFT + ("sft", "dpo") * HAS_TRL + ("dpo of adapters",) * (HAS_TRL and HAS_PEFT)
# Relative, of what is logged: sums are added in another order.
TOLERANCE = 2e-5


@functools.cache
def folder() -> Path:
    return Path(tempfile.mkdtemp())


def ran(plan: str, names: tuple[str, ...], world: int, place: Path) -> list[dict[str, Any]]:
    """The results of rank 0, by name."""
    place.mkdir(exist_ok=True)
    ended = forked.run(SCRIPT, plan, str(place), *names, world=world, folder=place, modules=MODULES)
    assert [rank.code for rank in ended] == [0] * world, "\n".join(rank.error[-3000:] for rank in ended)
    keys = [name.partition("@")[0] for name in names]
    return [json.loads((place / f"{key}.0.json").read_text()) for key in keys]


def plainly(name: str) -> dict[str, Any]:
    return dict(zip(PLAIN, _plainly(), strict=True))[name]


@functools.cache
def _plainly() -> list[dict[str, Any]]:
    return ran("plain", PLAIN, 1, folder() / "plain")


def same(result: dict[str, Any], expected: dict[str, Any], tolerance: float = TOLERANCE) -> None:
    assert len(result["log"]) == len(expected["log"])
    for ours, theirs in zip(result["log"], expected["log"], strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance, abs=tolerance)
    assert result["weights"] == pytest.approx(expected["weights"], rel=1e-3, abs=1e-3)
    if expected["predicted"] is not None:
        torch.testing.assert_close(
            torch.tensor(result["predicted"]), torch.tensor(expected["predicted"]), rtol=1e-3, atol=1e-4
        )


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize(
    "plan, names",
    [
        ("zero3", ("llama", "bert")),
        ("megatron", ("gpt2", "own loss")),
        ("stages:2 x 1f1b", ("llama",)),
        ("data", ("lengths", "checkpointing", "best")),
    ],
)
def test_a_run_by_a_plan_logs_what_one_process_logs(plan: str, names: tuple[str, ...]) -> None:
    for name, result in zip(names, ran(plan, names, 2, folder() / plan.replace(" ", "_")), strict=True):
        same(result, plainly(name))


@pytest.mark.processes
@pytest.mark.slow
def test_bfloat16_is_the_autocast_of_the_plain_trainer() -> None:
    [result] = ran("data", ("bf16",), 2, folder() / "bf16")
    same(result, plainly("bf16"), tolerance=5e-3)


@pytest.mark.processes
@pytest.mark.slow
def test_a_run_goes_on_in_another_number_of_processes_and_in_the_plain_trainer() -> None:
    whole, place = plainly("saved"), folder() / "resumed"
    [first] = ran("zero3", ("saved",), 2, place)
    same(first, whole)
    middle = place / "saved" / "checkpoint-3"
    assert not HAS_TENSORBOARD or [file.name for file in place.glob("saved/runs/*/events*")], (
        "TensorBoard was given nothing"
    )
    [elsewhere] = ran("megatron", (f"saved@{middle}",), 4, folder() / "elsewhere")
    same(elsewhere, whole)
    [alone] = ran("plain", (f"saved@{middle}",), 1, folder() / "alone")
    same(alone, whole)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(not HAS_PEFT, reason="peft is not installed")
def test_lora_trains_adapters_and_saves_adapters() -> None:
    from safetensors.torch import load_file

    place = folder() / "lora"
    [result] = ran("zero3", ("lora",), 2, place)
    same(result, plainly("lora"))
    saved = load_file(place / "lora" / "last" / "adapter_model.safetensors")
    expected = load_file(folder() / "plain" / "lora" / "last" / "adapter_model.safetensors")
    assert saved.keys() == expected.keys() and saved
    for name, value in saved.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)
    assert not (place / "lora" / "last" / "model.safetensors").exists()
    assert_peft_loads(place / "lora" / "last", saved)


def assert_peft_loads(place: Path, saved: dict[str, Any]) -> None:
    """Onto a fresh base model, all of what was saved, and it is what the model then computes with."""
    from peft import PeftModel, get_peft_model_state_dict

    from trainer_runs import Words, llama

    base = llama().eval()
    words = Words()[0]["input_ids"][None]
    before = base(words).logits.detach().clone()
    loaded = PeftModel.from_pretrained(base, str(place)).eval()
    there = get_peft_model_state_dict(loaded)
    assert there.keys() == saved.keys()
    assert all(torch.equal(there[name], value) for name, value in saved.items())
    assert not torch.equal(loaded(words).logits, before)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRL, reason="trl is not installed")
@pytest.mark.parametrize("plan, name", [("megatron", "sft"), ("zero3", "dpo"), ("zero3", "dpo of adapters")])
def test_a_class_of_trl_trains_with_its_own_loss(plan: str, name: str) -> None:
    if "adapters" in name and not HAS_PEFT:
        pytest.skip("peft is not installed")
    [result] = ran(plan, (name,), 2, folder() / name)
    same(result, plainly(name))


def trainer(tmp_path: Path, plan: Any = "data", **arguments: Any) -> Any:
    from transformers import TrainingArguments

    from shardwright.integrations.transformers import Trainer
    from trainer_runs import Words, llama

    usual = {"use_cpu": True, "report_to": [], "disable_tqdm": True}
    args = TrainingArguments(str(tmp_path), **{**usual, **arguments})
    return Trainer(llama(), args, train_dataset=Words(), plan=plan)


@pytest.mark.parametrize(
    "arguments, code",
    [
        ({"auto_find_batch_size": True}, "SW0841"),
        ({"save_on_each_node": True}, "SW0841"),
        ({"bf16_full_eval": True}, "SW0841"),
    ],
)
def test_what_cannot_be_followed_is_refused(tmp_path: Path, arguments: dict[str, Any], code: str) -> None:
    with pytest.raises(sw.ShardwrightError) as error:
        trainer(tmp_path, **arguments)
    assert error.value.code == code


def test_a_model_that_is_parallelized_already_is_refused(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    from shardwright.integrations.transformers import Trainer
    from trainer_runs import Words, llama

    rows = torch.utils.data.default_collate([Words()[0], Words()[0]])
    model = sw.parallelize(llama(), rows, plan="data", progress=False)
    with pytest.raises(sw.ShardwrightError) as error:
        Trainer(model, TrainingArguments(str(tmp_path), use_cpu=True, report_to=[]), plan="data")
    assert error.value.code == "SW0840"
    with pytest.raises(sw.ShardwrightError, match=r"integrations\.transformers"):
        model.forward = llama().forward


def test_arguments_are_saved_as_they_were_given(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    made = trainer(tmp_path, per_device_train_batch_size=4)
    torch.save(made.args, tmp_path / "args.bin")
    result = torch.load(tmp_path / "args.bin", weights_only=False)
    assert type(result) is TrainingArguments and result.per_device_train_batch_size == 4


def test_a_change_of_the_arguments_is_one_of_the_trainers(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.args.max_steps = 7
    assert made.args.max_steps == 7 and made.args.world_size == 1


@pytest.mark.slow
def test_a_saved_model_is_what_from_pretrained_loads(tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    made = trainer(tmp_path, max_steps=1, learning_rate=0.1, save_strategy="no")
    before = {name: value.clone() for name, value in made.model.state_dict().items()}
    made.train()
    made.save_model(str(tmp_path / "saved"))
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "saved").state_dict()
    trained = made.model_wrapped.full_state_dict()
    assert any(not torch.equal(before[name], value) for name, value in loaded.items())
    for name, value in trained.items():
        torch.testing.assert_close(loaded[name], value, rtol=0, atol=0)
