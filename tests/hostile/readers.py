"""Every reader of outside input with small valid files for it, most of them written by the program itself."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

from hostile.mutations import HOSTILE_NUMBERS, HOSTILE_TEXTS
from moescale.errors import InputError
from reference_data import ROOT

EXAMPLES = ROOT / "examples"

Files = Mapping[str, bytes]
"""A case: the files of a folder by their relative paths."""


@dataclass(frozen=True)
class Reader:
    """`read` reads what lies in a folder and uses what it got a little; it returns False for what it passed over in
    silence, as its contract has it. `names_file`: its refusals name the file."""

    cases: Callable[[], Sequence[Files]]
    read: Callable[[Path, Random], object]
    inputs: int
    names_file: bool = True


def _written(write: Callable[[Path], object]) -> Files:
    """The files that `write` leaves in an empty folder, whose own name they do not hold: cases are the same every time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        found = {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        return {path: content.replace(name.encode(), b"/written") for path, content in found.items()}


def _the_file(folder: Path) -> Path:
    """The one file of a case."""
    (file,) = folder.iterdir()
    return file


def _reads(module: str, function: str) -> Callable[[Path, Random], None]:
    """Reads the file of a case with a function that is loaded when it is asked."""

    def read(folder: Path, rng: Random) -> None:
        getattr(import_module(f"moescale.{module}"), function)(_the_file(folder))

    return read


# Run tables.


@lru_cache(maxsize=1)
def _columns() -> dict[str, Any]:
    return {
        "n_params_dense": [1e8, 2e8, 4e8, 1e8, 2e8, 4e8], "n_experts": [1, 1, 1, 8, 8, 8],
        "tokens": [2e9, 4e9, 8e9, 2e9, 4e9, 8e9], "loss": [3.1, 2.9, 2.7, 3.0, 2.8, 2.6],
        "diverged": [False, False, False, False, False, True], "note": ["a", "b, c", 'd "e"', "", "é", "f"],
    }  # fmt: skip


def _run_tables(suffix: str) -> Sequence[Files]:
    from moescale.runs.table import write_runs

    if suffix == ".jsonl":
        rows = [dict(zip(_columns(), row, strict=True)) for row in zip(*_columns().values(), strict=True)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return [{"runs.jsonl": lines.encode()}, {"runs.json": json.dumps(rows).encode()}]
    whole = _written(lambda folder: write_runs({k: _array(v) for k, v in _columns().items()}, folder / f"runs{suffix}"))
    if suffix != ".csv":
        return [whole]
    return [
        whole,
        {"runs.csv": b"".join((EXAMPLES / "runs.csv").read_bytes().splitlines(keepends=True)[:8])},
        _renamed(whole, "runs"),
    ]


def _array(values: Sequence[Any]) -> Any:
    import numpy as np

    return np.array(values, dtype=object if isinstance(values[0], str) else None)


def _renamed(files: Files, name: str) -> Files:
    (content,) = files.values()
    return {name: content}


def _read_runs(folder: Path, rng: Random) -> None:
    from moescale.runs.table import read_runs

    where = rng.choice((None, None, "tokens / n_params_dense > 2 or note == 'a'", "n_experts <= 8 and loss < 3"))
    runs = read_runs(_the_file(folder), where=where, size_column=rng.choice((None, "n_params_dense")))
    assert len(runs) > 0
    for values in (runs.n_params, runs.tokens, runs.experts, runs.loss):
        assert (values > 0).all()
        assert (values < float("inf")).all()


def _read_frame(folder: Path, rng: Random) -> None:
    """A frame in memory: lists, NumPy, pandas, Polars or Arrow, with columns of any kind."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from moescale.runs.table import read_runs

    columns: dict[Any, Any] = {name: list(values) for name, values in _columns().items()}
    for _ in range(rng.choice((0, 1, 1, 2))):
        name = rng.choice(list(columns))
        kind = rng.randrange(6)
        value: Any = rng.choice(
            (*HOSTILE_NUMBERS, *HOSTILE_TEXTS, None, True, 10**400, -1, [], {}, [1], object, b"\xff", 1j)
        )
        if kind in (0, 3) and not isinstance(columns[name], list):
            continue
        if kind == 0:
            columns[name] = [value, *columns[name][1:]]
        elif kind == 1:
            columns[name] = [value] * 6
        elif kind == 2:
            del columns[name]
        elif kind == 3:
            columns[name] = columns[name][: rng.randrange(6)]
        elif kind == 4:
            columns[rng.choice((*HOSTILE_TEXTS, 1, None, ("a", "b")))] = columns.pop(name)
        else:
            columns[name] = rng.choice((None, 1.5, "text", {}, [[1, 2]] * 6, range(6), set()))
        if not columns:
            break
    frame: Any = columns
    with suppress(Exception):  # no frame of that library: the plain mapping
        frame = rng.choice((dict, dict, pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table))(columns)
    read_runs(rng.choice((frame, frame, frame, [], None, 5, object(), "", "no.csv")) if rng.random() < 0.1 else frame)


# Laws, plans.


def _laws() -> Sequence[Files]:
    from dataclasses import replace

    import numpy as np

    from moescale.scaling_laws import catalogue_names, find_law
    from moescale.scaling_laws.store import law_text

    found = [find_law(name) for name in catalogue_names()]
    mine = found[0]
    drawn = replace(mine, name="mine", draws=np.repeat(mine.theta[None, :], 3, axis=0), evidence={"table": "runs.csv"})
    return [{"law.toml": law_text(law).encode()} for law in (drawn, *found)]


def _read_law(folder: Path, rng: Random) -> None:
    import numpy as np

    from moescale.scaling_laws import find_law
    from moescale.scaling_laws import loss as law_loss
    from moescale.scaling_laws.store import law_text, parse_law

    law = find_law(str(_the_file(folder)))
    further = {"unique_tokens": 1e9, "granularity": 1.0, "sparsity": 0.5, "activated_experts": 7.0}
    with np.errstate(all="ignore"):
        law_loss(law, 1e9, 1e11, 4.0, extra={k: v for k, v in further.items() if k in law.form.extra_inputs})
        parse_law(law_text(law), where="again")


@lru_cache(maxsize=1)
def _answers() -> Sequence[Files]:
    """A plan with a lifetime and one without, as --json prints them."""
    from command_line import run

    plan = run(
        "plan", "--budget", "1e20", "--experts", "1,4", "--lifetime-tokens", "1e12", "--latency", "roofline",
        "--json", "--law", "yun2024-recovered",
    )  # fmt: skip
    short = run("plan", "--budget", "1e20", "--experts", "4", "--bootstrap", "0", "--latency", "roofline", "--json")
    assert (plan.code, short.code) == (0, 0), (plan.err, short.err)
    return [{"plan.json": answer.out.encode()} for answer in (plan, short)]


# Latencies, models, GPUs, traffic, grids.


def _latency_tables() -> Sequence[Files]:
    from moescale.latency.table import read_measurements, write_measurements

    rows = read_measurements(EXAMPLES / "latency.csv")[:24]
    return [
        _written(lambda folder, s=suffix: write_measurements(folder / f"latency{s}", rows))
        for suffix in (".csv", ".tsv", ".parquet")
    ]


def _read_measurements(folder: Path, rng: Random) -> None:
    from moescale.latency.table import key_of, read_measurements

    rows = read_measurements(_the_file(folder))
    assert len({key_of(row) for row in rows}) <= len(rows)


def _configs() -> Sequence[Files]:
    found = [path.read_bytes() for path in sorted((EXAMPLES / "configs").iterdir())]
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}
    formats: list[dict[str, Any]] = [
        {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "re:.*gate"]},
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"]},
    ]
    found += [json.dumps(json.loads(found[0]) | {"quantization_config": one}).encode() for one in formats]
    return [{"config.json": content} for content in found]


def _read_config(folder: Path, rng: Random) -> None:
    from moescale.models.hf_config import read_config
    from moescale.models.parameters import count_parameters, kv_bytes_per_token

    model = read_config(rng.choice((folder, folder / "config.json"))).architecture
    counted = count_parameters(model)
    assert 0 < counted.active <= counted.total < float("inf")
    assert kv_bytes_per_token(model) > 0


def _read_gpu(folder: Path, rng: Random) -> None:
    from moescale.hardware.gpus import load_gpu

    gpu = load_gpu(str(_the_file(folder)))
    assert 0 < gpu.memory_bytes < float("inf")


def _traces() -> Sequence[Files]:
    rows = [{"prompt_tokens": 10 * i + 1, "output_tokens": 5 * i + 1} for i in range(6)]
    head = b"".join((EXAMPLES / "requests.csv").read_bytes().splitlines(keepends=True)[:8])
    return [
        {"trace.csv": head}, {"trace.jsonl": "\n".join(map(json.dumps, rows)).encode()},
        {"trace.json": json.dumps(rows).encode()},
    ]  # fmt: skip


def _read_trace(folder: Path, rng: Random) -> None:
    from moescale.serving.traffic import read_trace

    traffic = read_trace(_the_file(folder))
    assert traffic.prompt_tokens > 0


def _read_grid(folder: Path, rng: Random) -> None:
    from moescale.experiments.profile import read_grid

    grid, models = read_grid(folder / "profile.toml")
    assert grid.points()
    assert models


def _grids() -> Sequence[Files]:
    config = (EXAMPLES / "configs" / "llama-3.1-8b.json").read_bytes()
    with_config = (
        b'gpu = "h100-sxm"\nbatch = [1, 8]\nprompt_tokens = "1K"\ngpus = [1, 2]\n[[models]]\nconfig = "config.json"\n'
    )
    return [
        {"profile.toml": (EXAMPLES / "profile.toml").read_bytes()},
        {"profile.toml": with_config, "config.json": config},
    ]


# Expressions, quantities, the state of a link: texts.

_EXPRESSIONS = (
    "tokens / n_params_dense >= 2 and n_experts <= 8", "note == 'a' or not (loss < 2.5)",
    "n_experts in {1, 2, 8} and tokens ** 2 > 1e18", "1e9 < tokens <= 20B", "`val/loss` - loss * -2 != 0",
)  # fmt: skip
_QUANTITIES = ("5e21", "7B", "1_000", "900M", "2TB", "80GiB", "1.5T", "0.5", "12 KiB")


def _texts(texts: Sequence[str]) -> Sequence[Files]:
    return [{"text.txt": text.encode()} for text in texts]


def _text(folder: Path) -> str:
    return (folder / "text.txt").read_bytes().decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1)
def _expression_columns() -> dict[str, Any]:
    import numpy as np

    columns = {name: _array(values) for name, values in _columns().items()}
    return columns | {"val/loss": np.array([np.nan, 1.0, np.inf, -1.0, 0.0, 2.0])}


def _evaluate(folder: Path, rng: Random) -> None:
    import numpy as np

    from moescale.io.filters import column_names, evaluate, evaluate_numbers

    text = _text(folder)
    with suppress(InputError):
        column_names(text)
    with suppress(InputError):
        evaluate_numbers(text, _expression_columns())
    found, _ = evaluate(text, _expression_columns())
    assert found.dtype == np.bool_
    assert found.shape == (6,)


def _quantity(folder: Path, rng: Random) -> None:
    from moescale.units import format_bytes, format_count, format_flops, format_seconds, format_usd, parse_quantity

    value = parse_quantity(_text(folder))
    assert 0 <= value < float("inf")
    assert all(show(value) for show in (format_bytes, format_count, format_flops, format_seconds, format_usd))


# Other programs' runs.


def _trainer_folders() -> Sequence[Files]:
    folder = EXAMPLES / "trainer"
    return [{p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*.json"))}]


def _run_exports() -> Sequence[Files]:
    groups = b"Model;Params (M);Tokens (B);Validation loss\na;12,5;1,25;3,1\nb;1.250,5;10;2,9\n"
    cells = (
        b"name,model_size,training tokens,config,acc\na,7B,\"1,000,000\",\"{'val_loss': 3.2, 'bad': nan}\",12%\n"
        b'b,8B,"2,000,000","{""val_loss"": 3.0}",-\n'
    )
    lines = b'{"name": "a", "config": {"n_params": 1e6, "experts": 2}, "tokens": 1e9, "eval": {"loss": 3.0}}\n'
    return [{"export.csv": groups}, {"export.csv": cells}, {"export.jsonl": lines}]


def _import(tracker: str, folder: Path, rng: Random) -> None:
    from moescale.runs.importers import import_runs

    source = folder
    if tracker == "csv":
        source = _the_file(folder)
    found = import_runs(tracker, source, unfinished=rng.random() < 0.3)
    assert found.n_runs > 0


# Training: settings, sources, corpora, and what runs leave behind.


def _read_settings(folder: Path, rng: Random) -> None:
    from moescale.experiments.settings import estimate, read_settings

    estimate(read_settings(_the_file(folder)))


def _run_settings() -> Sequence[Files]:
    more = b'\n[parallel]\nprocesses = 2\n\n[tracking]\nto = ["mlflow"]\n'
    run = (EXAMPLES / "run.toml").read_bytes()
    return [{"run.toml": run}, {"run.toml": run + more}]


def _sweeps() -> Sequence[Files]:
    grid = (EXAMPLES / "sweep.toml").read_bytes()
    runs = (
        b'[data]\ncorpus = "corpus"\n\n[training]\npeak_lr = 0.003\n\n[[runs]]\nn_params = "12M"\nexperts = 4\ntokens = "300M"\n'
        b"batch_tokens = 65_536\n\n[[runs]]\nd_model = 64\nn_layers = 2\ntokens = 1e6\npeak_lr = 0.004\nseed = 3\n"
    )
    return [{"sweep.toml": grid}, {"sweep.toml": runs}]


def _read_sweep(folder: Path, rng: Random) -> None:
    from moescale.experiments.sweep_file import read_sweep

    assert read_sweep(_the_file(folder)).runs


def _sources() -> Sequence[Files]:
    rows = [{"text": "one document"}, {"text": "another, é"}, {"text": ""}]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return [{"b.jsonl": lines}, {"c.ndjson": b"\xef\xbb\xbf" + lines.replace(b"\n", b"\r\n")}]


def _read_sources(folder: Path, rng: Random) -> None:
    from moescale.experiments.pack import documents, find_sources

    for name in find_sources([folder]):
        for document in islice(documents(name), 20_000):
            document.encode()


@lru_cache(maxsize=1)
def _corpora() -> Sequence[Files]:
    from moescale.experiments.pack import pack

    def write(folder: Path) -> None:
        (folder / "texts.jsonl").write_text(
            "".join(json.dumps({"text": "word " * (i % 7 + 1)}) + "\n" for i in range(40))
        )
        pack([folder / "texts.jsonl"], folder / "corpus", tokenizer="bytes", validation=0.2)

    found = _written(write)
    return [
        {name: content for name, content in found.items() if name.startswith("corpus/") and not name.endswith(".lock")}
    ]


def _open_corpus(folder: Path, rng: Random) -> None:
    from moescale.experiments.corpus import open_corpus, verify

    corpus = open_corpus(folder / "corpus")
    for split in ("train", "validation"):
        assert corpus.sequences(split, 8, seed=1)[1].shape == (8,)
    verify(corpus)


def _resumed_tables() -> Sequence[Files]:
    from moescale.experiments.run import add_rows

    row = {"name": "a", "settings_sha256": "ab", "tokens": 1000, "loss": 2.5, "mfu": None, "diverged": False}
    rows = [row, {**row, "name": 'b, "c"', "tokens": 2000}]
    found = [_written(lambda folder, s=suffix: add_rows(folder / f"runs{s}", rows)) for suffix in (".csv", ".tsv")]
    return [{name: content for name, content in files.items() if name.startswith("runs.")} for files in found]


def _run_folders() -> Sequence[Files]:
    """What a run leaves: its settings with their identity, its progress, its result."""
    from moescale.experiments.settings import read_settings

    document = {
        **read_settings(EXAMPLES / "run.toml").to_dict(),
        "identity": {"settings_sha256": "ab", "corpus_sha256": "cd"},
    }
    rows = [{"name": "a", "settings_sha256": "ab", "tokens": 1000, "loss": 2.5}]
    return [
        {
            "settings.json": json.dumps(document, default=str).encode(),
            "result.json": json.dumps({"rows": rows}).encode(),
        }
    ]


def _read_run_folder(folder: Path, rng: Random) -> None:
    from moescale.experiments.run import check_same, read_result

    assert read_result(folder)
    check_same(folder, {"settings_sha256": "ab", "corpus_sha256": "cd"})


# The page.

_LINKS = (
    {"budget": "5.15e21"},
    {"budget": "1e22", "experts": "1,4,8", "gpu": "h100-sxm", "latency": "roofline", "max-loss": "2.5", "law": "yun2024-joint"},
    {"train-gpus": "64", "days": "7", "train-gpu": "h100-sxm", "mfu": "0.4", "prompt": "2K", "output": "300", "weights": "fp8"},
    {"law": "upload:0123456789abcdef", "max-num-seqs": "256", "kv-heads": "8"},
)  # fmt: skip


def _links() -> Sequence[Files]:
    return [{"text.json": json.dumps(link).encode()} for link in _LINKS]


def _read_link(folder: Path, rng: Random) -> None:
    from moescale.web.state import read_state
    from moescale.web.store import find

    try:
        stated = json.loads((folder / "text.json").read_bytes().decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        stated = None
    query = (
        {str(key): str(value) for key, value in stated.items()} if isinstance(stated, dict) else {"budget": str(stated)}
    )
    read_state(query, partial(find, {}))


_PATHS = ("/", "/api/draft", "/api/catalogue", "/api/law", "/api/scales", "/api/plan")
PORT, TOKEN = 8765, "token"


def _requests() -> Sequence[Files]:
    query = "&".join(f"{k}={v}" for k, v in {**_LINKS[1], "experts": "1,4"}.items())
    asked = [{"method": "GET", "path": path, "query": query} for path in _PATHS]
    cases: list[Files] = [{"request.json": json.dumps(request).encode()} for request in asked]
    sent = {"method": "POST", "path": "/api/laws", "query": "name=law.toml"}
    cases.append({"request.json": json.dumps(sent).encode(), "body": next(iter(_laws()[0].values()))})
    return cases


async def _computed(self: object, task: dict[str, Any], left: object) -> bytes:
    """What a process would answer, in this one."""
    from moescale.web.api import answer

    return json.dumps(answer(task), allow_nan=False).encode()


@lru_cache(maxsize=1)
def _app() -> tuple[Any, asyncio.AbstractEventLoop]:
    from moescale.web.app import create_app
    from moescale.web.pool import Pool

    Pool.ask, Pool.start = _computed, lambda self: None  # type: ignore[method-assign]
    app, loop = create_app(PORT, TOKEN), asyncio.new_event_loop()
    loop.run_until_complete(app.router.lifespan_context(app).__aenter__())
    return app, loop


def _ask(folder: Path, rng: Random) -> object:
    """Send the request in `request.json`, which may be anything, with the body beside it; False where it was turned away."""
    import httpx

    text = (folder / "request.json").read_bytes().decode("utf-8", "surrogateescape")
    stated: Any = {}
    with suppress(ValueError, RecursionError):
        stated = json.loads(text)
    stated = stated if isinstance(stated, dict) else {"query": text[:2000]}
    body = (folder / "body").read_bytes() if (folder / "body").exists() else b""
    app, loop = _app()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app))
    path, query = (quote(str(stated.get(key, "")), safe="/&=,.%", errors="replace") for key in ("path", "query"))
    try:
        request = client.build_request(
            str(stated.get("method")), f"http://127.0.0.1:{PORT}/{path.lstrip('/')}?{query}", content=body,
            headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/octet-stream"},
        )  # fmt: skip
    except (httpx.InvalidURL, UnicodeError):  # no client sends it
        return False
    found = loop.run_until_complete(client.send(request))
    assert found.status_code < 500, found.text[:300]
    if found.status_code == 200 and "json" in found.headers.get("content-type", ""):
        answer = json.loads(found.content.splitlines()[-1], parse_constant=int)  # which NaN is not
        if isinstance(answer, dict) and "error" in answer:
            stated = {key: answer["error"][key] for key in ("what", "where", "nearest", "next_step")}
            raise InputError(stated.pop("what"), **stated)
    return found.status_code < 400


READERS: Mapping[str, Reader] = {
    "runs-csv": Reader(partial(_run_tables, ".csv"), _read_runs, 8000),
    "runs-tsv": Reader(partial(_run_tables, ".tsv"), _read_runs, 3000),
    "runs-json": Reader(partial(_run_tables, ".jsonl"), _read_runs, 5000),
    "runs-parquet": Reader(partial(_run_tables, ".parquet"), _read_runs, 4000),
    "frames": Reader(lambda: [{"seed.txt": b""}], _read_frame, 4000, names_file=False),
    "laws": Reader(_laws, _read_law, 5000),
    "answers": Reader(_answers, _reads("views.html", "read_plan"), 4000),
    "latency-tables": Reader(_latency_tables, _reads("latency.table", "read_latency_table"), 4000),
    "measurements": Reader(_latency_tables, _read_measurements, 4000),
    "configs": Reader(_configs, _read_config, 6000),
    "gpus": Reader(lambda: [{"gpu.toml": (EXAMPLES / "gpus" / "tpu-v5e.toml").read_bytes()}], _read_gpu, 4000),
    "traces": Reader(_traces, _read_trace, 5000),
    "expressions": Reader(partial(_texts, _EXPRESSIONS), _evaluate, 10000, names_file=False),
    "quantities": Reader(partial(_texts, _QUANTITIES), _quantity, 10000, names_file=False),
    "trainer": Reader(_trainer_folders, partial(_import, "trainer"), 3000),
    "exports": Reader(_run_exports, partial(_import, "csv"), 4000),
    "run-settings": Reader(_run_settings, _read_settings, 4000),
    "sweeps": Reader(_sweeps, _read_sweep, 3000),
    "profile-grids": Reader(_grids, _read_grid, 3000),
    "sources": Reader(_sources, _read_sources, 8000),
    "corpora": Reader(_corpora, _open_corpus, 6000),
    "resumed-tables": Reader(_resumed_tables, _reads("experiments.run", "check_run_table"), 3000),
    "run-folders": Reader(_run_folders, _read_run_folder, 3000),
    "links": Reader(_links, _read_link, 5000, names_file=False),
    "requests": Reader(_requests, _ask, 3000, names_file=False),
}
