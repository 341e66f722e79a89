"""Runs of Lightning's trainer, on one device as Lightning has it and on several ranks by our strategy.

`python lightning_runs.py FOLDER RANKS NAME ...` forks so many ranks. Each makes the runs of these names one
after another, and rank 0 writes `FOLDER/NAME-RANKS.json`. With 0 ranks it is Lightning alone.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos import LightningTransformer
from lightning.pytorch.demos import Transformer as DemoTransformer
from lightning.pytorch.demos.boring_classes import BoringModel, RandomDataset
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset
from torchmetrics import SumMetric

from shardwright.errors import ShardwrightError
from shardwright.integrations.lightning import ShardwrightStrategy

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def trainer(
    ranks: int, plan: str | None, strategy: dict[str, Any] | None = None, **options: Any
) -> L.Trainer:
    """Without ranks Lightning's own, on one device."""
    if not ranks:
        return L.Trainer(devices=1, **{**QUIET, **options})
    chosen = ShardwrightStrategy(plan or "data", progress=False, **(strategy or {}))
    return L.Trainer(strategy=chosen, devices=ranks, **{**QUIET, **options})


def rows(count: int, seed: int = 0) -> TensorDataset:
    made = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(count, 8, generator=made), torch.randint(0, 4, (count,), generator=made))


class Everything(L.LightningModule):
    """Two training loaders, two validation loaders, groups, a schedule, values that are logged."""

    def __init__(self, width: int = 16, accuracy: bool = True):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("shift", torch.full((4,), 0.1))
        self.losses: list[float] = []

    def forward(self, x):
        return self.head(self.model(x)) * self.scale + self.shift

    def training_step(self, batch, batch_idx):
        (x, y), (more, others) = batch["a"], batch["b"]
        out = self(torch.cat([x, more]))
        labels = torch.cat([y, others])
        loss = F.cross_entropy(out, labels)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        if self.hparams.accuracy:
            self.log("accuracy", (out.argmax(-1) == labels).float().mean(), on_epoch=True, on_step=False)
        return {"loss": loss, "out": out}

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("val_loss", loss)
        self.log_dict({"val_twice": 2 * loss, "number": 3.0})
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.log("test_loss", F.cross_entropy(self(x), y), batch_size=len(x))

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(-1)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self):
        matrices = [p for p in self.parameters() if p.dim() > 1]
        vectors = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": vectors, "weight_decay": 0.0}, {"params": matrices, "weight_decay": 0.1}]
        optimizer = torch.optim.AdamW(groups, lr=1e-2)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 3e-2, self.trainer.estimated_stepping_batches
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loaders(size: int = 8, shuffle: bool = True) -> dict[str, DataLoader]:
    return {
        "a": DataLoader(rows(44), size, shuffle=shuffle),
        "b": DataLoader(rows(60, 1), size, shuffle=shuffle, generator=torch.Generator().manual_seed(2)),
    }


def validation(names: int = 2) -> list[DataLoader]:
    return [DataLoader(rows(20, 3 + at), 8) for at in range(names)]


def everything(ranks: int, folder: Path, plan: str, *, accuracy: bool = True, **strategy: Any) -> Any:
    """Fits, checkpoints, validates, tests and predicts."""
    L.seed_everything(0, verbose=False)
    module = Everything(accuracy=accuracy)
    here = folder / f"everything-{ranks}-{plan.replace(':', '')}"
    best = ModelCheckpoint(here, monitor="val_loss/dataloader_idx_0", save_top_k=2, save_last=True)
    made = trainer(
        ranks,
        plan,
        strategy,
        max_epochs=3,
        accumulate_grad_batches=2,
        gradient_clip_val=0.3,
        enable_checkpointing=True,
        callbacks=[best, EarlyStopping("val_loss/dataloader_idx_0", patience=5)],
    )
    made.fit(module, loaders(), validation())
    fitted = numbers(made.callback_metrics)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    tested = made.test(module, DataLoader(rows(20, 7), 8), verbose=False)
    validated = made.validate(dataloaders=validation(1), ckpt_path="best", verbose=False)
    predicted = made.predict(module, DataLoader(rows(20, 8), 8))
    return {
        "losses": module.losses,
        "fitted": fitted,
        "state": {name: value.flatten().tolist() for name, value in state.items()},
        "tested": tested,
        "validated": validated,
        "predicted": [x.tolist() for x in predicted],
        "best": str(best.best_model_path),
        "last": str(best.last_model_path),
        "kept": sorted(path.name for path in here.iterdir()) if here.exists() else [],
    }


