"""Which card and which versions, and whether the card is well: the rest is measured beside this."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import time

import torch

from finding import Finding, Setting
from timing import repeated

# Of the card's name: dense bf16 TFLOP/s and TB/s that a card reaches that is well.
WELL = {"H100": (600.0, 2.6), "H200": (600.0, 3.8), "A100": (230.0, 1.2)}
ASKED = "name,driver_version,memory.total,power.limit,clocks.max.sm,clocks.max.memory"


def run(setting: Setting, finding: Finding) -> None:
    table = finding.table("Machine", ["", ""])
    table.row("date", time.strftime("%Y-%m-%d"))
    table.row("Python, platform", f"{platform.python_version()}, {platform.platform()}")
    for package in ("torch", "transformers", "shardwright", "numpy"):
        table.row(package, _version(package))
    if not setting.dry:
        table.row("CUDA, NCCL", f"{torch.version.cuda}, {'.'.join(map(str, torch.cuda.nccl.version()))}")
        properties = torch.cuda.get_device_properties(0)
        table.row(
            "card", f"{properties.name}, {properties.multi_processor_count} SMs, {properties.total_memory} B"
        )
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv,noheader"]
        table.row(ASKED, subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip())
    _doctor(finding)
    _rates(setting, finding)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _doctor(finding: Finding) -> None:
    import sys

    command = [sys.executable, "-m", "shardwright", "doctor"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    finding.values["doctor"] = ended.stdout + ended.stderr
    finding.expect(ended.returncode == 0, f"`shardwright doctor`: {(ended.stdout + ended.stderr)[-300:]}")


def _rates(setting: Setting, finding: Finding) -> None:
    device, size = setting.device, setting.sized(8192, 64)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = 2 * size**3 / repeated(lambda: a @ b, device) / 1e12
    x = torch.empty(setting.sized(2 << 30, 1 << 10), device=device, dtype=torch.uint8)
    y = torch.empty_like(x)
    copy = 2 * x.numel() / repeated(lambda: y.copy_(x), device) / 1e12
    table = finding.table("Rates", ["", "measured"])
    table.row(f"bf16 product of {size} cubed, TFLOP/s", product)
    table.row("copy on the device, TB/s read and written", copy)
    finding.values.update(product=product, copy=copy)
    exact = a.double() @ b.double()
    made = a @ (b * 1.1 if setting.planted else b)
    error = float((made.double() - exact).norm() / exact.norm())
    table.row("error of the product", error)
    finding.expect(error < 1e-2, f"the product is wrong by {error:.2g}")
    if setting.dry:
        return
    for name, (flops, bytes_) in WELL.items():
        if name in torch.cuda.get_device_name():
            finding.expect(product > flops, f"{product:.0f} TFLOP/s: the card is not well")
            finding.expect(copy > bytes_, f"{copy:.2f} TB/s: the card is not well")
