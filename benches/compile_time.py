"""How long a compilation takes, phase by phase, and what memory it needs.

Every measurement is a fresh process. What follows capture runs without torch: the extension alone is
loaded, so that its memory can be seen. Run as a script, this file is such a process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tables import Table, size_of, time_of

BATCH = 512
PLANS = {"data:2 x megatron:4": 8, "data:8 x megatron:8": 64, "data:64 x megatron:8": 512}


def bench(quick: bool) -> Table:
    repeats = 1 if quick else 5
    table = Table(
        "compile",
        "Compiling",
        f"Llama-3-8B's shape (32 layers, full size on `meta`, batch {BATCH}, sequence 8,192), one thread."
        f" Medians of {repeats} fresh processes. Memory is what is added to the process's peak: by capture"
        " beyond torch and the module, by the rest beyond an interpreter with the extension and the text.",
        ["", "capture", *(f"{devices} devices" for devices in PLANS.values())],
    )
    return measured(table, ("llama_3_8b", BATCH), PLANS, repeats, min(repeats, 3))


def measured(table: Table, shape: tuple[str, int], plans: dict[str, int], repeats: int, times: int) -> Table:
    """A shape of `shapes` with its batch, captured so many times, and its plans by numbers of devices."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "graph.txt"
        captures = [child("capture", str(text), shape[0], str(shape[1])) for _ in range(times)]
        measurements = {
            name: [child("compile", str(text), name, str(devices)) for _ in range(repeats)]
            for name, devices in plans.items()
        }
    capture = {key: statistics.median(one[key] for one in captures) for key in captures[0]}
    compiled = {
        name: {key: statistics.median(one[key] for one in each) for key in each[0]}
        for name, each in measurements.items()
    }
    table.add("plan", "", *(f"`{name}`" for name in plans))
    table.add("torch.export", time_of(capture["export"]), *("" for _ in plans))
    table.add("capture, the rest", time_of(capture["capture"] - capture["export"]), *("" for _ in plans))
    phases = [key for key in compiled[next(iter(plans))] if key not in ("all", "memory", "files")]
    for phase in phases:
        table.add(phase, "", *(time_of(compiled[name][phase]) for name in plans))
    table.add(
        "**in all**",
        time_of(capture["capture"]),
        *(f"**{time_of(compiled[name]['all'])}**" for name in plans),
    )
    table.add("memory", size_of(capture["memory"]), *(size_of(compiled[name]["memory"]) for name in plans))
    table.add("files", "", *(size_of(compiled[name]["files"]) for name in plans))
    table.notes.append(f"The graph's text has {capture['text'] / 1024:.0f} KiB.")
    table.values = {"capture": capture, **compiled}
    return table


def child(*args: str, script: str = __file__, timeout: float = 600) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, script, *args], env=env, capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode == -signal.SIGKILL:
        raise MemoryError(f"{args}: there was not enough memory")
    if done.returncode:
        raise RuntimeError(f"{args}: {done.returncode} {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _capture(path: str, shape: str, batch: str, *sizes: str) -> dict[str, float]:
    import shapes
    import torch
    from measure import rss, rss_peak

    from shardwright.capture import capture

    torch.set_num_threads(1)
    model, args = getattr(shapes, shape)(*map(int, sizes), batch=int(batch))
    whole = torch.export.export
    taken = [0.0]

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return whole(*args, **kwargs)
        finally:
            taken[0] += time.perf_counter() - start

    torch.export.export = timed
    before = rss()
    start = time.perf_counter()
    captured = capture(model, args)
    end = time.perf_counter()
    memory = rss_peak() - before
    assert "embedding" in captured.graph_text
    Path(path).write_text(captured.graph_text)
    return {
        "capture": end - start,
        "export": taken[0],
        "memory": memory,
        "text": len(captured.graph_text),
    }


def _compile(path: str, name: str, devices: str) -> dict[str, float]:
    core = extension()
    text = Path(path).read_text()
    before = rss_of("VmRSS")
    start = time.perf_counter()
    graph = core.Graph(text)
    parsed = time.perf_counter()
    plan = core.Plan.named(graph, name, int(devices))
    planned = time.perf_counter()
    compiled = core.compile(plan, "loss")
    end = time.perf_counter()
    memory = rss_of("VmHWM") - before
    assert "torch" not in sys.modules
    assert compiled.proof and compiled.files and not compiled.unknown, compiled.unknown
    return {
        "parse and analyse": parsed - start,
        "plan": planned - parsed,
        **dict(compiled.phases),
        "all": end - start,
        "memory": memory,
        "files": sum(len(text) for text in compiled.files.values()),
    }


def extension() -> Any:
    """`shardwright._core` alone: importing the package would import torch."""
    package = importlib.util.find_spec("shardwright")
    assert package is not None and package.origin is not None
    file = next(Path(package.origin).parent.glob("_core*.so"))
    spec = importlib.util.spec_from_file_location("shardwright._core", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rss_of(field: str) -> int:
    """As in `measure`, which imports torch."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    print(json.dumps(_capture(*rest) if what == "capture" else _compile(*rest)))
