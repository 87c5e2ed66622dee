"""The trackers' own libraries: what tracking writes with them is read back as the same row, and by them as by us."""

from __future__ import annotations

import json
import struct
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from moescale.errors import InputError
from moescale.runs.importers import import_runs
from tracker_files import hparams, mlflow_store, write_events

# The libraries warn of one another (SQLAlchemy of how MLflow calls it), which is not ours to fail on.
pytestmark = [pytest.mark.filterwarnings("default")]

LIBRARIES = {"mlflow": "mlflow", "tensorboard": "torch", "trainer": "json"}


def need(target: str) -> Any:
    return pytest.importorskip(LIBRARIES[target], reason=f"needs {LIBRARIES[target]} (pip install '.[track]')")


def test_torchs_writer_with_hparams_and_doubles(tmp_path: Path) -> None:
    need("tensorboard")
    pytest.importorskip("torch", reason="needs torch")
    writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(tmp_path / "run"))
    writer.add_scalar("val/loss", 3.0000000001, 10, double_precision=True)
    writer.add_scalar("val/loss", 2.9, 20, new_style=True)
    writer.add_hparams({"n_experts": 4, "n_params_total": 5e6, "train_tokens": 1e9, "optimizer": "adamw"}, {"m": 1.0})
    writer.close()
    found = import_runs("tensorboard", tmp_path)
    row = {name: values.tolist()[0] for name, values in found.columns.items()}
    assert row["loss"] == pytest.approx(2.9, rel=1e-7)
    assert (found.n_found, row["n_experts"], row["tokens"], row["optimizer"]) == (1, 4, 10**9, "adamw")


def only(tracker: str, source: object, **options: Any) -> dict[str, Any]:
    """The one row of a source."""
    return {name: values.tolist()[0] for name, values in import_runs(tracker, str(source), **options).columns.items()}


def test_tensorboard_reads_scalars_and_hparams_and_drops_what_a_restart_made_void(tmp_path: Path) -> None:
    start = hparams(num_experts=4.0, n_params_dense=123456789.0, note="x", flag=True)
    first = [{"step": step, "scalars": {"val/loss": 9.0, "tokens_seen": 1e6 + step}} for step in (1, 2, 3)]
    write_events(tmp_path / "a", [start, *first])
    write_events(
        tmp_path / "a", [{"step": 2, "restart": True}, {"step": 2, "scalars": {"val/loss": 3.5}}], suffix=".later"
    )
    row = only("tensorboard", tmp_path)
    assert (row["loss"], row["n_experts"], row["n_params_dense"]) == (3.5, 4, 123456789)
    assert row["tokens"] == 1e6 + 1  # steps 2 and 3 went with the restart at 2
    assert (row["note"], row["flag"], row["name"]) == ("x", True, "a")


def test_hparams_in_a_folder_of_their_own_belong_to_the_one_above(tmp_path: Path) -> None:
    write_events(tmp_path / "a", [{"step": 7, "scalars": {"eval_loss": 3.0}}])
    write_events(tmp_path / "a" / "171.5", [hparams(n_experts=2.0, n_params_total=10.0, train_tokens=100.0)])
    row = only("tensorboard", tmp_path)
    assert (row["name"], row["n_experts"], row["tokens"]) == ("a", 2, 100)


