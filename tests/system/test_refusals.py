"""What the command line refuses: one message that names the option and the nearest valid choice, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import ONE_LAW, ROOT, RUNS, run, split

pytestmark = pytest.mark.usefixtures("plans_made_once")

ALONE = " ".join(ONE_LAW)
# Loads and what speeds a server up, each with the option that its refusal names.
LOADS = [
    ("speculative 1.5 --draft-tokens 1", "exceed 1 draft tokens"), ("draft-tokens 1", "--draft-tokens"),
    ("prefix-hit 2", "--prefix-hit"), ("burst 0", "--burst"), ("percentile 99", "--percentile"),
    ("percentile 99 --burst 10", "--percentile"), ("request-rate 20 --replicas 2", "--replicas"),
]  # fmt: skip
# (arguments, exit code, words that the message must hold). NAME stands for the file of that name in `bad_files`.
REFUSALS: list[tuple[str, int, tuple[str, ...]]] = [
    # What typer itself refuses.
    ("nope", 2, ("No such command 'nope'", "moescale --help")),
    ("pln", 2, ("No such command 'pln'", "Did you mean 'plan'")),
    ("--nope", 2, ("No such option: --nope", "moescale --help")),
    ("plan --buget 1e20", 2, ("--buget", "--budget", "moescale plan --help")),
    ("plan", 2, ("--budget: no budget", "--train-gpus N --days X")),
    ("plan --budget -1e22", 2, ("--budget: '-1e22' is not a number from 1e+12", "nearest: 1e+12", "in total")),
    ("plan --budget 5e9", 2, ("--budget: '5e9' is not a number from 1e+12", "not per second")),
    ("plan --budget 1e21 --budget-usd 5", 2, ("--budget and --budget-usd state a budget each",)),
    ("plan --days 3", 2, ("--days: needs a number of GPUs", "--train-gpus")),
    ("plan --budget 1e21 --match gtp-oss", 2, ("--match: unknown", "gpt-oss-20b")),
    ("plan --budget 1e21 --match gpt-oss-20b", 2, ("--match", "tokens of gpt-oss-20b are not published")),
    ("plan --budget 1e21 --shape mixtrall", 2, ("--shape: unknown shape 'mixtrall'; nearest: mixtral",)),
    ("plan --budget 1e21 --objective cheap", 2, ("--objective: unknown objective 'cheap'", "serve")),
    ("plan --budget 1e21 --confidence 1.5", 2, ("--confidence", "from 1e-06 to 1")),
    ("fit", 2, ("Missing argument", "RUNS")),
    ("fit a.csv b.csv", 2, ("b.csv", "moescale fit --help")),
    ("laws --jsn", 2, ("--jsn", "--json")),
    ("cost --n-params 1B --json=yes", 2, ("--json",)),
    # Tables of runs.
    ("fit no.csv", 2, ("no.csv", "no such file")),
    ("fit FOLDER", 2, ("FOLDER", "folder")),
    ("fit TEXT.csv", 2, ("TEXT.csv", "row 1", "'tokens'", "'abc'")),
    ("fit TYPO.csv", 2, ("TYPO.csv", "'tokens'", "nearest: token")),
    ("fit ''", 2, ("RUNS", "empty")),
    # Options of fit.
    ("fit RUNS --law nope", 2, ("--law", "'nope'", "yun2024, chinchilla")),
    ("fit RUNS --law hoffmann2022", 2, ("--law", "coefficient set")),
    ("fit RUNS --family nope", 2, ("--family", "'nope'", "ludziejewski2025")),
    ("fit RUNS --where 'tokens /'", 2, ("--where", "ends too early")),
    ("fit RUNS --where 'tokenz > 1'", 2, ("--where", "'tokenz'", "nearest: tokens")),
    ("fit RUNS --where ''", 2, ("--where", "empty")),
    ("""fit RUNS --where '__import__("os").system("true")'""", 2, ("--where", "unexpected '.'")),
    ("fit RUNS --where 'tokens > 1e99'", 2, ("filter", "none of 100 runs")),
    ("fit RUNS --size-column nope", 2, ("size column 'nope'", "n_params_dense")),
    ("fit RUNS --size-column loss", 2, ("'loss'", "two columns")),
    ("fit RUNS --starts 0", 2, ("--starts", "nearest: 1")),
    ("fit RUNS --bootstrap 1", 2, ("--bootstrap", "nearest: 0, or 2")),
    ("fit RUNS --bootstrap 1000000000000", 2, ("--bootstrap", "nearest: 10000")),
    ("fit RUNS --seed -1", 2, ("--seed", "'-1'")),
    ("fit RUNS -o missing/law.toml", 2, ("missing", "does not exist")),
    ("fit RUNS -o FOLDER", 2, ("FOLDER", "is a folder")),
    ("fit RUNS -o ''", 2, ("-o", "empty")),
    ("fit RUNS --prior yun2024-recovered", 2, ("--prior: yun2024-recovered says nothing of how coefficients differ",)),
    ("fit RUNS --prior nope", 2, ("--prior",)),
    ("fit RUNS --prior pooled2026 --law chinchilla", 2, ("--prior: only pooled2026 is fitted under a prior",)),
    # Comparisons.
    ("compare RUNS", 2, ("--holdout", "moescale compare --help")),
    ("compare RUNS --holdout 'tokenz > 1'", 2, ("--holdout", "'tokenz'", "nearest: tokens")),
    ("compare RUNS --holdout 'tokens > 1e99'", 2, ("--holdout", "0 of 100 runs")),
    ("compare RUNS --holdout 'tokens > 1e10' --law nope", 2, ("--law", "'nope'", "chinchilla")),
    # Laws.
    ("predict --n-params 1B --tokens 1B --law nope", 2, ("--law", "'nope'", "yun2024-recovered")),
    ("predict --n-params 1B --tokens 1B --law yun2024", 2, ("--law", "nearest: yun2024-")),
    ("predict --n-params 1B --tokens 1B --law no.toml", 2, ("no.toml", "no such file")),
    ("predict --n-params 1B --tokens 1B --law ''", 2, ("--law", "''")),
    ("predict --n-params 1B --tokens 1B --law EMPTY.toml", 2, ("EMPTY.toml", "moescale fit -o")),
    ("predict --n-params 1B --tokens 1B --law CUT.toml", 2, ("CUT.toml", "damaged", "moescale fit -o")),
    ("predict --n-params 1B --tokens 1B --law STEEP.toml", 2, ("--law", "no finite loss")),
    ("predict --n-params 1B --tokens 1B --law RUNS", 2, ("runs.csv", "not a law file")),
    # Quantities of predict.
    ("predict --n-params 1B --tokens 1B --experts 0.5", 2, ("--experts", "nearest: 1")),
    ("predict --tokens 1B", 2, ("--n-params", "is missing", "--runs")),
    ("predict --runs RUNS --n-params 1B", 2, ("--n-params", "leave out this option or --runs")),
    ("predict --runs TYPO.csv", 2, ("TYPO.csv", "no column 'tokens'", "nearest: token")),
    ("predict --runs RUNS --where nope", 2, ("nope",)),
    ("predict --runs RUNS --law STEEP.toml", 2, ("data row 1", "no finite loss")),
    ("predict --runs RUNS --law muennighoff2023 --unique-tokens 0", 2, ("--unique-tokens",)),
    ("predict --runs RUNS --last-point", 2, ("no column names the run", "run_id")),
    ("fit RUNS --seed 0.5", 2, ("--seed", "whole number")),
    ("predict --n-params 1e308 --tokens 1B", 2, ("--n-params", "nearest: 1e+18")),
    # Models of cost.
    ("cost", 2, ("NAME", "--config", "--n-params")),
    ("cost llama-3.1-8b --n-params 1B", 2, ("NAME and --n-params each name a model",)),
    ("cost lama-3.1-8b", 2, ("NAME: ", "'lama-3.1-8b'", "nearest: llama-3.1-8b,", "deepseek-v3", "--config")),
    ("cost no-such/config.json", 2, ("no such file",)),
    ("cost llama-3.1-8b --experts 4", 2, ("--experts", "--n-params", "published model")),
    ("cost llama-3.1-8b --kv-heads 2", 2, ("--kv-heads", "--n-params")),
    ("cost --config no.json", 2, ("no.json", "no such file")),
    ("cost --config ''", 2, ("--config", "empty")),
    ("cost --config EMPTY.json", 2, ("EMPTY.json", "not JSON")),
    ("cost --config GPT2.json", 2, ("GPT2.json", "'gpt2'", "mixtral")),
    ("cost --config SHORT.json", 2, ("SHORT.json", "hidden_size is missing")),
    ("cost --config LLAMA.json --kv-heads 2", 2, ("--kv-heads", "--n-params")),
    ("cost --n-params 1e4", 2, ("--n-params", "nearest: 100000")),
    # Deployments, whose options `plan` shares.
    ("plan --budget 5.15e21 --gpu nope", 2, ("--gpu", "'nope'", "a100-sxm-40gb")),
    *(
        (f"cost --n-params 1B {arguments}", 2, words)
        for arguments, words in [
            ("--gpu nope", ("--gpu", "'nope'", "a100-sxm-40gb")),
            ("--gpu h100", ("--gpu", "nearest: h100-sxm")),
            ("--max-gpus 0", ("--max-gpus", "nearest: 1")),
            ("--max-gpus 1000000000", ("--max-gpus", "nearest: 1024")),
            ("--memory-fraction 0", ("--memory-fraction", "to 1")),
            ("--utilization 0", ("--utilization", "to 1")),
            ("--prompt 0", ("--prompt", "nearest: 1")),
            ("--kv-heads 0", ("--kv-heads", "nearest: 1")),
            ("--max-num-seqs 0", ("--max-num-seqs", "nearest: 1")),
            ("--max-num-seqs x", ("--max-num-seqs", "'x'")),
            ("--usd-per-gpu-hour 0", ("--usd-per-gpu-hour", "'0'")),
            ("--weights int3", ("--weights", "bf16, fp8")),
            ("--latency nope", ("--latency", "silicon, roofline")),
            ("--latency silicon:vlm", ("--latency: unknown engine 'vlm'; nearest: vllm", "a100_sxm")),
            ("--latency silicn", ("--latency: unknown latency source 'silicn'; nearest: silicon;",)),
            ("--latency no.csv", ("no.csv", "no such file")),
            ("--kv-cache int2", ("--kv-cache", "bf16, fp8")),
            ("--reserve -1", ("--reserve: '-1' is not a number from 0 to 1e+15; nearest: 0",)),
            ("--speculative -1", ("--speculative: '-1' is not a number from 0 to 64; nearest: 0",)),
            ("--concurrency -5", ("--concurrency: '-5' is not a whole number from 1 to 100000; nearest: 1",)),
            ("--prompt -5K", ("--prompt: '-5K' is not a number from 1 to 1e+09; nearest: 1",)),
            ("--prompt -many", ("--prompt: '-many' is not a quantity",)),
            (
                "--scheduling separate --max-num-batched-tokens 2K",
                ("--max-num-batched-tokens", "add --scheduling chunked"),
            ),
            ("--gpu h200-nvl", ("--gpu: unknown GPU 'h200-nvl'; nearest: h200-sxm;",)),
            ("--reserve much", ("--reserve", "'much'")),
            ("--expert-parallel 0", ("--expert-parallel", "nearest: 1")),
            ("--replicas 1.5", ("--replicas", "whole number")),
            ("--replicas 9", ("--max-gpus", "9 replicas")),
            ("--gpus 5 --replicas 2", ("--gpus", "nearest: 4")),
            ("--gpus 1 --replicas 2", ("--gpus: 1 GPU cannot be shared",)),
            ("--scheduling mixed", ("--scheduling", "separate, chunked")),
            ("--max-ttft 0", ("--max-ttft", "seconds")),
            ("--max-tpot 5x", ("--max-tpot", "'5x'")),
            ("--years 3", ("--years", "--capital-usd-per-gpu")),
            ("--capital-usd-per-gpu 3e4", ("--power-w", "DGX")),
            ("--capital-usd-per-gpu 3e4 --power-w 700 --pue 0.9", ("--pue", "nearest: 1")),
            ("--capital-usd-per-gpu 3e4 --power-w 700 --usd-per-gpu-hour 2", ("--usd-per-gpu-hour", "give one")),
            ("--weights bf16,fp8", ("--weights",)),
            ("--host inline", ("--host", "in-line")),
            *((f"--{given}", (name,)) for given, name in LOADS),
            ("--trace no.csv", ("no.csv", "no such file")),
            ("--trace EMPTY.json", ("EMPTY.json", "empty")),
            ("--trace TEXT.csv", ("TEXT.csv", "prompt tokens")),
            ("--trace TEXT.csv --prompt 5", ("--prompt", "--trace")),
        ]
    ),
    # Questions of plan.
    *(
        (f"plan --budget {text}", 2, ("--budget", shown))
        for text, shown in [
            ("abc", "'abc'"),
            ("inf", "'inf'"),
            ("''", "empty"),
            ("0", "nearest: 1e+12"),
            ("1e40", "nearest: 1e+32"),
            ("5.15e12GB", "number of bytes, and a count is needed; nearest: 5.15e12G"),
        ]
    ),
    ("plan --budget 5e21 --experts 1.5", 2, ("--experts", "whole number")),
    ("plan --budget 5e21 --experts a,b", 2, ("--experts", "'a'")),
    ("plan --budget 5e21 --experts ,,,", 2, ("--experts", "1,4,8,16")),
    (f"plan --budget 5e21 --experts {','.join(map(str, range(1, 301)))}", 2, ("--experts", "300 expert counts", "256")),
    (
        "plan --budget 5e21 --shape mixtral --experts 1024 --match-experts 100",
        1,
        ("--experts", "up to X = 128 (256 experts", "nearest: 256"),
    ),
    ("plan --budget 5e21 --match-experts 0", 2, ("--match-experts", "nearest: 1")),
    ("plan --budget 5e21 --top-k 1", 2, ("--top-k", "top-2", "top-1")),
    (
        "plan --budget 5e21 --max-total-usd 9",
        2,
        ("--max-total-usd: total dollars cover", "give --lifetime-tokens as well"),
    ),
    ("plan --budget 5e21 --convention nope", 2, ("--convention", "paper, exact, dense")),
    ("plan --budget 5e21 --max-loss 0", 2, ("--max-loss: '0' is not a number from 1e-12 to 1000",)),
    ("plan --budget 5e21 --max-total-usd 1e16", 2, ("--max-total-usd: '1e16' is not a number from 1e-12 to 1e+15",)),
    (
        "plan --budget 5e21 --max-usd-per-mtok 1e7",
        2,
        ("--max-usd-per-mtok: '1e7' is not a number from 1e-12 to 1e+06",),
    ),
    ("plan --budget 5e21 --lifetime-tokens 1e308", 2, ("--lifetime-tokens", "nearest: 1e+24")),
    # What a newcomer types.
    ("plan --budget 5,15e21", 2, ("--budget", "decimals take a point")),
    ("plan --budget 5e21 --law chinchilla", 2, ("form of a law", "hoffmann2022", "moescale fit RUNS --law chinchilla")),
    ("plan --budget 5e21 --gpu rtx4090", 2, ("unknown GPU", "docs/serving.md")),
    ("cost --n-params 7 --experts 8", 2, ("--n-params", "7B", "7M")),
    ("cost --n-params 7GB --experts 8", 2, ("--n-params", "number of bytes", "nearest: 7G")),
    ("cost --n-params 7B --max-tpot 1GB", 2, ("--max-tpot", "is not a time")),
    (f"train {ROOT}/examples/sweep.toml --dry-run", 2, ("holds a [grid]", "moescale sweep")),
    (f"sweep {ROOT}/examples/run.toml --dry-run", 2, ("no [grid] and no [[runs]]", "moescale train")),
    ("cost --n-params 1B --memory-fraction 90", 2, ("--memory-fraction", "nearest: 0.9", "90% is 0.9")),
    # Files that are exported, and other commands.
    *(
        (f"plan --budget 5.15e21 --bootstrap 0 {arguments}", 2, (words,))
        for arguments, words in [
            ("--export hf", "--export: needs a folder; add -o FOLDER"),
            ("--export megatrno -o x", "--export: unknown format 'megatrno'; nearest: megatron"),
            ("-o x", "-o: goes with --export only"),
            ("--peak-lr 1e-3", "--peak-lr: goes with --export only"),
            ("--schedule wsd", "--schedule: goes with --export only"),
            ("--export hf -o x --recipe deepsek", "--recipe: unknown recipe 'deepsek'; nearest: deepseek"),
            ("--export hf -o x --schedule wds", "--schedule: unknown schedule 'wds'; nearest: wsd"),
            ("--export hf -o x --train-gpu h10-sxm", "--train-gpu: unknown GPU"),
            ("--export hf -o TEXT.csv", "is a file, not a folder"),
        ]
    ),
    *(
        (f"compare-models llama-3.1-8b {models} --latency roofline", 2, (words,))
        for models, words in [
            ("", "one model cannot be compared"),
            ("llama-3.1-8b", "named twice"),
            ("lama-3.1-8b", "nearest: llama-3.1-8b"),
            ("mixtral-8x7b", "as mixtral-8x7b:15T"),
            ("LLAMA.json", "needs its training tokens"),
            ("nothing.json:quality", "no such file"),
            ("olmoe-1b-7b:x", "'x' is not a quantity"),
        ]
    ),
    *(
        (f"reproduce {arguments}", 2, (words,))
        for arguments, words in [
            ("--latency silicn", "silicon"),
            ("--law hoffmann2022", "dense models"),
            ("--gpu a100", "a100"),
            ("--moe-execution all-expert", "all-experts"),
            ("--server yun", "yun2024"),
            ("--figure 7", "shows a layer"),
            ("--host-times 1ms", "not two times"),
            ("--convention papers", "paper"),
            ("-o TEXT.csv", "not a folder"),
        ]
    ),
    ("profile", 2, ("GRID",)),
    ("profile no.toml", 2, ("-o",)),
    ("profile no.toml -o t.csv", 2, ("no.toml", "no such file")),
    # Good questions without an answer.
    ("cost --n-params 671B --experts 256", 1, ("N = 671B with 256 experts (57.7T total parameters)",)),
    ("plan --budget 5.15e21 --max-tokens 300", 1, ("300 tokens", "allow more than 300 training tokens")),
    ("cost --n-params 100B --experts 64 --max-gpus 1", 1, ("weights take", "a100-sxm-40gb", "more GPUs")),
    ("cost --n-params 1B --prompt 1e9", 1, ("one request", "KV cache")),
    ("cost --n-params 100B --max-gpus 1 --reserve 3GB", 1, ("weights take", "+ reserve 3.0 GB", "38.7 GB usable")),
    ("cost --n-params 1B --max-tpot 0.01ms", 1, ("batch of 1", "per output token", "allowed 0.01 ms")),
    (
        "cost --n-params 1B --experts 8 --expert-parallel 3 --gpus 4",
        1,
        ("the expert-parallel GPUs exceed the experts, or do not divide",),
    ),
    (f"{ALONE} --max-loss 1.5", 1, ("a loss of at most 1.5", "--max-loss")),
    (f"{ALONE} --max-usd-per-mtok 1e-9", 1, ("$1e-9", "--max-usd-per-mtok")),
    (f"{ALONE} --max-loss 2.2 --max-usd-per-mtok 1e-4", 1, ("a loss of at most 2.2", "--max-usd-per-mtok")),
    (f"{ALONE} --max-gpus 1 --memory-fraction 0.001", 1, ("do not fit", "1 x a100-sxm-40gb")),
]


UNLIKELY = [
    (
        "predict --n-params 1.5 --tokens 100B",
        "--n-params 1.5 means 1.5 parameters; if that is short for more, write 1.5B",
    ),
    ("predict --n-params 1.5B --tokens 100", "--tokens 100 means 100 tokens; if that is short for more, write 100B"),
    ("cost --n-params 1B --reserve 2", "--reserve 2 means 2 bytes; if that is short for more, write 2GiB"),
    ("cost --n-params 1B --max-tpot 30", "--max-tpot 30 means 30 s; write 30ms if milliseconds are meant"),
    ("cost --n-params 1B --max-ttft 500", "--max-ttft 500 means 500 s; write 500ms if milliseconds are meant"),
]


@pytest.mark.parametrize(("line", "warning"), UNLIKELY, ids=[line for line, _ in UNLIKELY])
def test_a_number_in_an_unlikely_unit_is_taken_as_it_stands_and_warned_of(line: str, warning: str) -> None:
    found = run(*split(line))
    assert found.code == 0
    assert f"warning: {warning}\n" in found.err


def test_the_same_numbers_in_a_usual_unit_are_not_warned_of() -> None:
    assert run(*split("predict --n-params 1.5B --tokens 100B --experts 8")).err == ""
    assert run(*split("cost --n-params 1B --reserve 2GiB --max-tpot 0.03 --max-ttft 500ms")).err == ""


@pytest.mark.parametrize(("line", "code", "words"), REFUSALS, ids=[line[:60] for line, _, _ in REFUSALS])
def test_refusals_give_one_message_and_the_exit_code(
    line: str, code: int, words: tuple[str, ...], bad_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bad_files)
    before = sorted(bad_files.rglob("*"))
    found = run(*split(line))
    assert (found.code, found.out) == (code, ""), found
    messages = [text for text in found.err.splitlines() if not text.startswith("warning: ")]
    assert len(messages) == 1, found.err
    assert messages[0].startswith("moescale: ")
    missing = [word for word in words if word not in messages[0]]
    assert not missing, messages[0]
    assert "Traceback" not in found.err
    assert sorted(bad_files.rglob("*")) == before
    if code == 2 and not line.startswith("predict"):  # what all commands do alike is asked of one
        return
    as_json = run(*split(line), "--json")
    assert (as_json.code, as_json.err.splitlines()[-1]) == (code, messages[0])
    assert as_json.out == "" or json.loads(as_json.out) == {"infeasible": messages[0].removeprefix("moescale: ")}
    assert bool(as_json.out) == (code == 1)


def test_a_refused_fit_leaves_the_law_that_was_there(tmp_path: Path) -> None:
    kept = tmp_path / "law.toml"
    kept.write_text("precious", encoding="utf-8")
    assert run("fit", RUNS, "--where", "tokens > 1e99", "-o", kept).code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["law.toml"]
    assert kept.read_text(encoding="utf-8") == "precious"
