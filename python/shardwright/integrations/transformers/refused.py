"""What a Trainer with a plan cannot follow, refused when it is made."""

from __future__ import annotations

from typing import Any

from ...errors import RuntimeFault
from ...runtime import ParallelModule


def refuse_other_parallelism(trainer: Any, args: Any) -> None:
    """Another system that divides the model or the batch."""
    model, state = trainer.model, trainer.accelerator.state
    result = {
        "DeepSpeed": args.deepspeed or getattr(state, "deepspeed_plugin", None),
        "FSDP": args.fsdp or getattr(state, "fsdp_plugin", None),
        "Megatron-LM": getattr(state, "megatron_lm_plugin", None),
        "`parallelism_config`": args.parallelism_config,
        "`from_pretrained(distributed_config=...)`": getattr(
            model, "is_distributed_loading_by_transformers", False
        )
        or getattr(model, "_tp_size", None),
        "`device_map` over several devices": trainer.is_model_parallel,
    }
    for name, given in result.items():
        if given:
            raise RuntimeFault(
                "SW0840",
                f"{name} is given to a Trainer with a plan",
                why="the plan says how the model, its optimizer and the batch are divided",
                fix='leave it out: plan="zero3" does what FSDP and ZeRO-3 do, plan="zero2" what ZeRO-2 does',
            )
    if isinstance(model, ParallelModule):
        raise RuntimeFault(
            "SW0840",
            "a Trainer with a plan is given a model that is parallelized already",
            why="it makes the parallel model itself, for the batches of its loader",
            fix="give it the plain model; `parallelize_kwargs=` has the options of `sw.parallelize`",
        )
    if args.n_gpu > 1:
        raise RuntimeFault(
            "SW0840",
            f"this process is alone, and sees {args.n_gpu} GPUs",
            why="the Trainer would put `DataParallel` around the model; a plan needs a process for each GPU",
            fix=f"start it by `torchrun --nproc-per-node {args.n_gpu}`, or show it one GPU"
            " (CUDA_VISIBLE_DEVICES=0)",
        )


def refuse_arguments(args: Any) -> None:
    """Arguments that would have no effect, or another one."""
    reasons = {
        "auto_find_batch_size": (
            "a smaller batch is another program, and one rank alone runs out of memory",
            '`parallelize_kwargs={"micro_batches": "auto"}` cuts batches so that they fit',
        ),
        "fp16": (
            "the Trainer's `GradScaler` looks at one rank's gradients",
            '`bf16=True`, or `parallelize_kwargs={"precision": "fp16"}` without `fp16`',
        ),
        "fp16_full_eval": ("the program computes in the dtypes that it was proved for", "leave it out"),
        "bf16_full_eval": ("the program computes in the dtypes that it was proved for", "leave it out"),
        "save_on_each_node": ("the first rank alone has the whole model when it is saved", "leave it out"),
    }
    for name, (why, fix) in reasons.items():
        if getattr(args, name, False):
            raise RuntimeFault("SW0841", f"`{name}` is given to a Trainer with a plan", why=why, fix=fix)


def refuse_plan(program: Any, outside: bool) -> None:
    """Pipelines compute the loss on the last stage; the Trainer wants that of this step."""
    if program.goes_on:
        raise RuntimeFault(
            "SW0842",
            f"the plan {program.plan} gives the gradients of the batch before",
            why="its steps follow each other without a pipeline flush, and the Trainer steps the optimizer"
            " after each",
            fix="choose a schedule with a flush, such as 1f1b",
        )
    if outside and program.blocks > 1:
        raise RuntimeFault(
            "SW0842",
            f"the plan {program.plan} is a pipeline, and this Trainer's class computes its own loss",
            why="its `compute_loss` runs outside of the program, and only the last stage has what it reads",
            fix="give the loss as `compute_loss_func=`, which is compiled with the model, or choose a plan"
            " without stages, such as zero3 or megatron",
        )
