"""Training with torch: processes, restarts, routers, and what vLLM and transformers make of the weights."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moescale.cli import main
from moescale.errors import InputError
from moescale.experiments.settings import RunSettings, estimate, settings_of

pytestmark = [pytest.mark.filterwarnings("default")]

torch: Any = pytest.importorskip("torch", reason="needs torch")
transformers: Any = pytest.importorskip("transformers", reason="needs transformers")

WORDS = [
    "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "and", "or", "but", "not", "for",
    "if",
]  # fmt: skip
PROMPT = [5, 17, 200, 31, 64, 90, 8, 120]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 120,000 byte tokens of sentences that a small model can learn something about."""
    pack: Any = importlib.import_module("moescale.experiments.pack").pack
    folder = tmp_path_factory.mktemp("data")
    draw = np.random.default_rng(0)
    for number in range(60):
        picked = draw.choice(WORDS, size=420, p=np.arange(1, 17) / 136)
        (folder / f"{number}.txt").write_text(" ".join(picked))
    pack([folder], folder / "corpus", tokenizer="bytes", validation=0.15)
    return folder / "corpus"


def tables(corpus: Path, output: Path, **changes: Any) -> dict[str, Any]:
    """20 steps of 16 sequences of 64 tokens with a model of about 0.2M parameters."""
    base: dict[str, Any] = {
        "name": output.name,
        "output": str(output),
        "model": {"d_model": 64, "n_layers": 2, "n_heads": 2, "d_ffn": 128, "experts": 4},
        "data": {"corpus": str(corpus)},
        "training": {
            "tokens": 20 * 1024, "batch_tokens": 1024, "sequence_tokens": 64, "micro_batch_tokens": 256,
            "peak_lr": 3e-3, "validation_tokens": 4096,
        },
        "parallel": {"device": "cpu"},
    }  # fmt: skip
    for key, value in changes.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return base


def trained(settings: RunSettings, **options: Any) -> list[dict[str, Any]]:
    run: Any = importlib.import_module("moescale.experiments.run")
    return [run.train(settings, **options)]


