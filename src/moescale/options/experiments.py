"""Corpora, training runs, sweeps and measurements, as users state them."""

from __future__ import annotations

from dataclasses import MISSING, asdict, dataclass
from pathlib import Path

from moescale.options.fields import (
    LEAST,
    MOST_SECONDS,
    MOST_SEED,
    MOST_TOKENS,
    Group,
    flag,
    path,
    quantity,
    seconds,
    text,
)

MOST_VOCABULARY = 2**24  # far beyond what exists


def limit_s(max_time: float | None) -> float | None:
    """The seconds after which work stops; None for ever, which MOST_SECONDS means, too."""
    return max_time if max_time is None or max_time < MOST_SECONDS else None


@dataclass(frozen=True, kw_only=True)
class SourceOptions(Group):
    """What a corpus is made of and where it goes, or a corpus to show."""

    sources: list[str] | None = text(
        "Text: files, quoted globs and folders of json, jsonl, parquet, csv or plain text (also .gz, .zst), or hf:NAME.",
        name="SOURCE..",
    )
    output: Path | None = path("Folder of the corpus; a pack that was killed starts over.", name="-o")
    megatron: list[str] | None = text("Tokens of Megatron-LM: PREFIX.bin and PREFIX.idx; repeatable.", metavar="PREFIX")
    show: Path | None = path("Instead: what a corpus holds, after reading all of it against its hashes.")


@dataclass(frozen=True, kw_only=True)
class PackOptions(Group):
    """How text becomes tokens: the keyword arguments of `experiments.data.pack.pack`."""

    tokenizer: str | None = text("A tokenizer.json, or bytes: a token a byte.", metavar="PATH")
    vocab_size: int | None = quantity("Train a byte-level BPE of this size instead.", 1, MOST_VOCABULARY, whole=True)
    validation: float = quantity("Share of the documents that training never sees.", 0, 1, default=0.01)
    text_field: str = text("Field or column that holds the text; default text.", default="text")
    max_tokens: int | None = quantity("Stop after this many training tokens.", 1, MOST_TOKENS, whole=True)
    eos: str | None = text("Token that ends a document, where the tokenizer has none of a usual name.", metavar="TOKEN")
    exclude: list[str] | None = text(
        "Leave out files whose path, or a part of it, fits; repeatable.", metavar="PATTERN"
    )
    undecodable: str = text(
        "What to do with text that is not UTF-8: error or skip.", default="error", metavar="error|skip"
    )
    seed: int = quantity("Chooses the validation documents.", 0, MOST_SEED, default=0, whole=True)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Group):
    """One model to train."""

    run: Path = path("What to train: RUN.toml (docs/sweep.md lists its keys).", name="RUN", default=MISSING)
    output: Path | None = path("Run table to write or extend: .csv or .tsv.", name="-o")
    resume: bool = flag("Go on from the last checkpoint, or start over.", name="--resume/--no-resume", default=True)
    dry_run: bool = flag("Print the settings with every default, sizes and FLOPs; train nothing.")


@dataclass(frozen=True, kw_only=True)
class GridOptions(Group):
    """A grid of models to train."""

    file: Path = path("What to train: SWEEP.toml, a RUN.toml with a [grid] or [[runs]].", name="SWEEP", default=MISSING)
    dry_run: bool = flag("List the runs with parameters, tokens, FLOPs and time; start nothing.")
    resume: bool = flag(
        "Interrupted runs go on from their last checkpoint, or start anew.", name="--resume/--no-resume", default=True
    )
    jobs: int | None = quantity("Runs at once; default: the file's, or 1 (on a cluster all).", whole=True)
    retries: int = quantity("How often a run whose process died is started again.", 0, 1000, default=1, whole=True)
    max_time: float | None = seconds("Stop after this time, such as 9m; the next call goes on.", MOST_SECONDS)


@dataclass(frozen=True, kw_only=True)
class MeasuredGridOptions(Group):
    """The grid of latencies to measure, in place of a PROFILE.toml."""

    gpu: str | None = text("Name that rows are filed under, as `cost --gpu` will ask for it.")
    config: Path | None = path("Model: Hugging Face config.json, or its folder.")
    n_params: str | None = text("Models instead: dense-equivalent sizes N, such as 85M,450M.", metavar="LIST")
    experts: str | None = text("With --n-params: experts E, such as 1,4,8.", metavar="LIST")
    kv_heads: int | None = quantity("With --n-params: KV heads; default: one a query head.", whole=True)
    batch: str | None = text("Batches; default 1,2,4,8,16,32,64.", metavar="LIST")
    prompt: str | None = text("Prompt lengths in tokens; default 128,512.", metavar="LIST")
    context: str | None = text("Tokens held at decode; default: the prompt lengths.", metavar="LIST")
    gpus: str | None = text("GPU counts (tensor parallel); default 1.", metavar="LIST")
    engine: str | None = text("torch (default) or vllm.")
    dtype: str | None = text("bfloat16 (default), float16 or float32.")

    def stated(self) -> dict[str, object]:
        """What of the grid is stated, by field."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Group):
    """What is done with latencies, and how they are measured."""

    grid: Path | None = path("What to measure: PROFILE.toml; with --setup the folder to make.", name="GRID")
    output: Path | None = path("Latency table to write or extend: .parquet, .csv or .tsv.", name="-o")
    python: Path | None = path("Interpreter of the environment that has the engine; default: this one.")
    device: str | None = text("cpu or cuda; default: cuda where there is one.")
    tolerance: float = quantity("Relative half-width of the median at which repeats stop.", LEAST, 1, default=0.02)
    max_repeats: int = quantity("Most repeats of a point.", 1, 10_000, default=50, whole=True)
    rounds: int = quantity("How often to visit the grid, each time with fresh engines.", 1, 100, default=3, whole=True)
    max_time: float | None = seconds("Stop after this time; the next call goes on.", MOST_SECONDS)
    retry: bool = flag("Measure rows again that say failed.")
    log: Path | None = path("File for what the engine itself prints.")
    show: Path | None = path("Instead: what a latency table covers, and how well it interpolates.")
    against: Path | None = path("With --show: how far another table of the same points agrees.")
    setup: str | None = text("Instead: make the environment of an engine (vllm) in the folder GRID.")
