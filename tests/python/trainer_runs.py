"""Runs of Transformers' Trainer, plain in one process or by a plan in several: what each of them logs.

trainer_runs.py plain FOLDER NAME...        torchrun trainer_runs.py PLAN FOLDER NAME...
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainingArguments,
)

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
# Of all processes together.
BATCH = 8
KEPT = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_accuracy", "step", "epoch", "total_flos")
KEPT += ("entropy", "mean_token_accuracy", "num_tokens")


class Words(Dataset[dict[str, Tensor]]):
    """Random words; some are no labels, and some samples are shorter."""

    def __init__(self, samples: int = 36, shortest: int = 12):
        self.samples, self.shortest = samples, shortest

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index >= self.samples:
            raise IndexError(index)
        generator = torch.Generator().manual_seed(index)
        length = self.shortest + (12 - self.shortest) * (index % 3) // 2
        ids = torch.randint(3, 64, (length,), generator=generator)
        labels = ids.clone()
        labels[: index % 4] = -100
        return {"input_ids": ids, "labels": labels}


class Sentences(Words):
    """Of two classes."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = super().__getitem__(index)["input_ids"]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids[0] % 2}


def padded(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """To the longest."""
    longest = max(len(sample["input_ids"]) for sample in samples)

    def filled(x: Tensor, value: int) -> Tensor:
        return torch.cat([x, x.new_full((longest - len(x),), value)])

    ids = torch.stack([filled(sample["input_ids"], 0) for sample in samples])
    labels = torch.stack([filled(sample["labels"], -100) for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def llama(**more: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **{**sizes, **more}))


def gpt2() -> Any:
    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, **sizes, **none))


def bert() -> Any:
    torch.manual_seed(0)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertForSequenceClassification(BertConfig(vocab_size=64, **sizes, **none))


def lora() -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=True)
    return get_peft_model(llama(), config)


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(64)}
    split = Tokenizer(models.WordLevel(words, unk_token="w0"))
    split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=split,
        unk_token="w0",
        pad_token="w1",
        eos_token="w2",
    )


def sft(plan: str, folder: Path, usual: dict[str, Any]) -> Any:
    """TRL's trainer of conversations, over tokens that are made up."""
    import datasets
    import trl

    rows = [Words()[index]["input_ids"].tolist() for index in range(36)]
    data = datasets.Dataset.from_dict({"input_ids": rows})
    given = {**usual, "max_steps": 4, "gradient_accumulation_steps": 2, "max_length": None}
    args = trl.SFTConfig(str(folder), **{**given, "gradient_checkpointing": False, "bf16": False})
    kind: Any = trl.SFTTrainer
    extra: dict[str, Any] = {}
    if plan != "plain":
        from shardwright.integrations.transformers import ParallelTrainer

        kind, extra = type("SFT", (ParallelTrainer, trl.SFTTrainer), {}), {"plan": plan}
    return kind(llama(), args, train_dataset=data, processing_class=tokenizer(), **extra)


def dpo(plan: str, folder: Path, usual: dict[str, Any], adapters: bool) -> Any:
    """TRL's trainer of preferences."""
    import datasets
    import trl

    words = Words(72)
    rows = [" ".join(f"w{word}" for word in words[index]["input_ids"].tolist()) for index in range(72)]
    pairs = {"prompt": rows[:24], "chosen": [" " + row for row in rows[24:48]]}
    data = datasets.Dataset.from_dict({**pairs, "rejected": [" " + row for row in rows[48:]]})
    args = trl.DPOConfig(
        str(folder), **{**usual, "max_steps": 3, "gradient_checkpointing": False, "bf16": False}
    )
    kind: Any = trl.DPOTrainer
    extra: dict[str, Any] = {}
    if plan != "plain":
        from shardwright.integrations.transformers import ParallelTrainer

        kind, extra = type("DPO", (ParallelTrainer, trl.DPOTrainer), {}), {"plan": plan}
    model = lora() if adapters else llama()
    extra |= {} if adapters else {"ref_model": llama()}
    return kind(model, args=args, train_dataset=data, processing_class=tokenizer(), **extra)