# DeepSeek-V3, and GLM-4-MoE: narrow experts, a shared one, the sigmoid router.
SHARED: dict[str, Any] = {"experts": 8, "top_k": 2, "moe_every": 1, "d_expert": 32, "d_shared_expert": 32}
LATENT: dict[str, Any] = {
    **SHARED, "head_dim": 48, "kv_lora_rank": 32, "q_lora_rank": 48, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def alone(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and the row of a run of one process."""
    folder = tmp_path_factory.mktemp("runs") / "alone"
    (row,) = trained(settings_of(tables(corpus, folder)))
    return folder, row


def test_a_row_says_what_was_trained(alone: tuple[Path, dict[str, Any]], corpus: Path) -> None:
    folder, row = alone
    settings = settings_of(tables(corpus, folder))
    assert row["tokens"] == 20 * 1024
    assert row["n_params_active"] == estimate(settings)["n_params_active"]
    assert row["settings_sha256"] == settings.sha256
    assert (row["diverged"], row["dead_experts"], row["token_drop"]) == (False, 0, 0.0)
    assert row["loss"] < math.log(row["vocab_size"]) - 1  # it has learnt something
    assert 1 <= row["imbalance"] <= 4
    assert json.loads((folder / "result.json").read_text()) == {"rows": [row]}
    assert not (folder / "checkpoints").exists()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    counted = sum(p.numel() for p in model.parameters())
    assert counted == row["n_params_total"] + row["n_params_embedding"]


def test_the_loss_is_transformers_own_on_the_saved_model(alone: tuple[Path, dict[str, Any]], corpus: Path) -> None:
    folder, row = alone
    opened: Any = importlib.import_module("moescale.experiments.corpus").open_corpus(corpus)
    held_out = opened.sequences("validation", 64, 0)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    ids = torch.from_numpy(np.stack([held_out[i] for i in range(4096 // 64)]))
    with torch.inference_mode():
        assert float(model(input_ids=ids, labels=ids).loss) == pytest.approx(row["loss"], abs=1e-5)


@pytest.mark.parametrize("shape", [SHARED, LATENT], ids=["glm4_moe", "deepseek_v3"])
def test_shared_experts_and_latent_attention_are_trained_as_transformers_has_them(
    shape: dict[str, Any], corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "r"
    (row,) = trained(settings_of(tables(corpus, folder, model=shape, training={"tokens": 60 * 1024})))
    assert not row["diverged"]
    assert row["loss"] < math.log(row["vocab_size"]) - 1
    assert 1 <= row["imbalance"] < 3
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    routers = sum(layer.mlp.gate.e_score_correction_bias.numel() for layer in model.model.layers)
    counted = sum(p.numel() for p in model.parameters())
    assert counted + routers == row["n_params_total"] + row["n_params_embedding"]
    opened: Any = importlib.import_module("moescale.experiments.corpus").open_corpus(corpus)
    held_out = opened.sequences("validation", 64, 0)
    ids = torch.from_numpy(np.stack([held_out[i] for i in range(4096 // 64)]))
    with torch.inference_mode():
        assert float(model(input_ids=ids, labels=ids).loss) == pytest.approx(row["loss"], abs=1e-5)


def test_a_finished_run_is_not_trained_again(alone: tuple[Path, dict[str, Any]], corpus: Path) -> None:
    folder, row = alone
    events: list[Any] = []
    assert trained(settings_of(tables(corpus, folder)), report=events.append) == [row]
    assert events == []


def test_a_folder_holds_one_run(alone: tuple[Path, dict[str, Any]], corpus: Path) -> None:
    folder, _ = alone
    with pytest.raises(InputError, match="holds a run with other settings"):
        trained(settings_of(tables(corpus, folder, seed=1)))


def test_the_same_settings_give_the_same_bits(alone: tuple[Path, dict[str, Any]], corpus: Path, tmp_path: Path) -> None:
    _, row = alone
    (again,) = trained(settings_of(tables(corpus, tmp_path / "alone")))
    assert (again["loss"], again["train_loss"]) == (row["loss"], row["train_loss"])
    (other,) = trained(settings_of(tables(corpus, tmp_path / "seeded", seed=1)))
    assert other["loss"] != row["loss"]


def kill_in_the_middle(stated: dict[str, Any], tmp_path: Path, checkpoint: str = "step-[1-3]?") -> None:
    """Start the run in a process of its own, and kill that once there is such a checkpoint: by default of 14 steps or more."""
    file, folder = tmp_path / "run.json", Path(stated["output"])
    file.write_text(json.dumps(stated))
    code = (
        "import json, sys; from moescale.experiments.run import train; from moescale.experiments.settings import settings_of;"
        "train(settings_of(json.load(open(sys.argv[1]))))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(file)])
    limit = time.monotonic() + 240
    while not any((folder / "checkpoints").glob(checkpoint)):
        assert process.poll() is None
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "result.json").exists()


LONGER: dict[str, Any] = {"training": {"tokens": 60 * 1024, "checkpoint_every_steps": 7}}


@pytest.fixture(scope="module")
def longer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder and row of a run of 60 steps that nobody disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "longer"
    (row,) = trained(settings_of(tables(corpus, folder, **LONGER)))
    return folder, row


def test_a_killed_run_goes_on_to_the_same_bits(
    longer: tuple[Path, dict[str, Any]], corpus: Path, tmp_path: Path
) -> None:
    whole, row = longer
    folder = tmp_path / "longer"
    kill_in_the_middle(tables(corpus, folder, **LONGER), tmp_path)
    events: list[Any] = []
    (resumed,) = trained(settings_of(tables(corpus, folder, **LONGER)), report=events.append)
    assert events[0]["event"] == "resumed"
    assert events[0]["step"] >= 14
    assert (resumed["loss"], resumed["train_loss"]) == (row["loss"], row["train_loss"])
    assert resumed["imbalance"] == row["imbalance"]
    weights: Any = importlib.import_module("safetensors.torch").load_file
    one, two = (weights(place / "model" / "model.safetensors") for place in (whole, folder))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_that_diverges_is_a_row(corpus: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"training": {"peak_lr": 10, "grad_clip": 1e9, "weight_decay": 10, "tokens": 80 * 1024}}
    (row,) = trained(settings_of(tables(corpus, tmp_path / "wild", **changes)))
    assert row["diverged"]
    assert row["diverged_why"]
    json.dumps(row, allow_nan=False)


def test_a_broken_checkpoint_is_one_message(corpus: Path, tmp_path: Path) -> None:
    stated = tables(corpus, tmp_path / "r", **LONGER)
    kill_in_the_middle(stated, tmp_path)
    for file in (tmp_path / "r" / "checkpoints").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(InputError, match="cannot be read as a checkpoint"):
        trained(settings_of(stated))
    (row,) = trained(settings_of(stated), resume=False)
    assert row["tokens"] == 60 * 1024


def started(settings: RunSettings, corpus: Path) -> Any:
    """The run, before its first step."""
    trainer: Any = importlib.import_module("moescale.experiments.train")
    opened: Any = importlib.import_module("moescale.experiments.corpus").open_corpus(corpus)
    return trainer.Run(settings, opened, lambda _event: None)


@pytest.mark.parametrize("shape", [{}, LATENT], ids=["qwen3_moe", "deepseek_v3"])
def test_gradient_reaches_every_expert_and_the_router(shape: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    model_file: Any = importlib.import_module("moescale.experiments.train")
    run = started(settings_of(tables(corpus, tmp_path / "r", model=shape)), corpus)
    _, ids = run._batch(0)
    model_file.token_losses(run.model, ids).sum().backward()
    seen = {name: p.grad for name, p in run.model.named_parameters()}
    assert all(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in seen.values())
    for name in ("gate_up_proj", "down_proj"):
        gradient = seen[f"model.layers.1.mlp.experts.{name}"]
        assert gradient.shape[0] == shape.get("experts", 4)
        assert bool((gradient.abs().sum(dim=(1, 2)) > 0).all())


def test_the_balancing_loss_is_that_of_transformers(corpus: Path, tmp_path: Path) -> None:
    """With f of the same batch it is the published formula, and adds up over micro-batches."""
    model_file: Any = importlib.import_module("moescale.experiments.train")
    reference: Any = importlib.import_module(
        "transformers.models.qwen3_moe.modeling_qwen3_moe"
    ).load_balancing_loss_func
    run = started(settings_of(tables(corpus, tmp_path / "r")), corpus)
    _, ids = run._batch(0)
    kept: list[Any] = []
    run.model.model.layers[1].mlp.gate.register_forward_hook(lambda _m, _i, answer: kept.append(answer[0]))
    run.routers.on = True
    model_file.token_losses(run.model, ids)
    run.routers.probabilities.clear()
    run.routers.use(run.routers.take())
    expected = float(reference((kept[0],), 4, 2)) / 2  # its shares are of tokens and sum to top_k, ours sum to one
    parts = []
    for half in ids.chunk(2):
        model_file.token_losses(run.model, half)
        parts.append(float(run.routers.loss(ids.numel())))
    assert sum(parts) == pytest.approx(expected, rel=1e-5)
    assert expected == pytest.approx(1.0, abs=0.2)


def test_scores_of_a_sigmoid_are_balanced_as_shares_of_their_sum(corpus: Path, tmp_path: Path) -> None:
    model_file: Any = importlib.import_module("moescale.experiments.train")
    run = started(settings_of(tables(corpus, tmp_path / "r", model=LATENT)), corpus)
    _, ids = run._batch(0)
    kept: list[Any] = []
    for layer in run.model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _m, _i, answer: kept.append(answer))
    run.routers.on = True
    model_file.token_losses(run.model, ids)
    run.routers.probabilities.clear()
    run.routers.use(run.routers.take())
    expected = []
    for logits, _, chosen in kept:
        share = torch.bincount(chosen.flatten(), minlength=8) / chosen.numel()
        scores = torch.sigmoid(logits)
        expected.append(8 * float((share * (scores / scores.sum(dim=1, keepdim=True)).mean(dim=0)).sum()))
    model_file.token_losses(run.model, ids)
    assert float(run.routers.loss(ids.numel())) == pytest.approx(np.mean(expected), rel=1e-5)


def test_the_balancing_loss_evens_a_skewed_stream(corpus: Path, tmp_path: Path) -> None:
    """Routers that favour one expert strongly: 60 steps with the loss leave less imbalance than 60 without."""
    imbalance: dict[float, float] = {}
    for coefficient in (0.0, 0.1):
        settings = settings_of(
            tables(corpus, tmp_path / "r", model={"balance_loss": coefficient}, training={"tokens": 60 * 1024})
        )
        run = started(settings, corpus)
        with torch.no_grad():
            embedding, router = run.model.model.embed_tokens.weight, run.model.model.layers[1].mlp.gate.weight
            common = torch.ones(64)  # a direction that all tokens share and one expert answers to
            embedding += 0.05 * common
            router[0] += 0.05 * common
        before = run.validate()[1]
        row = run.train(resume=False)
        health: Any = importlib.import_module("moescale.experiments.health")
        assert health.balance(before)["imbalance"] > 1.9  # the most for top-2 of 4 is 2
        imbalance[coefficient] = row["imbalance"]
    assert imbalance[0.1] < 1.4
    assert imbalance[0.1] < imbalance[0.0] - 0.2


def through_torchrun(stated: dict[str, Any], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """`moescale train` with as many processes as are stated; it becomes torchrun."""
    tomli_w: Any = importlib.import_module("tomli_w")
    (tmp_path / "run.toml").write_text(tomli_w.dumps(stated))
    return subprocess.run(
        [sys.executable, "-m", "moescale", "train", str(tmp_path / "run.toml"), "--json"], capture_output=True, text=True,
        check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def losses_of(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if event["event"] == "step"]
    return [losses[0], losses[-1]]  # between them a line comes by the clock


@pytest.mark.parametrize("shape", [{}, {"experts": 1}, LATENT], ids=["qwen3_moe", "qwen3", "deepseek_v3"])
def test_two_processes_have_the_losses_of_one(shape: dict[str, Any], corpus: Path, tmp_path: Path) -> None:
    """First and last training loss, and that of validation, with gradients accumulated and experts balanced."""
    (one,) = trained(settings_of(tables(corpus, tmp_path / "one", model=shape)))
    done = through_torchrun(tables(corpus, tmp_path / "two", model=shape, parallel={"processes": 2}), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (two,) = json.loads(done.stdout)["rows"]
    assert (one["processes"], two["processes"]) == (1, 2)
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), abs=1e-5)
    assert (two["loss"], two["imbalance"]) == pytest.approx((one["loss"], one["imbalance"]), abs=1e-5)


def test_a_killed_run_goes_on_with_another_number_of_processes(
    longer: tuple[Path, dict[str, Any]], corpus: Path, tmp_path: Path
) -> None:
    _, row = longer
    stated = tables(corpus, tmp_path / "longer", **LONGER)
    kill_in_the_middle(stated, tmp_path)
    stated["parallel"] = {"processes": 2, "device": "cpu"}
    done = through_torchrun(stated, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    (resumed,) = json.loads(done.stdout)["rows"]
    assert "resumed step-" in done.stderr
    assert resumed["loss"] == pytest.approx(row["loss"], abs=1e-4)
    assert (tmp_path / "longer" / "model" / "model.safetensors").exists()


def test_processes_that_nobody_started_are_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"2 processes are set.*torchrun --nproc-per-node 2"):
        trained(settings_of(tables(corpus, tmp_path / "r", parallel={"processes": 2})))


def test_a_device_that_is_not_there_is_refused(corpus: Path, tmp_path: Path) -> None:
    settings = settings_of(tables(corpus, tmp_path / "r", parallel={"device": "cuda"}))
    if torch.cuda.is_available():
        pytest.skip("this test is for machines without CUDA")
    with pytest.raises(InputError, match="no CUDA device"):
        trained(settings)


def test_the_command_writes_the_run_table(
    alone: tuple[Path, dict[str, Any]], corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tomli_w: Any = pytest.importorskip("tomli_w")
    folder, row = alone
    run, table = tmp_path / "run.toml", tmp_path / "runs.csv"
    run.write_text(tomli_w.dumps(tables(corpus, folder)))
    for _ in range(2):  # the second time it is there
        main(["train", str(run), "-o", str(table), "--json"])
        assert json.loads(capsys.readouterr().out)["rows"] == [row]
    read_runs: Any = importlib.import_module("moescale.runs.table").read_runs
    runs = read_runs(table)
    assert len(runs) == 1
    assert runs.loss[0] == row["loss"]
    assert runs.n_params[0] == row["n_params_dense"]


VLLM = """
import json, sys
from vllm import LLM, SamplingParams
model = LLM(model=sys.argv[1], skip_tokenizer_init=True, enforce_eager=True, max_model_len=64, dtype="float32")
(out,) = model.generate([{"prompt_token_ids": json.loads(sys.argv[2])}],
                        SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, detokenize=False))
print("TOKENS", json.dumps(list(out.outputs[0].token_ids)))
"""


def test_vllm_serves_what_is_saved(alone: tuple[Path, dict[str, Any]]) -> None:
    python = os.environ.get("MOESCALE_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.skip("no vLLM: set MOESCALE_VLLM_PYTHON to the interpreter of an environment that has it")
    folder, _ = alone
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        for _ in range(8):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1:].argmax(-1)], dim=1)
    done = subprocess.run(
        [python, "-c", VLLM, str(folder / "model"), json.dumps(PROMPT)], capture_output=True, text=True, check=False,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}, cwd=folder,
    )  # fmt: skip
    said = [line for line in done.stdout.splitlines() if line.startswith("TOKENS")]
    assert said, done.stderr[-3000:]
    assert json.loads(said[0].removeprefix("TOKENS")) == ids[0, len(PROMPT) :].tolist()