@pytest.mark.parametrize("kind", ["database", "file store"])
def test_a_store_of_mlflow_is_read_and_a_database_not_touched(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    metrics = {"eval_loss": [(0, 5.0), (10, 3.0)], "consumed_tokens": [(0, 0.0), (10, 5e9)]}
    params = {"n_params_dense": "85000000", "moe.num_experts": "8"}
    rows = [{"status": status, "params": params, "metrics": metrics} for status in ("FINISHED", "RUNNING")]
    base = tmp_path / ("mlflow.db" if kind == "database" else "mlruns")
    uri = f"sqlite:///{base}" if kind == "database" else base.as_uri()
    mlflow_store(uri, rows)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for source in (base, uri):
        found = import_runs("mlflow", str(source))
        row = {name: values.tolist()[0] for name, values in found.columns.items()}
        assert (row["n_experts"], row["tokens"], row["loss"], row["name"]) == (8, 5_000_000_000, 3.0, "run 0")
        assert "running" in found.left_out[0][1]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("cut", [1, 8, 20, 100])
def test_a_file_that_is_cut_off_gives_what_it_has(tmp_path: Path, cut: int) -> None:
    events = [{"step": step, "scalars": {"eval_loss": 3.0}} for step in range(20)]
    path = write_events(tmp_path, [hparams(n_experts=1.0, n_params_dense=1.0, train_tokens=1.0), *events])
    path.write_bytes(path.read_bytes()[:-cut])
    assert import_runs("tensorboard", tmp_path, unfinished=True).n_runs == 1


@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"\n" * 50])
def test_files_that_are_none_of_a_tracker_raise_nothing_but_input_errors(
    tmp_path: Path, data: bytes, tracker: str
) -> None:
    pytest.importorskip(tracker, reason=f"needs {tracker} (pip install '.[track]')")
    name, head = {
        "tensorboard": ("a.tfevents.1", struct.pack("<Q", len(data)) + b"\0" * 4),
        "mlflow": ("mlflow.db", b"SQLite format 3\0"),
    }[tracker]
    for content in (data, head + data):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            import_runs(tracker, tmp_path / name)


class Server(BaseHTTPRequestHandler):
    """The three calls of MLflow's REST API that reading takes."""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer()

    def _answer(self) -> None:
        answers: dict[str, Any] = {
            "experiments/search": {"experiments": [{"experiment_id": "7", "name": "x", "lifecycle_stage": "active"}]},
            "runs/search": {
                "runs": [{
                    "info": {"run_id": "r1", "run_name": "served", "experiment_id": "7", "status": "FINISHED",
                             "lifecycle_stage": "active"},
                    "data": {
                        "metrics": [{"key": "eval/loss", "value": 3.0, "timestamp": 2, "step": 20}],
                        "params": [{"key": "n_experts", "value": "8"}, {"key": "n_params_dense", "value": "85000000"},
                                   {"key": "batch_tokens", "value": "1000"}],
                    },
                }]
            },
            "metrics/get-history": {
                "metrics": [{"key": "eval/loss", "value": value, "timestamp": step, "step": step}
                            for step, value in ((10, 4.0), (20, 3.0))]
            },
        }  # fmt: skip
        found = next((answer for path, answer in answers.items() if path in self.path), None)
        self.send_response(200 if found is not None else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(found or {"error_code": "ENDPOINT_NOT_FOUND"}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


def test_a_server_is_read_through_mlflow_and_one_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    need("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    server = HTTPServer(("127.0.0.1", 0), Server)
    uri = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        found = import_runs("mlflow", uri)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    row = {name: values.tolist()[0] for name, values in found.columns.items()}
    assert (row["name"], row["n_experts"], row["loss"], row["tokens"]) == ("served", 8, 3.0, 20_000)
    with pytest.raises(InputError, match="cannot be read"):
        import_runs("mlflow", uri)


@pytest.mark.parametrize("experts", [1, 4])
def test_tokens_of_a_transformers_trainer_are_exact(experts: int, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
    need("tensorboard")
    shape: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16,
    }  # fmt: skip
    config = (
        transformers.Qwen3Config(**shape)
        if experts == 1
        else transformers.Qwen3MoeConfig(
            **shape, num_experts=experts, num_experts_per_tok=2, moe_intermediate_size=96, decoder_sparse_step=2
        )
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    ids = torch.randint(0, 64, (64, 32), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=6, per_device_train_batch_size=2, gradient_accumulation_steps=2, logging_steps=2,
        eval_strategy="steps", eval_steps=3, save_steps=6, report_to=["tensorboard"], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8]).train()
    counted = sum(p.numel() for p in model.parameters()) - 2 * 64 * 32
    for tracker in ("trainer", "tensorboard"):
        row = {name: values.tolist()[0] for name, values in import_runs(tracker, tmp_path).columns.items()}
        assert (row["tokens"], row["n_experts"], row["n_params_total"]) == (6 * 2 * 2 * 32, experts, counted)
