"""Where values go: to rank 0, to safetensors files, and to `from_pretrained` of Transformers."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import Tensor, nn

import models
import shardwright as sw
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model
from shardwright.start.further_programs import skeleton_of
from shardwright.weights import values_of
from shardwright.weights.pretrained import save_pretrained

try:
    import transformers
except ImportError:
    transformers = None

torch.set_num_threads(1)
with_transformers = pytest.mark.skipif(transformers is None, reason="needs Transformers")


def parallel(
    module: nn.Module,
    args: Any,
    body: Callable[[ParallelModule], Any],
    plan: str = "data:2 x megatron:2",
    devices: int = 4,
    kwargs: Any = None,
) -> list[Any]:
    bundle, _ = compile_model(module, args, kwargs, plan=plan, devices=devices)
    program = load_program(bundle.files, digest=bundle.digest, world=devices)
    skeleton = skeleton_of(module)

    def rank(rank: int, comm: LocalComm) -> Any:
        values = values_of(module, bundle.captured.constants, None, program)
        return body(
            ParallelModule(
                program, comm, values, bundle.captured, skeleton=skeleton, save_pretrained=save_pretrained
            )
        )

    return run_local(devices, rank)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
        assert actual[name].dtype == value.dtype


@pytest.mark.parametrize(("name", "plan"), [("gpt", "data:2 x megatron:2"), ("resnet", "data")])
def test_rank_0_alone_has_the_state_dict(name: str, plan: str) -> None:
    module, args = models.MODELS[name]()
    first, *others = parallel(
        module, args, lambda model: model.full_state_dict(rank0_only=True, cpu=True), plan
    )
    assert_same(first, module.state_dict())
    assert others == [{}] * 3


class TiedBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8).double()
        self.register_buffer("mean", self.norm.running_mean)

    def forward(self, x: Tensor) -> Tensor:
        return (self.norm(x) + self.mean).square().mean()


def test_a_tied_buffer_has_all_its_names() -> None:
    module, args = TiedBuffers(), (torch.randn(8, 8).double(),)
    for tensors in parallel(module, args, lambda model: model.full_state_dict(), "data"):
        assert_same(tensors, module.state_dict())


@pytest.mark.slow
@pytest.mark.oldest
@pytest.mark.parametrize("size", ["5GB", "40KB", 1])
def test_files_hold_everything_in_bounded_sizes(size: int | str, tmp_path: Path) -> None:
    module, args = models.gpt()
    parallel(module, args, lambda model: sw.save_safetensors(model, tmp_path, size))
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    expected = {name: value for name, value in module.state_dict().items() if name != "lm_head.weight"}
    saved: dict[str, Tensor] = {}
    for file in files:
        tensors = load_file(tmp_path / file)
        total = sum(value.nbytes for value in tensors.values())
        assert size == "5GB" or len(tensors) == 1 or (size == "40KB" and total <= 40_000)
        saved |= tensors
    assert_same(saved, expected)
    if size == "5GB":
        assert files == ["model.safetensors"]
        assert sorted(path.name for path in tmp_path.iterdir()) == files
        other = models.gpt()[0]
        with torch.no_grad():
            other.wte.weight.zero_()
        load_model(other, tmp_path / "model.safetensors")
        assert_same(other.state_dict(), module.state_dict())
    else:
        assert len(files) > 2
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert sorted(index["weight_map"]) == sorted(expected)
        assert index["metadata"]["total_size"] == sum(value.nbytes for value in expected.values())
    again = sw.parallelize(skeleton_of(module), args, plan="replicate", weights=tmp_path)
    assert_same(again.full_state_dict(), module.state_dict())


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_mode_of_the_user(mask: int, tmp_path: Path) -> None:
    module, args = models.mlp()
    before = os.umask(mask)
    try:
        parallel(module, args, lambda model: sw.save_safetensors(model, tmp_path / "out", "20KB"), "data", 2)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "out").iterdir()}
    assert len(modes) > 3
    assert set(modes.values()) == {0o666 & ~mask}, modes


def test_other_numbers_of_files_leave_nothing_behind(tmp_path: Path) -> None:
    module, args = models.mlp()
    (tmp_path / "notes.txt").write_text("somebody's")

    def names(size: int | str) -> set[str]:
        parallel(module, args, lambda model: sw.save_safetensors(model, tmp_path, size), "data", 2)
        return {path.name for path in tmp_path.iterdir()}

    assert len(names("20KB")) > 3
    assert names("5GB") == {"model.safetensors", "notes.txt"}
    assert "model.safetensors" not in names("20KB")


def test_a_module_around_a_parallelized_one(tmp_path: Path) -> None:
    module, args = models.mlp()

    def body(model: ParallelModule) -> None:
        outer = nn.Module()
        outer.inner, outer.scale = model, nn.Parameter(torch.ones(3))
        sw.save_safetensors(outer, tmp_path)

    parallel(module, args, body, "megatron", 2)
    expected = {f"inner.{name}": value for name, value in module.state_dict().items()}
    assert_same(load_file(tmp_path / "model.safetensors"), {**expected, "scale": torch.ones(3)})


def test_a_disk_that_fills_up_leaves_the_old_files(tmp_path: Path) -> None:
    module, args = models.mlp()
    save = lambda model: sw.save_safetensors(model, tmp_path, "20KB")  # noqa: E731
    parallel(module, args, save, "data", 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(sw.RuntimeFault) as refused:
            parallel(module, args, save, "data", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(refused.value).startswith(f"error[SW0752]: weights cannot be written to {tmp_path}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_no_size_and_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(sw.RuntimeFault, match=r"SW0752.*'much' is no size"):
        sw.save_safetensors(nn.Linear(2, 2), tmp_path, "much")
    (tmp_path / "file").write_text("text")
    with pytest.raises(sw.RuntimeFault, match=r"SW0752.*cannot be written"):
        sw.save_safetensors(nn.Linear(2, 2), tmp_path / "file")


# ---- Transformers ----------------------------------------------------------------------------------

SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 64,
}  # fmt: skip


def llama(**options: Any) -> nn.Module:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=2, use_cache=False, **options)
    return transformers.LlamaForCausalLM(config).train()


def bert() -> nn.Module:
    sizes = {**SIZES, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).train()


def batch() -> dict[str, Tensor]:
    tokens = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(0))
    return {"input_ids": tokens, "labels": tokens}


@pytest.mark.slow
@with_transformers
@pytest.mark.parametrize(
    ("tied", "size", "plan"),
    [
        (False, "5GB", "data:2 x megatron:2"),
        (True, "20KB", "data:2 x megatron:2"),
        (True, "5GB", "zero3:2 x megatron:2 x offload"),
    ],
)
def test_transformers_load_what_was_trained(tied: bool, size: str, plan: str, tmp_path: Path) -> None:
    """From a recorded initialisation, through a step, to the plain model."""
    torch.manual_seed(3)
    plain = llama(tie_word_embeddings=tied)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(**batch()).loss.backward()
    optimizer.step()

    def body(model: ParallelModule) -> None:
        optimizer = sw.optimizer(model, torch.optim.SGD, lr=0.1)
        model.train_step(batch())
        optimizer.step()
        model.save_pretrained(tmp_path, size)

    module = sw.deferred(lambda: llama(tie_word_embeddings=tied), seed=3)
    parallel(module, (), body, plan, kwargs=batch())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).train()
    assert type(loaded) is type(plain)
    assert loaded.config.architectures == ["LlamaForCausalLM"]
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == tied
    expected = plain.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, value in loaded.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loaded(**batch()).loss, plain(**batch()).loss, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "generation_config.json").exists()
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@with_transformers
def test_what_transformers_save_is_loaded_in_parts(tmp_path: Path) -> None:
    """Tied weights have one name in the files; rotary tables have none, and come from the record."""
    torch.manual_seed(3)
    plain = llama(tie_word_embeddings=True)
    plain.save_pretrained(tmp_path, max_shard_size="20KB")
    names = [name for path in tmp_path.glob("*.safetensors") for name in safe_open(path, "pt").keys()]  # noqa: SIM118
    assert "lm_head.weight" not in names
    module = sw.deferred(lambda: llama(tie_word_embeddings=True), seed=4)
    model = sw.parallelize(module, (), batch(), plan="replicate", weights=tmp_path)
    assert_same(model.full_state_dict(), plain.state_dict())
    torch.testing.assert_close(model(**batch()).loss, plain(**batch()).loss)
    with torch.device("meta"):
        meta = llama(tie_word_embeddings=True)
    with pytest.raises(sw.RuntimeFault, match=r"SW0749.*\n.*model.rotary_emb.inv_freq"):
        sw.parallelize(meta, (), batch(), plan="replicate", weights=tmp_path)


@with_transformers
def test_bert_is_saved_and_loaded(tmp_path: Path) -> None:
    torch.manual_seed(3)
    plain = bert()
    parallel(plain, (), lambda model: model.save_pretrained(tmp_path), "data", 2, batch())
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert_same(loaded.state_dict(), plain.state_dict())


def test_other_models_have_no_save_pretrained(tmp_path: Path) -> None:
    module, args = models.mlp()
    with pytest.raises(sw.RuntimeFault, match=r"SW0753.*Mlp has no `save_pretrained` of its own"):
        sw.parallelize(module, args, plan="replicate").save_pretrained(tmp_path)


class Adapted(nn.Module):
    """Writes some of its tensors, by code of its own, as a model with an adapter does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.base, self.adapter = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)
        self.config = {"kind": "adapter"}

    def forward(self, x: Tensor) -> Tensor:
        return ((self.base(x) + self.adapter(x)) * self.scale).square().mean()

    def save_pretrained(self, folder: Path, part: str = "adapter", **options: Any) -> str:
        kept = {n: x for n, x in self.state_dict().items() if n.startswith(part)}
        kept |= {n: x.detach() for n, x in self.named_parameters() if n.endswith("bias")}
        torch.save({**kept, "scale": self.scale, **options, **self.config}, folder / "own.pt")
        return "written"

    def push_to_hub(self, name: str, folder: Path) -> str:
        self.save_pretrained(folder, part="base", name=name)
        return name


