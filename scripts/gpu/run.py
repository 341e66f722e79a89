"""What a GPU shows of Shardwright: each part is a process with a limit of its own.

`gpu.json` in the folder of `--out` is written after each part, `gpu.md` at the end. `--dry` runs all on the
CPU, on tiny models, without a word on time. `--planted` plants the fault that each part has to find.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import report

HERE = Path(__file__).resolve().parent
# In the order in which they run; the seconds that each may take.
PARTS = {
    "environment": 40,
    "start": 90,
    "nccl": 60,
    "equal": 200,
    "syncs": 60,
    "host": 60,
    "speed": 120,
    "rank": 120,
    "roofline": 60,
    "offload": 45,
}


def main() -> int:
    asked = _arguments()
    if asked.part:
        return _one(asked)
    # Parts are in sessions of their own, and would outlive who started them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = Path(asked.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for name in asked.only.split(",") if asked.only else PARTS:
        started = time.monotonic()
        results[name] = _part(name, out, asked)
        results[name]["seconds"] = round(time.monotonic() - started, 1)
        (out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
        print(report.section(name, results[name]), flush=True)
    (out / "gpu.md").write_text(report.page(results))
    failed = [name for name, part in results.items() if part["failures"]]
    if asked.planted:
        missed = [name for name in results if name not in failed]
        print(f"planted faults that were not found: {', '.join(missed) or 'none'}")
        return int(bool(missed))
    print(f"parts that failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="target/gpu", help="the folder of gpu.json and gpu.md")
    parser.add_argument("--only", default="", help="names of parts, with commas: " + ", ".join(PARTS))
    parser.add_argument("--dry", action="store_true", help="on the CPU, small")
    parser.add_argument("--planted", action="store_true", help="each part must find its planted fault")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def _part(name: str, out: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """What a part wrote, also when it was ended, with what went wrong of the process."""
    kept = out / f"{name}.json"
    kept.unlink(missing_ok=True)
    flags = [flag for flag in ("dry", "planted") if getattr(asked, flag)]
    command = [sys.executable, str(HERE / "run.py"), "--part", name, "--out", str(out)]
    command += [f"--{flag}" for flag in flags]
    log = out / f"{name}.log"
    # Without a GPU the limit is only for what hangs.
    code, why = _ended(command, log, 600 if asked.dry else PARTS[name])
    results = json.loads(kept.read_text()) if kept.exists() else {"tables": [], "failures": []}
    if code:
        results["failures"].append(why or f"ended with {code}: {_last_lines(log)}")
    return results


def _ended(command: list[str], log: Path, most: int) -> tuple[int, str]:
    """With which code, and why if it was ended."""
    with log.open("w") as lines:
        process = subprocess.Popen(
            command, stdout=lines, stderr=subprocess.STDOUT, start_new_session=True, env=_environment()
        )
        try:
            return process.wait(most), ""
        except subprocess.TimeoutExpired:
            return 1, f"not done after {most} s"
        finally:
            _end(process)


def _environment() -> dict[str, str]:
    """The package that was asked for, or else that of this checkout, where it was built."""
    given, package = os.environ.get("PYTHONPATH", ""), HERE.parent.parent / "python"
    built = any(package.glob("shardwright/_core*.so"))
    path = os.pathsep.join([*filter(None, [given]), *([str(package)] if built else [])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """With what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def _last_lines(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").strip().splitlines()[-6:])


def _one(asked: argparse.Namespace) -> int:
    import importlib

    from finding import Finding, Setting

    setting = Setting(dry=asked.dry, planted=asked.planted)
    finding = Finding(Path(asked.out) / f"{asked.part}.json")
    importlib.import_module(f"parts.{asked.part}").run(setting, finding)
    finding.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