def numbers(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


class Plain(L.LightningModule):
    """One loader, and an optimizer that has a state."""

    def __init__(self, how: str = "pure", dtype: str = "float32"):
        super().__init__()
        self.save_hyperparameters()
        torch.manual_seed(1)
        self.model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.GELU())))
        self.head = nn.Linear(8, 4)
        self.total = SumMetric()
        self.losses: list[float] = []
        self.seen: list[int] = []
        self.norms: list[float] = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        out = self.head(self.model(x))
        loss = F.cross_entropy(out, y)
        how = self.hparams.how
        if how == "index" and batch_idx % 2:
            loss = loss * 2
        if how == "keeps":
            self.seen.append(batch_idx)
        if how == "epoch":
            loss = loss * (1 + self.current_epoch)
        self.log("loss", loss)
        if how == "metric":
            self.total(loss.detach())
            self.log("total", self.total, on_step=False, on_epoch=True)
        if how == "more":
            self.log("more", out.mean())
        return loss

    def validation_step(self, batch, batch_idx):
        """A metric counts, which no program does."""
        out = self.head(self.model(batch[0]))
        self.total(F.cross_entropy(out, batch[1]))
        self.log("total", self.total)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def fit(
    ranks: int,
    plan: str,
    module: Any,
    strategy: Any = None,
    epochs: int = 2,
    size: int = 8,
    validates: bool = False,
    **options: Any,
) -> Any:
    L.seed_everything(0, verbose=False)
    made = trainer(ranks, plan, strategy, max_epochs=epochs, **options)
    made.fit(
        module, DataLoader(rows(32), size, shuffle=True), DataLoader(rows(12, 5), 4) if validates else None
    )
    state = {name: value.double().flatten().tolist() for name, value in module.state_dict().items()}
    return {"losses": module.losses, "state": state, "metrics": numbers(made.callback_metrics)}


class Adversaries(L.LightningModule):
    """Two optimizers that its own step steps."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(1)
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch, batch_idx):
        first, second = self.optimizers()
        x, _ = batch
        made = self.generator(x[:, :4])
        one = torch.ones(len(x), 1)
        real = F.binary_cross_entropy_with_logits(self.discriminator(x), one)
        fake = F.binary_cross_entropy_with_logits(self.discriminator(made.detach()), 0 * one)
        second.zero_grad()
        self.manual_backward(real + fake)
        second.step()
        fooled = F.binary_cross_entropy_with_logits(self.discriminator(made), one)
        first.zero_grad()
        self.manual_backward(fooled)
        first.step()
        self.losses += [float(real + fake), float(fooled)]

    def configure_optimizers(self):
        return [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (self.generator, self.discriminator)]


def adversaries(ranks: int, folder: Path, plan: str) -> Any:
    examples = {"generator": (torch.randn(8, 4),), "discriminator": (torch.randn(8, 8),)}
    return fit(ranks, plan, Adversaries(), {"modules": examples})


class Boring(BoringModel):
    """Lightning's own; its data is random, and here the same for each run."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))


def boring(ranks: int, folder: Path, plan: str) -> Any:
    L.seed_everything(0, verbose=False)
    module = Boring()
    made = trainer(
        ranks, plan, max_epochs=1, limit_train_batches=6, limit_val_batches=2, limit_test_batches=2
    )
    batches = DataLoader(RandomDataset(32, 24), 4)
    made.fit(module, batches, batches)
    made.test(module, batches, verbose=False)
    predicted = made.predict(module, DataLoader(RandomDataset(32, 4), 2))
    return {"losses": module.losses, "predicted": [x.tolist() for x in predicted]}


class Words(Dataset):
    """As `WikiText2` of Lightning's demo, without its download."""

    def __init__(self, count: int = 12, length: int = 8, vocabulary: int = 32):
        made = torch.Generator().manual_seed(4)
        self.tokens = torch.randint(0, vocabulary, (count, length + 1), generator=made)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, at):
        return self.tokens[at, :-1], self.tokens[at, 1:]


class Transformer(LightningTransformer):
    def __init__(self):
        super().__init__(vocab_size=32)
        torch.manual_seed(1)
        self.model = DemoTransformer(vocab_size=32, ninp=16, nhead=2, nhid=32, nlayers=2, dropout=0.0)
        self.losses: list[float] = []

    def prepare_data(self):
        """Nothing to download."""

    def train_dataloader(self):
        return DataLoader(Words(), batch_size=4)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.losses.append(float(outputs["loss"]))


def transformer(ranks: int, folder: Path, plan: str) -> Any:
    L.seed_everything(0, verbose=False)
    module = Transformer()
    made = trainer(ranks, plan, max_epochs=2)
    made.fit(module)
    return {"losses": module.losses}


def stops(ranks: int, folder: Path, plan: str) -> Any:
    """Saves after two of four epochs; `resumes` goes on."""
    kept = ModelCheckpoint(folder / f"stops-{ranks}", filename="half", save_top_k=-1)
    module = Plain()
    return fit(
        ranks, plan, module, epochs=2, enable_checkpointing=True, callbacks=[kept], gradient_clip_val=0.3
    )