@pytest.mark.parametrize("plan", ["megatron", "zero3", "stages:2 x 1f1b", "data"])
def test_a_class_writes_by_its_own_code_what_it_does_on_one_device(plan: str, tmp_path: Path) -> None:
    plain, x = Adapted(), torch.randn(8, 8)
    calls: dict[str, Callable[[Any, Path], Any]] = {
        "as it is": lambda model, folder: model.save_pretrained(folder),
        "options": lambda model, folder: model.save_pretrained(folder, "base", extra=1),
        "push": lambda model, folder: model.push_to_hub("somebody/this", folder),
    }
    folders = {name: (tmp_path / f"{name} plain", tmp_path / f"{name} parallel") for name in calls}
    for both in folders.values():
        for folder in both:
            folder.mkdir()

    def step(model: Any, optimizer: torch.optim.Optimizer) -> None:
        model(x).backward()
        optimizer.step()

    step(plain, torch.optim.SGD(plain.parameters(), lr=0.1))

    def rank(rank: int, comm: LocalComm) -> list[Any]:
        model = sw.parallelize(modules[rank], (x,), plan=plan, comm=comm, cache=False, progress=False)
        optimizer = sw.optimizer(model, torch.optim.SGD, lr=0.1)
        model.train_step((x,))
        optimizer.step()
        return [call(model, folders[name][1]) for name, call in calls.items()]

    modules = [Adapted() for _ in range(2)]
    notes = run_local(2, rank)
    assert notes == [["written", "written", "somebody/this"], [None, None, None]]
    for name, call in calls.items():
        call(plain, folders[name][0])
        ours, theirs = (torch.load(folder / "own.pt") for folder in folders[name][::-1])
        assert ours.keys() == theirs.keys()
        texts = [{key: value for key, value in x.items() if isinstance(value, str)} for x in (ours, theirs)]
        assert texts[0] == texts[1]
        for key in theirs.keys() - texts[0].keys():
            torch.testing.assert_close(ours[key], theirs[key], rtol=1e-6, atol=1e-7)


