"""Where values come from: files, of which each rank reads its parts, and initialisation piece by piece."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import models
import shardwright as sw
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.start.compiling import compile_model
from shardwright.start.further_programs import skeleton_of
from shardwright.weights import files, replay, values_of
from shardwright.weights.deferring import recorded

torch.set_num_threads(1)


def parallel(
    module: nn.Module,
    args: Any,
    weights: Any = None,
    plan: str = "data:2 x megatron:2",
    devices: int = 4,
    body: Callable[[ParallelModule], Any] = lambda model: model.full_state_dict(),
) -> list[Any]:
    """Each rank's result of `body`, ranks being threads; values come as in `parallelize`."""
    bundle, _ = compile_model(module, args, plan=plan, devices=devices)
    program = load_program(bundle.files, digest=bundle.digest, world=devices)

    def rank(rank: int, comm: LocalComm) -> Any:
        values = values_of(module, bundle.captured.constants, weights, program)
        return body(ParallelModule(program, comm, values, bundle.captured))

    return run_local(devices, rank)


on_meta = skeleton_of


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
        assert actual[name].dtype == value.dtype


def write(module: nn.Module, folder: Path, count: int = 1) -> None:
    """In so many files, with an index; each tensor under its first name."""
    names = [name for name, _ in module.named_parameters()] + [name for name, _ in module.named_buffers()]
    state = module.state_dict()
    if count == 1:
        save_file({name: state[name] for name in names}, folder / "model.safetensors")
        return
    weight_map = {}
    for at in range(count):
        file = f"model-{at + 1:05}-of-{count:05}.safetensors"
        save_file({name: state[name] for name in names[at::count]}, folder / file)
        weight_map.update(dict.fromkeys(names[at::count], file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


# ---- files -----------------------------------------------------------------------------------------


@pytest.mark.oldest
@pytest.mark.parametrize("name", ["gpt", "resnet"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_model_on_meta_gets_its_values_from_files(name: str, count: int, tmp_path: Path) -> None:
    module, args = models.MODELS[name]()
    write(module, tmp_path, count)
    plan = "data:2 x megatron:2" if name == "gpt" else "data:4"
    for tensors in parallel(on_meta(module), args, tmp_path, plan):
        assert_same(tensors, module.state_dict())


def test_files_may_be_named_one_by_one(tmp_path: Path) -> None:
    module, args = models.gpt()
    write(module, tmp_path, 2)
    given = sorted(tmp_path.glob("*.safetensors"))
    assert_same(parallel(on_meta(module), args, given)[0], module.state_dict())


def test_weights_may_be_tensors_by_name() -> None:
    module, args = models.gpt()
    assert_same(parallel(on_meta(module), args, module.state_dict())[0], module.state_dict())


def test_a_tied_tensor_may_have_any_of_its_names(tmp_path: Path) -> None:
    module, args = models.gpt()
    state = {name: value for name, value in module.state_dict().items() if name != "wte.weight"}
    save_file(state, tmp_path / "model.safetensors")
    assert_same(parallel(on_meta(module), args, tmp_path)[0], module.state_dict())


def test_floats_are_cast(tmp_path: Path) -> None:
    module, args = models.gpt()
    write(copy.deepcopy(module).to(torch.bfloat16), tmp_path)
    expected = {name: value.bfloat16().double() for name, value in module.state_dict().items()}
    assert_same(parallel(on_meta(module), args, tmp_path)[0], expected)


def test_a_rank_reads_only_its_parts(tmp_path: Path, monkeypatch: Any) -> None:
    """Of what the plan splits in two, half is read by each rank; the rest once by each."""
    module, args = models.gpt()
    write(module, tmp_path)
    read: list[int] = []
    opened = files.safe_open

    class Counting:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.file = opened(*args, **kwargs)

        def __enter__(self) -> Counting:
            self.file.__enter__()
            return self

        def __exit__(self, *error: Any) -> None:
            self.file.__exit__(*error)

        def __getattr__(self, name: str) -> Any:
            assert name != "get_tensor"
            return getattr(self.file, name)

        def get_slice(self, name: str) -> Any:
            part = self.file.get_slice(name)

            class Slice:
                get_shape, get_dtype = part.get_shape, part.get_dtype

                def __getitem__(self, at: Any) -> Tensor:
                    value = part[at]
                    read.append(value.numel())
                    return value

            return Slice()

    monkeypatch.setattr(files, "safe_open", Counting)

    def held(model: ParallelModule) -> int:
        return sum(shard.data.numel() for shard in model.shards.held if shard.tensor.kind != "const")

    sizes = parallel(on_meta(module), args, tmp_path, "megatron", 2, held)
    whole = sum(p.numel() for p in module.parameters())
    assert sum(read) == sum(sizes)
    assert max(sizes) < 0.6 * whole


def refusal(module: nn.Module, args: Any, weights: Any = None) -> str:
    with pytest.raises(sw.RuntimeFault) as refused:
        sw.parallelize(module, args, plan="replicate", weights=weights)
    return str(refused.value)


def test_weights_of_another_model_are_listed(tmp_path: Path) -> None:
    module, args = models.mlp()
    state = module.state_dict()
    state["layers.0.up.weight"] = torch.zeros(3, 4)
    state["head.bias"] = torch.zeros(1, dtype=torch.int64)
    state["other.weight"] = state.pop("head.weight")
    assert refusal(on_meta(module), args, state) == (
        "error[SW0748]: the weights do not fit the model\n"
        "  why: missing: head.weight; unknown: other.weight; different: layers.0.up.weight is (3, 4) of"
        " torch.float32, the model has (64, 32) of torch.float64, head.bias is (1,) of torch.int64, the"
        " model has (1,) of torch.float64\n"
        "  help: give the weights of this model, by the names of its state dict"
    )


def test_tensors_without_values_are_listed() -> None:
    module, args = models.mlp()
    text = refusal(on_meta(module), args)
    assert text.startswith("error[SW0749]: 10 tensors of the model have no values\n")
    assert "layers.0.up.weight, layers.0.up.bias" in text
    assert "shardwright.deferred" in text


@pytest.mark.slow
def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    module, args = models.mlp()
    meta = on_meta(module)
    assert "there are no weights in" in refusal(meta, args, tmp_path)
    write(module, tmp_path, 2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    whole = first.read_bytes()
    for damage in (whole[:-8], whole[:100], b"", b"text that is no file of weights"):
        first.write_bytes(damage)
        text = refusal(meta, args, tmp_path)
        assert text.startswith(f"error[SW0750]: the weights in {first} cannot be read\n"), text
    first.unlink()
    assert f"{first} cannot be read\n  why: it is not there" in refusal(meta, args, tmp_path)
    assert "the weights have" in refusal(meta, args, [second, second])
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert "index.json cannot be read" in refusal(meta, args, tmp_path)


# ---- initialisation piece by piece -----------------------------------------------------------------


def gpt(**options: Any) -> nn.Module:
    return models.Gpt(models.GptConfig(**options)).double()


def seeded(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return factory()


@pytest.mark.oldest
@pytest.mark.parametrize(("plan", "devices"), [("data", 3), ("megatron", 2), ("data:2 x megatron:2", 4)])
def test_ranks_together_have_the_initialisation_of_the_single_device(plan: str, devices: int) -> None:
    args = models.gpt()[1]
    expected = seeded(gpt, 7).state_dict()
    module = sw.deferred(gpt, seed=7)
    assert all(tensor.is_meta for tensor in module.state_dict().values())
    for actual in parallel(module, args, None, plan, devices):
        assert_same(actual, expected)


def strange() -> nn.Module:
    """What constructors do to tensors and generators."""
    module = nn.Module()
    module.first = nn.Linear(4, 4)
    nn.init.orthogonal_(module.first.weight)
    nn.init.trunc_normal_(module.first.bias)
    rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
    module.rates = nn.Parameter(torch.tensor(rates))
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module.forked = nn.Linear(3, 3)
    module.after = nn.Linear(3, 2)
    torch.manual_seed(9)
    module.padded = nn.Embedding(5, 4, padding_idx=1)
    module.register_buffer("order", torch.randperm(10))
    module.register_buffer("like", torch.rand_like(torch.ones(3)), persistent=False)
    module.part = nn.Linear(5, 5)
    module.part.weight.data[1:3].normal_()
    module.part.weight.data = module.part.weight.data.t()
    one = torch.empty(4, 6)
    nn.init.normal_(one)
    module.left, module.right = nn.Parameter(one[:, :3]), nn.Parameter(one[:, 3:])
    module.found = nn.Parameter(torch.nonzero(torch.tensor([1.0, 0.0, 2.0])).float())
    module.listed = nn.Parameter(torch.tensor(torch.linspace(0, 1, 3).tolist()))
    if torch.rand(1) > 2:
        raise AssertionError
    return module


def test_constructors_may_do_what_they_like() -> None:
    expected = seeded(strange, 3)
    before = torch.get_rng_state()
    module = sw.deferred(strange, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    record = recorded(module)
    assert record is not None
    wanted = {**expected.state_dict(), "like": expected.like}
    assert record.names() == set(wanted)
    assert_same({name: value.clone() for name, value in record.values(wanted)}, wanted)
    # One by one the values are the same: what is drawn for others is drawn all the same.
    for name, value in wanted.items():
        assert torch.equal(next(record.values([name]))[1], value), name


def test_few_tensors_are_in_memory_at_a_time(monkeypatch: Any) -> None:
    """Also where all layers are initialised a second time at the end."""

    def deep() -> nn.Module:
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(20)))
        model.apply(lambda m: nn.init.normal_(m.weight) if isinstance(m, nn.Linear) else None)
        return model

    module = sw.deferred(deep, seed=1)
    record = recorded(module)
    assert record is not None
    counts: list[int] = []
    run = replay._Machine.run

    def counted(self: Any, entry: Any) -> None:
        run(self, entry)
        counts.append(len(self.memories))

    monkeypatch.setattr(replay._Machine, "run", counted)
    for _ in record.values(record.names()):
        pass
    assert len(counts) == 40
    assert max(counts) == 1
    expected = seeded(deep, 1).state_dict()
    assert_same({name: value.clone() for name, value in record.values(expected)}, expected)


def test_what_files_lack_comes_from_the_initialisation(tmp_path: Path) -> None:
    module, args = models.gpt()
    state = {name: value for name, value in module.state_dict().items() if "ln_f" not in name}
    state = {name: value for name, value in state.items() if name not in ("wpe.weight", "lm_head.weight")}
    save_file(state, tmp_path / "model.safetensors")
    fresh = seeded(gpt, 7).state_dict()
    expected = {name: state.get(name, fresh[name]) for name in fresh} | {
        "lm_head.weight": state["wte.weight"]
    }
    assert_same(parallel(sw.deferred(gpt, seed=7), args, tmp_path)[0], expected)
    assert not torch.equal(fresh["wpe.weight"], module.state_dict()["wpe.weight"])


def test_a_part_of_a_deferred_model_has_its_values() -> None:
    outer = sw.deferred(lambda: nn.Sequential(nn.Linear(3, 3), models.Mlp(8, 16, 1).double()), seed=2)
    expected = seeded(lambda: nn.Sequential(nn.Linear(3, 3), models.Mlp(8, 16, 1).double()), 2)
    args = (torch.randn(4, 8).double(), torch.randn(4, 1).double())
    assert_same(parallel(outer[1], args, None, "data", 2)[0], expected[1].state_dict())


def test_conversions_of_a_deferred_model_are_followed() -> None:
    args = models.gpt()[1]
    module = sw.deferred(lambda: models.Gpt(models.GptConfig()), seed=7).double()
    assert_same(parallel(module, args)[0], seeded(gpt, 7).state_dict())


def test_a_change_after_the_initialisation_is_refused() -> None:
    module = sw.deferred(gpt, seed=7)
    nn.init.zeros_(module.wpe.weight)
    text = refusal(module, models.gpt()[1])
    assert text.startswith("error[SW0751]: wpe.weight were changed after the initialisation was recorded")


def test_what_cannot_be_recorded_is_refused() -> None:
    def own_generator() -> nn.Module:
        layer = nn.Linear(2, 2)
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(1))
        return layer

    with pytest.raises(sw.RuntimeFault, match=r"SW0751[\s\S]*a generator of its own"):
        sw.deferred(own_generator)
    with pytest.raises(sw.RuntimeFault, match=r"SW0751[\s\S]*the factory returned an int"):
        sw.deferred(lambda: 3)  # type: ignore[arg-type, return-value]