def resumes(ranks: int, folder: Path, plan: str) -> Any:
    """From each number of ranks that has stopped. Each part of a whole run's losses."""
    losses: dict[str, Any] = {}
    for before in sorted(path.name for path in folder.glob("stops-*") if path.is_dir()):
        module = Plain()
        L.seed_everything(0, verbose=False)
        made = trainer(ranks, plan, max_epochs=4, gradient_clip_val=0.3)
        made.fit(module, DataLoader(rows(32), 8), ckpt_path=folder / before / "half.ckpt")
        losses[before] = module.losses
    return losses


def refused(ranks: int, folder: Path, plan: str) -> Any:
    """By name the code of what is refused."""
    spread = DataLoader(rows(32), 8, sampler=DistributedSampler(rows(32), num_replicas=2, rank=0))

    def spread_rows() -> None:
        trainer(ranks, plan, max_epochs=1).fit(Plain(), spread)

    cases: dict[str, Callable[[], Any]] = {
        "16-true": lambda: trainer(ranks, plan, precision="16-true"),
        "sampler": spread_rows,
        "no child": lambda: fit(ranks, plan, Plain(), {"modules": ["body"]}),
        "by hand": lambda: fit(ranks, plan, Adversaries()),
        "an option": lambda: trainer(ranks, plan, {"inputs": "local"}),
        "stages, not pure": lambda: fit(ranks, f"stages:{ranks}", Plain("epoch")),
        "stages, more": lambda: fit(ranks, f"stages:{ranks}", Plain("more")),
        "iterator": lambda: trainer(ranks, plan, max_epochs=1).fit(Plain(), iter([rows(8)[:]])),
    }
    codes = {}
    for name, case in cases.items():
        try:
            case()
            codes[name] = "taken"
        except ShardwrightError as error:
            codes[name] = error.code
    return codes


Run = Callable[[int, Path], Any]
RUNS: dict[str, Run] = {
    **{
        f"everything {plan}": lambda ranks, folder, plan=plan: everything(
            ranks, folder, plan, accuracy="stages" not in plan
        )
        for plan in ("data", "zero3", "megatron", "stages:2")
    },
    "accumulated": lambda r, f: fit(
        r, f"stages:{r}", Plain(), accumulate_grad_batches=3, gradient_clip_val=0.5
    ),
    "cut": lambda r, f: fit(r, f"stages:{r}", Plain(), {"micro_batches": 4} if r else None),
    "by value": lambda r, f: fit(
        r, "zero3", Plain(), gradient_clip_val=0.01, gradient_clip_algorithm="value"
    ),
    "adagrad": lambda r, f: fit(r, "zero3", Adagrad()),
    **{
        precision: lambda r, f, p=precision: fit(r, "zero3", Plain(), precision=p)
        for precision in ("64-true", "bf16-true", "bf16-mixed")
    },
    **{
        how: lambda r, f, how=how: fit(r, "zero3", Plain(how))
        for how in ("index", "keeps", "epoch", "more", "metric")
    },
    "counts": lambda r, f: fit(r, f"stages:{r}", Plain(), validates=True),
    "named": lambda r, f: fit(r, "zero3", Plain(), {"modules": ["model", "head"]}),
    "adversaries": lambda r, f: adversaries(r, f, "zero3"),
    "boring": lambda r, f: boring(r, f, "data"),
    "transformer": lambda r, f: transformer(r, f, "megatron"),
    "stops": lambda r, f: stops(r, f, "zero3"),
    "resumes": lambda r, f: resumes(r, f, "zero3"),
    "refused": lambda r, f: refused(r, f, "data"),
}


class Adagrad(Plain):
    """Its optimizer has a state from the start."""

    def configure_optimizers(self):
        return torch.optim.Adagrad(self.parameters(), lr=1e-2, initial_accumulator_value=0.1)


def rank_main(folder: Path, ranks: int, names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for name in names:
        try:
            outcome = RUNS[name](ranks, folder)
        except BaseException:
            outcome = {"failed": traceback.format_exc()}
        if os.environ.get("RANK", "0") == "0":
            (folder / f"{name}-{ranks}.json").write_text(json.dumps(outcome))
        if ranks and "failed" in outcome:
            print(outcome["failed"], file=sys.stderr, flush=True)
            os._exit(1)


def main() -> None:
    folder, ranks, *names = sys.argv[1:]
    count = int(ranks)
    if not count:
        return rank_main(Path(folder), 0, names)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    children = []
    for rank in range(count):
        pid = os.fork()
        if not pid:
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=ranks,
                LOCAL_WORLD_SIZE=ranks,
                GROUP_RANK="0",
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(store.port),
                TORCHELASTIC_RUN_ID="lightning",
                TORCHELASTIC_USE_AGENT_STORE="True",
            )
            rank_main(Path(folder), count, names)
            sys.stdout.flush()
            os._exit(0)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