@pytest.mark.slow
@with_transformers
def test_options_of_transformers_are_those_of_one_device(tmp_path: Path) -> None:
    torch.manual_seed(3)
    plain = llama(tie_word_embeddings=True)
    plain.save_pretrained(tmp_path / "plain", variant="x")

    def body(model: ParallelModule) -> None:
        model.save_pretrained(tmp_path / "ours", variant="x")
        model.save_pretrained(tmp_path / "as it is", safe_serialization=True)

    parallel(plain, (), body, "megatron", kwargs=batch())
    names = [sorted(file.name for file in (tmp_path / kind).iterdir()) for kind in ("plain", "ours")]
    assert names[0] == names[1] and "model.x.safetensors" in names[0]
    for kind, file in (("ours", "model.x.safetensors"), ("as it is", "model.safetensors")):
        assert_same(load_file(tmp_path / kind / file), load_file(tmp_path / "plain" / "model.x.safetensors"))


@pytest.mark.slow
@with_transformers
def test_experts_that_are_stored_one_by_one_are_loaded_together(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = transformers.MixtralConfig(
        **SIZES, num_key_value_heads=2, num_local_experts=4, use_cache=False, experts_implementation="eager"
    )
    plain = transformers.MixtralForCausalLM(config).train()
    model = sw.parallelize(plain, (), batch(), plan="replicate", cache=False)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same(loaded.state_dict(), plain.state_dict())


def save_in_process(rank: int, folder: str) -> dict[str, Tensor]:
    module, args = models.gpt()
    model = sw.parallelize(skeleton_of(module), args, plan="megatron", weights=module.state_dict())
    sw.save_safetensors(model, folder, "40KB")
    return model.full_state_dict(rank0_only=True)


@pytest.mark.processes
def test_processes_send_their_parts_to_rank_0(tmp_path: Path) -> None:
    received = sw.launch(save_in_process, 2, (str(tmp_path),), timeout=300)
    expected = models.gpt()[0].state_dict()
    assert_same(received, expected)
    loaded = {name: x for file in tmp_path.glob("*.safetensors") for name, x in load_file(file).items()}
    del expected["lm_head.weight"]
    assert_same(loaded, expected)
