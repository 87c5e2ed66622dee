"""Work for tests/faulty_files.py that needs stand-ins: a profile without a model, a sweep without training."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from moescale.errors import MoescaleError

STUB_VLLM = Path(__file__).with_name("stub_vllm.py")
STUB_TRAINING = Path(__file__).with_name("stub_training.py")
PROFILE = 'gpu = "h100-sxm"\nbatch = [1, 2]\nprompt_tokens = 128\nmodels = [{n_params = "1M"}]\n'
SETTINGS: dict[str, Any] = {
    "data": {"corpus": "corpus"},
    "training": {"sequence_tokens": 64, "batch_tokens": 1024},
    "grid": {"shapes": [[64, 2]], "experts": [1, 4], "tokens": ["1M"]},
    "table": "runs.csv",
    "folder": "sweep",
}


def profile() -> None:
    from moescale.experiments.profile import profile, read_grid

    with told():
        vllm = (sys.executable, "-S", str(STUB_VLLM))
        profile(*read_grid("profile.toml"), "latency.csv", vllm=vllm, rounds=1, repeats=1, log="log.txt")


def sweep() -> None:
    from moescale.experiments.sweep import drive
    from moescale.experiments.sweep_file import expand

    with told():
        done = drive(
            expand(SETTINGS),
            command=lambda file: [sys.executable, "-S", str(STUB_TRAINING), str(file)],
            poll_s=0.01,
            jobs=2,
        )
        if done.failed or done.left:
            raise MoescaleError(f"failed: {done.failed}")


def rows() -> None:
    from moescale.experiments.run import add_rows

    with told():
        for name in ("b", "c"):
            add_rows("runs.csv", [{"name": name, "settings_sha256": "1", "tokens": 1000, "loss": 2.5}])


def corpus() -> None:
    from moescale.experiments.pack import pack

    with told():
        pack(["text.jsonl"], "corpus", tokenizer="bytes", validation=0.2)


def export(format: str = "torchtitan", tokens: float = 7.8e11) -> None:
    from moescale.export.launch import export_model
    from moescale.hardware.gpus import find_gpu
    from moescale.models.rounding import Buildable

    shape = Buildable(
        n_layers=20, d_model=1664, n_heads=13, n_kv_heads=13, head_dim=128, d_ffn=4416, n_experts=16, top_k=2, moe_every=2,
        n_params=6.6e8, n_params_total=3.96e9,
    )  # fmt: skip
    with told():
        export_model(shape, tokens, format, Path("x"), gpu=find_gpu("a100-sxm-40gb"), mfu=0.4)


class told:  # noqa: N801  # a context manager
    """An error as the command line tells it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, MoescaleError):
            sys.stderr.write(f"moescale: {error}\n")
            sys.exit(error.exit_code)


# For signals: the same commands, slow, through the command line.


def slow_profile() -> None:
    from moescale.cli import main
    from moescale.experiments import profile as profiling

    slow = Path("slow_vllm.py").absolute()
    pause = "time.sleep(0.2) if batch == 1 else (open('slow', 'w').close(), time.sleep(60))"
    slow.write_text(STUB_VLLM.read_text().replace('time.sleep(stub.get("pause", 0.0))', pause))
    measure = profiling.profile
    profiling.profile = lambda *given, **named: measure(*given, **{**named, "vllm": (sys.executable, "-S", str(slow))})
    Path("profile.toml").write_text(PROFILE)
    main(["profile", "profile.toml", "-o", "latency.csv"])


def slow_sweep() -> None:
    import tomli_w

    from moescale.cli import main
    from moescale.experiments import sweep as driver

    Path("sweep.toml").write_text(tomli_w.dumps(SETTINGS))
    Path("sweep").mkdir()
    Path("sweep/stub.json").write_text('{"*": {"sleep_s": 1.0}}')
    driver.check_libraries = lambda: None
    driver.train_command = lambda run_file, resume=True: [sys.executable, "-S", str(STUB_TRAINING), str(run_file)]
    main(["sweep", "sweep.toml"])


def slow_pack() -> None:
    import time

    from moescale.cli import main
    from moescale.experiments import pack as data

    class SlowWriter(data.SplitWriter):
        def finish(self) -> None:
            super().finish()
            time.sleep(60)

    data.SplitWriter = SlowWriter
    main(["pack", "text.jsonl", "--tokenizer", "bytes", "--validation", "0.2", "-o", "corpus"])


def published() -> None:
    """What `reproduce -o` writes, with two of its figures."""
    from moescale.options.law import PAPER_LAW, ChosenLaw
    from moescale.options.reproduction import ReproductionOptions
    from moescale.reproduction import figures as publishing
    from moescale.reproduction.world import world_of
    from moescale.views.figures import SUFFIXES

    publishing.SUFFIXES = SUFFIXES[:1]
    world = world_of(ChosenLaw(law=PAPER_LAW).find_law(), ReproductionOptions(latency="roofline").costs())
    with told():
        publishing.publish(Path("x"), publishing.drawn(["1", "8"], world, (), ()), ())
