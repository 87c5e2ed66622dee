"""The command that trains one model: train."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import HeldBack, print_json, say
from moescale.options.experiments import TrainOptions
from moescale.units import format_count, format_flops, format_seconds


@app.command(
    epilog=examples(
        "moescale train examples/run.toml --dry-run",
        "moescale train run.toml -o runs.csv",
        "moescale train run.toml --no-resume",
    )
)
@flat()
def train(wanted: TrainOptions, json_: Json = False) -> None:
    """Train one model and write its row of a run table for `fit`."""
    from moescale.experiments.run_table import add_rows, check_run_table
    from moescale.experiments.settings import estimate, read_settings

    settings, output = read_settings(wanted.run), wanted.output
    if wanted.dry_run:
        expected = estimate(settings)
        if json_:
            print_json({"settings": settings.to_dict(), "settings_sha256": settings.sha256, "estimate": expected})
        else:
            _show_settings(settings.to_dict(), expected)
        return
    from moescale.experiments.run import torchrun
    from moescale.experiments.run import train as run_train

    if output is not None:
        check_run_table(output)
    if settings.parallel.processes > 1 and "WORLD_SIZE" not in os.environ:
        more = ["--json"] * json_ + ["--no-resume"] * (not wanted.resume)
        torchrun(wanted.run, settings.parallel.processes, [*more, *(["-o", str(output)] if output is not None else [])])
    rows = run_train(settings, resume=wanted.resume, report=_print_event)
    if not rows:  # another process of torchrun's group prints them
        return
    held_back = HeldBack()
    if output is not None:
        with held_back:
            add_rows(output, rows)
    if json_:
        print_json({"rows": rows})
    else:
        _show_rows(rows)
        held = settings.output + "/result.json" if output is None or held_back.errors else output
        print(f"Weights: {settings.output}/model. Rows: {held}.")
    held_back.tell()


def _show_settings(settings: Mapping[str, Any], expected: Mapping[str, float]) -> None:
    import tomli_w

    print(tomli_w.dumps(settings))
    for key, value in expected.items():
        print(f"# {key:15} {format_flops(value) if key == 'training_flops' else format_count(value)}")


def _show_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        flag = f"  DIVERGED: {row['diverged_why']}" if row["diverged"] else ""
        loss = "none" if row["loss"] is None else f"{row['loss']:.4f}"
        print(
            f"{row['name']}: loss {loss} nats per token after {format_count(row['tokens'])} tokens, "
            f"{format_count(row['n_params_dense'])} dense-equivalent parameters, {row['n_experts']} experts, "
            f"{format_count(row['tokens_per_s'])} tokens/s{flag}"
        )


def _print_event(event: Mapping[str, Any]) -> None:
    """One line on standard error."""
    at = f"step {event.get('step', 0)}"
    if event["event"] == "step":
        steps = event["steps"]
        left = (steps - event["step"]) * event["seconds"] / event["step"] if event["step"] else math.nan
        say(
            f"{at}/{steps}: loss {event['loss']:.4f}, lr {event['lr']:.3g}, {format_count(event['tokens_per_s'])} tokens/s, "
            f"{format_seconds(left)} left"
        )
        return
    checkpoint = f" {event['checkpoint']}" if event.get("checkpoint") else ""
    loss = "" if event.get("validation_loss") is None else f" loss {event['validation_loss']:.4f}"
    say(f"{at}: {event['event']}{checkpoint}{loss}")
