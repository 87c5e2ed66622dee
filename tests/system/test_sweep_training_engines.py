"""Sweeps on other engines, whose logs a stand-in writes, and one of real models."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from moescale.errors import InputError
from moescale.experiments.sweep import drive, read_log
from moescale.experiments.sweep_file import expand, read_sweep
from moescale.runs.table import read_runs
from stub_training import document, made, step_of

pytest.importorskip("submitit", reason="needs submitit: pip install '.[train]'")

# What torchtitan and Megatron-LM print of a run, with a training loss of 6 - step / 10 and a validation loss of 5 at its end.
TORCHRUN = """#!/usr/bin/env bash
echo "$@" >> "$ARGUMENTS"
[[ -e "$FAILS" ]] && { rm "$FAILS"; echo "a node is gone"; exit 1; }
for step in 1 10 20; do
  loss=$(awk "BEGIN { print 6 - $step / 10 }")
  printf '[titan] \\033[31mstep: %2d  \\033[32mloss: %8.5f  \\033[38mgrad_norm: 1.0  memory: 1.00GiB(1.0%%)  tps: 9\\n' $step $loss
  printf ' [date] iteration %8d/      20 | consumed samples: 9 | learning rate: 1.0E-04 | lm loss: %.6fE+00 | loss scale: 1.0 |\\n' $step $loss
done
[[ -n "$VALIDATES" ]] && printf ' validation loss at iteration 20 | lm loss value: 5.000000E+00 | lm loss PPL: 148.4 |\\n'
[[ -n "$VALIDATES" ]] && printf '[titan] validate step: 20  loss:  5.0000  memory: 1.00GiB\\n'
exit 0
"""
TRAINING = {"batch_tokens": 262_144, "sequence_tokens": 2048}
GRID = {"shapes": [[768, 12]], "experts": [1, 4], "tokens": [20 * 262_144]}
EXECUTE = {"gpu": "h100-sxm", "gpus": 8}


@pytest.fixture
def torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a torchrun that prints logs; ARGUMENTS are its."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "torchrun").write_text(TORCHRUN)
    (folder / "torchrun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    settings = {
        "ARGUMENTS": tmp_path / "arguments", "FAILS": tmp_path / "fails", "VALIDATES": "", "MEGATRON": "/megatron",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


@pytest.mark.parametrize("engine", ["torchtitan", "megatron"])
def test_a_launch_is_started_and_its_log_is_a_row(engine: str, torchrun: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = made(torchrun, engine=engine, execute=EXECUTE, grid=GRID, training=TRAINING)
    (torchrun / "fails").touch()
    done = drive(sweep, poll_s=0.02)
    assert (done.finished, done.failed) == (2, ())  # the first start failed, and was made again
    started = (torchrun / "arguments").read_text().splitlines()
    assert len(started) == 3
    assert ("torchtitan.train" if engine == "torchtitan" else "/megatron/pretrain_gpt.py") in started[0]
    rows = [json.loads((run.output / "result.json").read_text())["rows"][0] for run in sweep.runs]
    for run, row in zip(sweep.runs, rows, strict=True):
        assert (row["name"], row["engine"], row["loss_of"]) == (run.name, engine, "train")
        assert row["loss"] == pytest.approx((5.9 + 5 + 4) / 3)
        assert (row["tokens"], row["settings_sha256"]) == (20 * 262_144, run.settings.sha256)
    table = read_runs(sweep.table)
    assert sorted(table.experts) == [1.0, 4.0]
    assert sorted(table.n_params) == sorted(run.n_params_dense for run in sweep.runs)
    assert drive(sweep).found == 2  # and nothing is started again
    # A validation loss of the last step is the loss; a log that ends early is no row.
    log = sweep.runs[0].beside("log")
    lines = log.read_text().splitlines()
    end = " validation loss at iteration 20 | lm loss value: 5.0E+00 |\n[titan] validate step: 20  loss:  5.0000  x\n"
    log.write_text("\n".join([*lines, end]))
    row = read_log(sweep.runs[0], engine) or {}
    assert (row["loss"], row["loss_of"]) == (5.0, "validation")
    log.write_text("\n".join(line for line in lines if "20" not in line and "a node" not in line))
    assert read_log(sweep.runs[0], engine) is None
    log.write_text("\n".join(lines).replace("4.000000", "nan").replace("4.00000", "nan"))
    row = read_log(sweep.runs[0], engine) or {}
    assert (row["loss"], row["diverged"]) == (None, True)


def test_settings_that_a_launch_does_not_take_are_refused(torchrun: Path) -> None:
    training = {**TRAINING, "weight_decay": 0.5}
    with pytest.raises(InputError, match=r"weight_decay is 0\.5, and the launch for megatron has 0\.1"):
        drive(made(torchrun, engine="megatron", execute=EXECUTE, grid=GRID, training=training))
    with pytest.raises(InputError, match="gpu or gpus is missing"):
        expand(document(engine="torchtitan"))
    (torchrun / "sweep.toml").write_text('engine = "torchtian"\n[grid]\nn_params = "1M"\ntokens = "1M"\n')
    with pytest.raises(InputError, match="unknown engine 'torchtian'; nearest: torchtitan"):
        read_sweep(torchrun / "sweep.toml")


@pytest.mark.engine
@pytest.mark.filterwarnings("default")
def test_a_real_sweep_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    from moescale.experiments.pack import pack

    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(" ".join(str((number * 7919 + i * i) % 997) for i in range(2000)))
    pack([str(text)], str(tmp_path / "corpus"), tokenizer="bytes", validation=0.1)
    tables: dict[str, Any] = {
        "data": {"corpus": str(tmp_path / "corpus")},
        "model": {"head_dim": 16},
        "grid": {"shapes": [[32, 2]], "experts": [1, 4], "tokens": ["8K"]},
        "training": {"sequence_tokens": 64, "batch_tokens": 512, "micro_batch_tokens": 512, "validation_tokens": "2K",
                     "checkpoint_every_steps": 4},
    }  # fmt: skip
    undisturbed, disturbed = (made(folder, **tables) for folder in (tmp_path / "a", tmp_path / "b"))
    drive(undisturbed, jobs=2)
    victim = disturbed.runs[1]
    killed: list[int] = []

    def kill_once() -> None:
        """The training process of the second run, once it is past its first checkpoint."""
        while step_of(victim.output) < 4 or not list((victim.output / "checkpoints").glob("step-*")):
            time.sleep(0.01)
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"moescale" in words and os.fsencode(victim.beside("toml").absolute()) in words:
                    killed.append(int(entry.name))
                    os.kill(killed[-1], signal.SIGKILL)

    said: list[str] = []
    killer = threading.Thread(target=kill_once, daemon=True)
    killer.start()
    done = drive(disturbed, say=said.append, poll_s=0.02)
    killer.join(60)
    assert killed
    assert (done.finished, done.failed) == (2, ())
    assert f"{victim.name}: was killed by signal 9; starting it again from its checkpoint" in said
    columns = ("name", "tokens", "loss", "n_params_total")
    rows = [json.loads((run.output / "result.json").read_text())["rows"][0] for run in undisturbed.runs]
    again = [json.loads((run.output / "result.json").read_text())["rows"][0] for run in disturbed.runs]
    assert [[row[c] for c in columns] for row in rows] == [[row[c] for c in columns] for row in again]
    table = read_runs(undisturbed.table)
    assert sorted(table.experts) == [1.0, 4.0]
    assert sorted(table.n_params) == sorted(run.n_params_dense for run in undisturbed.runs)
