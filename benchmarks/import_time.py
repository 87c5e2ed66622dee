"""How long a cold `import moescale` takes, best of five fresh interpreters, and which heavy modules it loads."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

HEAVY = (
    "scipy",
    "pandas",
    "polars",
    "pyarrow",
    "matplotlib",
    "torch",
    "transformers",
    "fastapi",
    "aiconfigurator_core",
    "typer",
    "rich",
    "pydantic",
    "narwhals",
    "numpy",
)


def best_seconds(code: str, repeats: int) -> float:
    """The shortest wall-clock time, in seconds, of a fresh interpreter that runs `code`."""
    seconds: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def heavy_modules(module: str) -> list[str]:
    """The libraries of `HEAVY` that importing `module` loads."""
    code = f"import sys, json, {module}; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    return json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Print one line a module, with the bare interpreter for comparison; or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", default=["moescale"], help="modules to import (default: moescale)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    options = parser.parse_args()
    bare_s = best_seconds("pass", options.repeats)
    seconds = {module: best_seconds(f"import {module}", options.repeats) for module in options.modules}
    loaded = {module: heavy_modules(module) for module in options.modules}
    if options.json:
        rows = [{"module": name, "seconds": seconds[name], "heavy_modules": loaded[name]} for name in seconds]
        print(json.dumps({"bare_interpreter_seconds": bare_s, "imports": rows}, indent=2))
        return
    print(f"best of {options.repeats} cold starts; bare interpreter {bare_s:.3f} s")
    for name, best_s in seconds.items():
        print(f"import {name:<20} {best_s:.3f} s  heavy: {', '.join(loaded[name]) or 'none'}")


if __name__ == "__main__":
    main()
