"""What goes into a program and out of it: inputs that need gradients, outputs that are asked for, modules
inside of others and beside each other; float64, against plain PyTorch."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import forked
import models
import shardwright as sw
from shardwright import Graph, Plan
from shardwright.capture import capture
from shardwright.runtime import LocalComm, ParallelModule, load_program, run_local
from shardwright.runtime.communication.local import LocalWorld
from shardwright.runtime.programs.parts import OutputPart
from shardwright.runtime.shards.state import gather
from shardwright.start.compiling import compile_model, sources
from shardwright.start.further_programs import compiler_of, skeleton_of
from shardwright.start.planning import PlanLike
from shardwright.start.starter import Starter

torch.set_num_threads(1)

PLANS = [
    ("data", 2),
    ("megatron", 2),
    ("data:2 x megatron:2", 4),
    ("coshard:2", 2),
    ("replicate", 2),
    ("zero3", 2),
]
STEPS = 3
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "outputs.md"
Found = dict[str, Tensor]


class Blocks(nn.Module):
    """The middle of a transformer: hidden states in, hidden states out."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        config = models.GptConfig()
        self.h = nn.ModuleList(models.Block(config) for _ in range(depth))

    def forward(self, x: Tensor, bias: Tensor) -> dict[str, Any]:
        states = []
        for block in self.h:
            x = block(x + bias)
            states.append(x)
        return {"y": x, "states": tuple(states), "scale": x.square().mean()}


class Around(nn.Module):
    """An ordinary model around a part that may be parallel."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(37, 32).double()
        self.bias = nn.Parameter(torch.randn(8, 32, dtype=torch.float64))
        self.blocks = blocks
        self.head = nn.Linear(32, 37).double()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        out = self.blocks(self.embed(tokens), self.bias)
        loss = F.cross_entropy(self.head(out["y"]).flatten(0, 1), labels.flatten())
        if out["states"][0] is not None:
            loss = loss + 0.1 * out["states"][0].square().mean()
        return loss + 0.01 * out["scale"]


def made(
    module: nn.Module,
    args: tuple[Any, ...],
    plan: PlanLike,
    devices: int,
    *,
    inputs: str = "global",
    outputs: Any = "loss",
) -> Callable[[Any], ParallelModule]:
    """A rank's part of a module, by the rank's end of a communication."""
    starter = Starter(plan, devices, 1, {"inputs": inputs, "outputs": outputs})
    bundle = starter.first(module, args, None)
    program = load_program(
        {**bundle.files, "graph.txt": bundle.graph_text}, digest=bundle.digest, world=devices
    )

    def on(comm: Any) -> ParallelModule:
        return ParallelModule(
            program,
            comm,
            sources(module, bundle.captured),
            bundle.captured,
            inputs=inputs,
            training=module.training,
            skeleton=skeleton_of(module),
            compile=compiler_of(comm, starter),
        )

    return on


def gradients(model: nn.Module, prefix: str = "") -> Found:
    """All gradients of a model, those of a parallel one whole."""
    if isinstance(model, ParallelModule):
        return {
            prefix + tensor.names[0]: gather(model.shards, model.comm, tensor, _gradient)
            for tensor in model.program.parameters()
        }
    by_name = {}
    for name, parameter in model.named_parameters(recurse=False):
        assert parameter.grad is not None, name
        by_name[prefix + name] = parameter.grad.clone()
    for name, child in model.named_children():
        by_name |= gradients(child, f"{prefix}{name}.")
    return by_name


def _gradient(shard: Any) -> Tensor:
    return torch.zeros_like(shard.data) if shard.data.grad is None else shard.data.grad


def assert_same(ours: Found, theirs: Found, what: str = "") -> None:
    """To 1e-9 of the larger of a tensor's own norm and a thousandth of the typical one."""
    assert ours.keys() == theirs.keys(), what
    norms = [float(x.norm()) ** 2 for x in theirs.values()]
    typical = (sum(norms) / len(norms)) ** 0.5
    for name, x in theirs.items():
        gap, limit = float((ours[name] - x).detach().norm()), 1e-9 * max(float(x.norm()), 1e-3 * typical)
        assert gap <= limit, f"{what}: {name} differs by {gap:.3g}, more than {limit:.3g}"