def accuracy(result: Any) -> dict[str, float]:
    return {"accuracy": float((result.predictions.argmax(-1) == result.label_ids).mean())}


def own_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    logits = outputs["logits"][:, :-1].flatten(0, 1)
    total = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
    return total / num_items_in_batch + 0.01 * outputs["logits"].pow(2).mean()


def runs() -> dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]]:
    """By name the model, the data, training arguments, and arguments of the Trainer."""
    each = {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
    accumulated = {**each, "gradient_accumulation_steps": 2}
    best = {
        "num_train_epochs": 6,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        # The first epoch is the best, whatever rounding does.
        "greater_is_better": True,
    }
    lengths = {"train_sampling_strategy": "group_by_length", "num_train_epochs": 1}
    return {
        "llama": (llama, Words(), accumulated, {}),
        "gpt2": (gpt2, Words(), {**each, "label_smoothing_factor": 0.1}, {}),
        "bert": (bert, Sentences(), accumulated, {"compute_metrics": accuracy}),
        "bf16": (llama, Words(), {**each, "bf16": True}, {}),
        "own loss": (llama, Words(), accumulated, {"compute_loss_func": own_loss}),
        "checkpointing": (llama, Words(), {**each, "gradient_checkpointing": True}, {}),
        "best": (llama, Words(), best, {"callbacks": [EarlyStoppingCallback(2)]}),
        "lengths": (llama, Words(shortest=6), lengths, {"data_collator": padded, "lengths": [8, 12]}),
        "lora": (lora, Words(), {**accumulated, "save_steps": 2}, {}),
        "saved": (llama, Words(), {"max_steps": 6, "save_steps": 3, "report_to": reports()}, {}),
    }


def reports() -> list[str]:
    return ["tensorboard"] if find_spec("tensorboard") else []


def run(plan: str, folder: Path, name: str, resume: str | None = None) -> dict[str, Any]:
    usual = {"per_device_train_batch_size": BATCH // WORLD, "per_device_eval_batch_size": BATCH // WORLD}
    usual |= {
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": [],
        "logging_steps": 1,
        "save_strategy": "no",
    }
    usual |= {"learning_rate": 1e-2, "warmup_steps": 1, "lr_scheduler_type": "cosine", "weight_decay": 0.1}
    if name == "sft":
        trainer = sft(plan, folder / name, usual)
    elif name.startswith("dpo"):
        trainer = dpo(plan, folder / name, usual, name == "dpo of adapters")
    else:
        trainer = made(plan, folder, name, usual)
    trainer.train(resume_from_checkpoint=resume)
    result = [{k: v for k, v in entry.items() if k in KEPT} for entry in trainer.state.log_history]
    predicted = trainer.predict(Words(10)).predictions if name == "llama" else None
    if name == "lora":
        trainer.save_model(str(folder / name / "last"))
    return {
        "log": result,
        "predicted": None if predicted is None else predicted[:, :, :4].tolist(),
        "weights": {n: p.double().abs().sum().item() for n, p in trainer.model.named_parameters()},
    }


def made(plan: str, folder: Path, name: str, usual: dict[str, Any]) -> Any:
    build, data, given, extra = runs()[name]
    usual = {**usual, "save_strategy": "steps" if "save_steps" in given else "no"}
    args = TrainingArguments(str(folder / name), **{**usual, **given})
    if plan == "plain":
        kind: Any = transformers.Trainer
        extra = {key: value for key, value in extra.items() if key != "lengths"}
    else:
        from shardwright.integrations import transformers as integration

        kind, extra = integration.Trainer, {**extra, "plan": plan}
    return kind(build(), args, train_dataset=data, eval_dataset=type(data)(14), **extra)


if __name__ == "__main__":
    plan, folder, *names = sys.argv[1:]
    Path(folder).mkdir(exist_ok=True)
    for each_name in names:
        name, _, resume = each_name.partition("@")
        result = run(plan, Path(folder), name, resume or None)
        Path(folder, f"{name}.{RANK}.json").write_text(json.dumps(result))
        print(name, flush=True)
