"""What a training run's YAML file may say. The texts are those of the schema and of the documentation."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from dataclasses import field as made_field
from typing import Any


def _said(text: str, default: Any = None, *, needed: bool = False, known: Any = None) -> Any:
    """A field, and what it means. `known` raises where a value that is given names nothing."""
    metadata = {"text": text, "known": known}
    if isinstance(default, (list, dict)):
        return made_field(default_factory=type(default), metadata=metadata)
    return made_field(default=MISSING if needed else default, metadata=metadata)  # type: ignore[call-overload]


def _known_cluster(name: str) -> None:
    from .._core import cluster_devices
    from ..start.auto_plan import cluster_of

    cluster_devices(*cluster_of(name))


@dataclass(frozen=True)
class ModelConfig:
    """The model: `path`, or `transformers`."""

    path: str | None = _said("class or function that gives the module: `package.module:name`, `file.py:name`")
    transformers: str | None = _said("folder of a checkpoint of Transformers, or its config.json")
    auto_class: str = _said("class of Transformers that `transformers` is made with", "AutoModelForCausalLM")
    arguments: dict[str, Any] = _said("keywords of `path`, or changes of the config of `transformers`", {})
    weights: str | None = _said("safetensors file or folder to begin with; each rank reads its part")
    deferred: bool = _said("build without memory: each rank makes only its part of the parameters", False)


@dataclass(frozen=True)
class DataConfig:
    """Samples: `path`, `text`, `tokens` or `dataset`."""

    path: str | None = _said("class or function that gives a data set of `torch.utils.data`")
    arguments: dict[str, Any] = _said("keywords of `path`", {})
    text: list[str] = _said("text files, joined and cut into sequences; needs a tokenizer", [])
    tokens: str | None = _said("file of token numbers, mapped into memory")
    tokens_dtype: str = _said("type of the numbers in `tokens`", "uint16")
    dataset: str | None = _said("folder that `datasets.Dataset.save_to_disk` wrote")
    field: str = _said("column of `dataset` that has the text", "text")
    sequence: int | None = _said("tokens of a sample, of `text`, `tokens` and `dataset`")
    shifted: bool = _said("labels are the next tokens; false where the model shifts them itself", False)
    collate: str | None = _said("function that makes a batch of a list of samples")
    batch: int = _said("samples of a step, on all devices together", 8)
    shuffle: bool = _said("another order in each epoch", True)
    drop_last: bool = _said("leave out a last batch that is smaller", True)
    workers: int = _said("processes of each rank that load samples", 0)


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out data, and when it is looked at."""

    data: DataConfig = _said("the data", needed=True)
    every: int = _said("steps between evaluations", 100)
    batches: int | None = _said("batches of an evaluation; all without it")


@dataclass(frozen=True)
class GroupConfig:
    """Parameters with options of their own."""

    params: list[str] = _said("names of parameters, or globs of them: `*.bias`", needed=True)
    options: dict[str, Any] = _said("options of the optimizer for these", {})


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer, by its class."""

    path: str = _said("class of the optimizer", "torch.optim:AdamW")
    lr: float = _said("highest learning rate", 3e-4)
    options: dict[str, Any] = _said("other options: `betas`, `weight_decay`", {})
    groups: list[GroupConfig] = _said("groups of parameters; all others have the options above", [])
    clip: float | None = _said("limit of the gradients' norm")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate over the steps."""

    kind: str = _said("`constant`, `linear` or `cosine`", "cosine")
    warmup: int = _said("steps in which it rises from 0", 0)
    final: float = _said("share of the highest that it ends at", 0.0)


@dataclass(frozen=True)
class PlanConfig:
    """How the run is parallelized."""

    name: str = _said("a named plan, a plan file, or `auto`", "auto")
    cluster: str | None = _said(
        "cluster that `auto` chooses for, and that steps are predicted on; the devices here without it",
        known=_known_cluster,
    )
    constraints: str | None = _said("file of constraints for `auto`")
    micro_batches: int | str = _said("parts that a batch is computed in, or `auto`", 1)
    memory: str | None = _said("memory of a device, such as 80GB: more is refused")
    compile: bool = _said("`torch.compile` what is between communications", False)
    save_to: str | None = _said("folder for the emitted program")


@dataclass(frozen=True)
class CheckpointConfig:
    """Where the run is saved, and what is kept of that."""

    folder: str | None = _said("folder of the checkpoints; none are written without it")
    every: int = _said("steps between checkpoints; 0 is at the end only", 0)
    keep: int = _said("newest checkpoints that are kept, and the best; 0 is all", 3)
    best: bool = _said("keep the checkpoint with the lowest evaluation loss, too", True)
    behind: bool = _said("write while training goes on", False)
    export: str | None = _said("folder for the merged weights, as safetensors, at the end")


@dataclass(frozen=True)
class LogConfig:
    """What is said of the run, and where."""

    every: int = _said("steps between lines of progress", 10)
    json: str | None = _said("file for one JSON object a step")
    tensorboard: str | None = _said("folder for TensorBoard")
    wandb: dict[str, Any] | None = _said("arguments of `wandb.init`")


@dataclass(frozen=True)
class Config:
    """A training run."""

    model: ModelConfig = _said("the model", needed=True)
    data: DataConfig = _said("the training data", needed=True)
    steps: int | None = _said("optimizer steps in all; or give `epochs`")
    epochs: int | None = _said("how often the data is gone through")
    evaluation: EvaluationConfig | None = _said("held-out data")
    tokenizer: str | None = _said("folder of a tokenizer of Transformers, or `bytes`")
    optimizer: OptimizerConfig = _said("the optimizer", OptimizerConfig())
    schedule: ScheduleConfig = _said("the learning rate", ScheduleConfig())
    precision: str | None = _said("`bf16`, `fp16`, `fp32`; the model's own dtypes without it")
    plan: PlanConfig = _said("the plan", PlanConfig())
    checkpoints: CheckpointConfig = _said("checkpoints", CheckpointConfig())
    resume: str = _said("`auto`: from the newest checkpoint if there is one; `never`; or a folder", "auto")
    seed: int = _said("of initial weights, the order of samples, and dropout", 0)
    hooks: list[str] = _said("classes with any of the methods of `shardwright.train.hooks.Hook`", [])
    log: LogConfig = _said("progress and loggers", LogConfig())