def steps(model: nn.Module, forward: Callable[[], Tensor], more: Callable[[], Found] = dict) -> list[Found]:
    """A few steps of AdamW: losses, and all gradients."""
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(STEPS):
        adamw.zero_grad()
        loss = forward()
        loss.backward()
        seen.append({"loss": loss.detach().clone()} | gradients(model) | more())
        adamw.step()
    return seen


def compare(plain: list[Found], ranks: list[list[Found]], what: str) -> None:
    for rank, ours in enumerate(ranks):
        for step, (a, b) in enumerate(zip(ours, plain, strict=True)):
            assert_same(a, b, f"{what}, rank {rank}, step {step}")


# ---- a parallel part of an ordinary model ------------------------------------------------------


def around() -> tuple[Around, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Around(Blocks().double()), (torch.randint(37, (6, 8)), torch.randint(37, (6, 8)))


def example_of(model: Around, tokens: Tensor) -> tuple[Tensor, Tensor]:
    return model.embed(tokens), model.bias


@functools.cache
def around_alone() -> list[Found]:
    plain, args = around()
    return steps(plain, lambda: plain(*args))


@functools.cache
def blocks_graph() -> Graph:
    model, (tokens, _) = around()
    return Graph(capture(model.blocks, example_of(model, tokens)).graph_text)


def check_around(plan: PlanLike, devices: int, outputs: Any) -> None:
    model, args = around()
    on = made(model.blocks, example_of(model, args[0]), plan, devices, outputs=outputs)

    def rank(_: int, comm: Any) -> list[Found]:
        ours = copy.deepcopy(model)
        ours.blocks = on(comm)
        return steps(ours, lambda: ours(*args))

    compare(around_alone(), run_local(devices, rank), f"{plan!r}")


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_a_part_of_a_model_gives_the_gradients_of_its_inputs(plan: str, devices: int) -> None:
    check_around(plan, devices, "all")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_plans_of_a_part_of_a_model(seed: int) -> None:
    devices = 2 + seed % 3
    check_around(Plan.random(blocks_graph(), devices, seed), devices, "all")


def _around_in_a_process(rank: int) -> list[Found]:
    model, args = around()
    model.blocks = sw.parallelize(
        model.blocks, example_of(model, args[0]), plan="megatron", outputs=["y", "states"]
    )
    return steps(model, lambda: model(*args))


@pytest.mark.processes
def test_a_part_of_a_model_in_real_processes() -> None:
    actual = sw.launch(_around_in_a_process, devices=2, timeout=200)
    compare(around_alone(), [actual], "megatron")


def test_what_is_not_asked_for_says_so() -> None:
    model, args = around()
    on = made(model.blocks, example_of(model, args[0]), "data", 2, outputs=["y"])

    def rank(_: int, comm: Any) -> tuple[Any, Any]:
        ours = on(comm)
        return ours(*example_of(model, args[0])), ours.output_regions()

    for out, regions in run_local(2, rank):
        assert out["y"].shape == (6, 8, 32)
        assert out["scale"].shape == ()
        assert [type(state).__name__ for state in out["states"]] == ["Absent", "Absent"]
        assert {name: part.is_whole for name, part in regions.items()} == {"y": True, "scale": True}


# ---- inputs and outputs in parts ----------------------------------------------------------------


def part_given(model: ParallelModule, position: int) -> OutputPart | None:
    """The part that this rank is given of an input."""
    tensors = [model.program.tensors[number] for number in model.worker.role.inputs]
    for tensor, region in zip(tensors, model.worker.table.inputs, strict=True):
        if tensor.position == position:
            return OutputPart(tensor.factors, region)
    return None


def check_local(plan: PlanLike, devices: int) -> None:
    """Each rank is given its part, and gets the gradient of that."""
    torch.manual_seed(0)
    module = Blocks().double()
    wholes = [torch.randn(6, 8, 32).double().requires_grad_(), torch.randn(8, 32).double().requires_grad_()]
    weight = torch.randn(6, 8, 32, dtype=torch.float64)
    on = made(module, tuple(wholes), plan, devices, inputs="local", outputs={"*": "local"})

    def rank(_: int, comm: Any) -> tuple[Any, ...]:
        model = on(comm)
        parts = [part_given(model, 0), part_given(model, 1)]
        leaves_given = [
            (torch.zeros(0) if part is None else part.of(whole)).detach().double().requires_grad_()
            for part, whole in zip(parts, wholes, strict=True)
        ]
        out, leaves = model(*leaves_given)["y"], model.output_regions()["y"]
        assert leaves is not None
        (out * leaves.of(weight)).sum().backward()
        return gradients(model), leaves, out, list(zip(parts, leaves_given, strict=True))

    y = module(*wholes)["y"]
    (y * weight).sum().backward()
    expected = gradients(module)
    for actual, leaves, out, given in run_local(devices, rank):
        assert_same(actual, expected, f"{plan!r}")
        assert torch.allclose(out, leaves.of(y), rtol=1e-10, atol=1e-12)
        for (part, leaf_given), whole in zip(given, wholes, strict=True):
            assert torch.allclose(leaf_given.grad, part.of(whole.grad), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_each_rank_gets_the_gradient_of_its_own_part(plan: str, devices: int) -> None:
    check_local(plan, devices)


class Tagger(nn.Module):
    """Logits and hidden states beside a loss, as the models of Transformers give them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(37, 32)
        self.h = nn.ModuleList(models.Block(models.GptConfig()) for _ in range(2))
        self.head = nn.Linear(32, 37)

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Any]:
        states = [self.embed(tokens)]
        for block in self.h:
            states.append(block(states[-1]))
        logits = self.head(states[-1])
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits, "hidden_states": tuple(states)}


def tagger() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Tagger().double(), (torch.randint(37, (6, 8)), torch.randint(37, (6, 8)))


def outside(out: Any, labels: Tensor, share: float = 1.0) -> Tensor:
    """A loss of one's own, from logits and a hidden state: a sum over what is there, of a mean."""
    loss = F.cross_entropy(out["logits"].flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    return share * (loss + 0.1 * out["hidden_states"][1].square().mean())


@functools.cache
def tagger_alone() -> list[Found]:
    plain, (tokens, labels) = tagger()
    return steps(plain, lambda: outside(plain(tokens, labels), labels))


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_a_loss_outside_from_whole_outputs(plan: str, devices: int) -> None:
    """Every rank computes the same loss from the same whole: its gradient counts once."""
    module, args = tagger()
    on = made(module, args, plan, devices, outputs=["logits", "hidden_states.*"])

    def rank(_: int, comm: Any) -> list[Found]:
        model = on(comm)
        return steps(model, lambda: outside(model(*args), args[1]))

    compare(tagger_alone(), run_local(devices, rank), plan)


@pytest.mark.parametrize(("plan", "devices"), [("data", 2), ("data", 4)])
def test_a_loss_outside_from_local_outputs(plan: str, devices: int) -> None:
    """Each rank's loss is of its rows, weighted by how many they are; ranks of the same rows count once."""
    module, args = tagger()
    on = made(module, args, plan, devices, outputs={"logits": "local", "hidden_states": "local"})

    def rank(_: int, comm: Any) -> tuple[list[Found], slice, list[Tensor]]:
        model = on(comm)
        rows = model.output_regions()["logits"].slices[0]
        assert model.output_regions()["hidden_states.1"].slices[0] == rows
        labels = args[1][rows]
        losses = []

        def forward() -> Tensor:
            out = model(*args)
            assert out["logits"].shape == (*labels.shape, 37)
            losses.append(outside(out, labels, len(labels) / 6))
            return losses[-1]

        return steps(model, forward), rows, losses

    ranks = run_local(devices, rank)
    for step, expected in enumerate(tagger_alone()):
        total = {rows.start: losses[step] for _, rows, losses in ranks}
        loss = torch.stack(list(total.values())).sum()
        for actual, _, _ in ranks:
            assert_same(actual[step] | {"loss": loss}, expected, f"{plan}, step {step}")


@pytest.mark.parametrize(("plan", "devices"), PLANS)
def test_parts_of_outputs(plan: str, devices: int) -> None:
    check_parts(plan, devices)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_plans_with_outputs_in_parts(seed: int) -> None:
    module, args = tagger()
    graph = Graph(capture(module, args).graph_text)
    devices = 2 + seed % 3
    check_parts(Plan.random(graph, devices, seed), devices)


def check_parts(plan: PlanLike, devices: int) -> None:
    """The loss inside, and one of parts of two outputs outside. Where several ranks have one part,
    split or not, each computes the same of it."""
    module, args = tagger()
    weights = {"logits": torch.randn(6, 8, 37).double(), "hidden_states.1": torch.randn(6, 8, 32).double()}
    plain = copy.deepcopy(module)
    out = plain(*args)
    wholes = {"logits": out["logits"], "hidden_states.1": out["hidden_states"][1]}
    (out["loss"] + sum((wholes[name] * weight).sum() for name, weight in weights.items())).backward()
    expected = gradients(plain)
    on = made(module, args, plan, devices, outputs=dict.fromkeys(weights, "local"))

    def rank(_: int, comm: Any) -> tuple[Found, dict[str, OutputPart | None], dict[str, Tensor]]:
        model = on(comm)
        ours, parts = model(*args), model.output_regions()
        outputs = {"logits": ours["logits"], "hidden_states.1": ours["hidden_states"][1]}
        loss = ours["loss"]
        for name, weight in weights.items():
            part = parts[name]
            if part is not None:
                loss = loss + (outputs[name] * part.of(weight)).sum()
        loss.backward()
        return gradients(model), parts, outputs

    covered = {name: torch.zeros(weight.shape) for name, weight in weights.items()}
    for grads, parts, outputs in run_local(devices, rank):
        assert_same(grads, expected, f"{plan!r}")
        for name, whole in wholes.items():
            part = parts[name]
            assert (part is None) == (outputs[name] is None)
            if part is not None:
                assert torch.allclose(outputs[name], part.of(whole), rtol=1e-10, atol=1e-12)
                covered[name][part.slices] = 1
    assert all(seen.all() for seen in covered.values())


def test_a_step_of_training_makes_only_the_loss_whole() -> None:
    module, args = tagger()
    plain = copy.deepcopy(module)
    loss = plain(*args)["loss"]
    loss.backward()
    expected = gradients(plain) | {"loss": loss.detach()}
    on = made(module, args, "data", 2, outputs="all")

    def rank(_: int, comm: Any) -> tuple[Found, list[str], list[str]]:
        model = on(comm)
        with torch.no_grad():
            model(*args)
        asked = [kind for kind, _, _ in model.issued]
        loss = model.train_step(args)
        return gradients(model) | {"loss": loss}, asked, [kind for kind, _, _ in model.issued]

    for actual, asked, stepped in run_local(2, rank):
        assert_same(actual, expected)
        assert asked.count("all_gather") == 4
        assert "all_gather" not in stepped


# ---- a GAN --------------------------------------------------------------------------------------


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.out = nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 16)

    def forward(self, z: Tensor) -> Tensor:
        return torch.tanh(self.out(F.leaky_relu(self.norm(self.up(z)), 0.2)))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.leaky_relu(self.up(x), 0.2))


def gan() -> tuple[nn.Module, nn.Module, list[tuple[Tensor, Tensor]]]:
    torch.manual_seed(0)
    batches = [(torch.randn(6, 16).double(), torch.randn(6, 8).double()) for _ in range(3)]
    return Generator().double(), Discriminator().double(), batches


def updates(generator: Any, discriminator: Any, batches: list[tuple[Tensor, Tensor]]) -> list[Found]:
    """The usual three: the discriminator on real and on fake samples, the generator through it."""
    adam = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (generator, discriminator)]
    bce = F.binary_cross_entropy_with_logits
    seen = []
    for real, z in batches:
        ones, zeros = torch.ones(6, 1).double(), torch.zeros(6, 1).double()
        discriminator.zero_grad()
        on_real = bce(discriminator(real), ones)
        on_real.backward()
        fake = generator(z)
        on_fake = bce(discriminator(fake.detach()), zeros)
        on_fake.backward()
        seen.append(gradients(discriminator) | {"real": on_real.detach(), "fake": on_fake.detach()})
        adam[1].step()
        generator.zero_grad()
        fooled = bce(discriminator(fake), ones)
        fooled.backward()
        seen.append(gradients(generator) | {"fooled": fooled.detach()})
        adam[0].step()
    return seen


