"""Corpora, training runs, sweeps and measurements, as users state them."""

from __future__ import annotations

from dataclasses import MISSING, dataclass
from pathlib import Path

from moescale.bounds import TOKENS
from moescale.options.fields import MOST_SECONDS, MOST_SEED, Group, flag, path, quantity, seconds, text


@dataclass(frozen=True, kw_only=True)
class PackOptions(Group):
    """What a corpus is made of and where it goes, or a corpus to show."""

    sources: list[str] | None = text(
        "Text files, folders or hf:NAME; rows of jsonl, json, csv or parquet are documents.", name="SOURCE.."
    )
    output: Path | None = path("Folder of the corpus; an interrupted pack starts over.", name="-o")
    tokenizer: str | None = text("A tokenizer.json, or bytes (one token per byte).", metavar="PATH")
    eos: str | None = text("End-of-document token, if the tokenizer has none with a usual name.", metavar="TOKEN")
    validation: float = quantity("Share of documents held out for validation.", 0, 1, default=0.01)
    text_field: str = text("Field or column of the text.", default="text")
    max_tokens: int | None = quantity("Stop after this many training tokens.", 1, TOKENS.most, whole=True)
    seed: int = quantity("Seed of the choice of validation documents.", 0, MOST_SEED, default=0, whole=True)
    show: Path | None = path("Describe a corpus and verify its hashes.")


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Group):
    """One model to train."""

    run: Path = path("RUN.toml with the settings of the run.", name="RUN", default=MISSING)
    output: Path | None = path("Run table to write or extend: .csv or .tsv.", name="-o")
    resume: bool = flag("Resume from the last checkpoint, or start over.", name="--resume/--no-resume", default=True)
    dry_run: bool = flag("Print all settings, sizes and FLOPs without training.")


@dataclass(frozen=True, kw_only=True)
class GridOptions(Group):
    """A grid of models to train."""

    file: Path = path("SWEEP.toml: a RUN.toml with [grid] or [[runs]].", name="SWEEP", default=MISSING)
    dry_run: bool = flag("List the runs with parameters, tokens, FLOPs and time, without training.")
    resume: bool = flag(
        "Resume interrupted runs from their last checkpoint, or start over.", name="--resume/--no-resume", default=True
    )
    jobs: int | None = quantity("Runs in parallel; default: the file's, or 1 (on a cluster: all).", whole=True)
    retries: int = quantity("Restarts of a run whose process died.", 0, 1000, default=1, whole=True)
    max_time: float | None = seconds(
        "Stop after this time, such as 9m; run the same command again to continue.", MOST_SECONDS
    )


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Group):
    """How latencies are measured, and their table."""

    grid: Path = path("PROFILE.toml with the grid.", name="GRID", default=MISSING)
    output: Path = path("Latency table to write or extend: .parquet, .csv or .tsv.", name="-o", default=MISSING)
    python: Path | None = path("Python interpreter of vLLM's environment; default: this one.")
    repeats: int = quantity("Repeats per start of vLLM.", 1, 10_000, default=10, whole=True)
    rounds: int = quantity("Passes over the grid, each with fresh engines.", 1, 100, default=3, whole=True)
    log: Path | None = path("Log file of vLLM.")