@pytest.mark.parametrize(
    ("plans", "devices"),
    [(("data", "data"), 2), (("data", "megatron"), 2), (("data:2 x megatron:2", "megatron"), 4)],
)
def test_two_parallel_modules_in_a_gan(plans: tuple[str, str], devices: int) -> None:
    generator, discriminator, batches = gan()
    ons = [
        made(
            generator,
            (batches[0][1],),
            plans[0],
            devices,
        ),
        made(discriminator, (batches[0][0],), plans[1], devices),
    ]

    def rank(_: int, comm: Any) -> list[Found]:
        return updates(ons[0](comm), ons[1](comm), batches)

    ranks = run_local(devices, rank)
    compare(updates(generator, discriminator, batches), ranks, f"{plans}")


@pytest.mark.processes
def test_the_example_of_the_page_on_outputs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = next(block for block in blocks if "__main__" in block)
    (tmp_path / "gan.py").write_text(program)
    ended = forked.script(tmp_path / "gan.py", folder=tmp_path)
    assert ended.out.strip() == "equal to the single device", ended.error


# ---- refusals -----------------------------------------------------------------------------------


class Odd(nn.Module):
    """Returns a parameter, and a part of a fused projection."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.scale = nn.Linear(8, 24), nn.Parameter(torch.ones(8))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        q, k, v = self.qkv(x).view(4, 3, 4, 2).unbind(1)
        attended = F.scaled_dot_product_attention(q[:, :, None], k[:, :, None], v[:, :, None])
        return {"scale": self.scale, "y": attended.flatten(1) * self.scale, "qkv": self.qkv(x)}


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(sw.ShardwrightError) as caught:
        action()
    assert caught.value.why and caught.value.fix
    return str(caught.value).splitlines()[0]


@pytest.mark.slow
def test_outputs_that_are_not_there() -> None:
    module, args = tagger()
    for asked, expected in [
        ("logit", "error[SW0730]: the model has no output `logit`"),
        (["logits", "hidden_states.7"], "error[SW0730]: the model has no output `hidden_states.7`"),
        ({"logits": "half"}, "error[SW0732]: outputs={'logits': 'half'} is unknown"),
        (None, "error[SW0732]: outputs=None is unknown"),
        ([], "error[SW0732]: outputs=[] is unknown"),
    ]:
        assert refusal(lambda asked=asked: compile_model(module, args, outputs=asked)) == expected


def test_a_parameter_that_is_returned() -> None:
    module, x = Odd().double(), torch.randn(4, 8).double()
    message = refusal(lambda: compile_model(module, (x,), outputs=["scale"]))
    assert message == "error[SW0417]: the model returns the parameter `scale` itself"
    compile_model(module, (x,), outputs=["y"])


def test_programs_that_do_not_fit_the_call() -> None:
    module, x = Generator().double(), torch.randn(4, 8).double()
    made_global = compile_model(module, (x,))[0]
    comm = LocalComm(LocalWorld(1), 0)
    model = ParallelModule(
        load_program(made_global.files), comm, sources(module, made_global.captured), made_global.captured
    )
    assert refusal(lambda: model(x.requires_grad_())) == "error[SW0718]: input z requires a gradient"
    local = compile_model(module, (x,), inputs="local")[0]
    assert (
        refusal(lambda: ParallelModule(load_program(local.files), comm, sources(module, local.captured)))
        == 'error[SW0731]: the program is for inputs="local", not "global"'
    )


def test_a_part_that_is_no_slice() -> None:
    part = OutputPart([[4], [3, 4, 2]], ((0, 4), (0, 3), (0, 2), (0, 2)))
    whole = torch.arange(4 * 24).view(4, 24)
    assert torch.equal(part.of(whole), whole.view(4, 3, 4, 2)[:, :, :2].reshape(4, 12))
    assert refusal(lambda: part.slices) == "error[SW0733]: a part of an output is no slice"
    inner = OutputPart([[4], [3, 4, 2]], ((0, 4), (1, 2), (2, 4), (0, 2)))
    assert torch.equal(inner.of(whole), whole[inner.slices])
    one = OutputPart([[], [6]], ((3, 6),))
    assert one.slices == (slice(0, 1), slice(3, 6))
