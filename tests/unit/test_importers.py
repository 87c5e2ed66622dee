"""Run tables from other programs' runs: each tracker's format, the mapping, the guesses, and hostile files."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import answer_of, run
from moescale.errors import InputError
from moescale.runs.importers import import_runs, rule_of
from moescale.runs.importers.rows import rows_of
from moescale.runs.importers.tracked_run import TrackedRun, scalar
from moescale.runs.table import read_runs, write_runs
from reference_data import ROOT
from run_tables import write


def only(columns: Mapping[str, Any]) -> dict[str, Any]:
    """The one row of a table."""
    return {name: values.tolist()[0] for name, values in columns.items()}


def a_run(params: Mapping[str, Any], metrics: Mapping[str, list[tuple[float, float]]], name: str = "a") -> TrackedRun:
    return TrackedRun(name, name, dict(params), dict(metrics))


SIZED: dict[str, Any] = {"n_params_dense": 1e6, "n_experts": 4.0}


def test_trainer_reads_the_last_checkpoint_with_the_size_of_its_configuration() -> None:
    found = import_runs("trainer", ROOT / "examples" / "trainer")
    rows = {name: values.tolist() for name, values in found.columns.items()}
    assert rows["name"] == ["dense", "experts4"]
    assert rows["n_experts"] == [1, 4]
    assert rows["top_k"] == [1, 2]
    # 40 steps of 2 x 4 sequences of 32 tokens, which only the count of FLOPs tells.
    assert rows["tokens"] == [10240, 10240]
    # transformers counts 58,720 parameters, of which two embedding tables hold 64 x 32 each.
    assert rows["n_params_total"][1] == 58_720 - 2 * 64 * 32
    state = json.loads((ROOT / "examples" / "trainer" / "dense" / "trainer_state.json").read_text())
    assert rows["loss"][0] == [entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry][-1]
    assert found.left_out == ()


def test_the_command_writes_a_table_that_fit_reads(tmp_path: Path) -> None:
    trainer, table = str(ROOT / "examples" / "trainer"), tmp_path / "runs.csv"
    answer = answer_of("import", "trainer", trainer, "-o", str(table))
    assert (answer["n_runs"], answer["table"], answer["left_out"]) == (2, str(table), [])
    assert len(read_runs(table)) == 2
    for arguments, words in (
        (("trianer", "."), ("'trianer'", "nearest: trainer")),
        (("trainer", "nowhere"), ("no such file or folder",)),
        (("trainer", trainer, "-o", "runs.xls"), (".xls", "known: .csv")),
    ):
        found = run("import", *arguments)
        assert (found.code, found.out, found.err.count("\n")) == (2, "", 1)
        assert [word for word in words if word not in found.err] == []


def test_a_trainer_that_stopped_early_is_left_out_with_the_reason(tmp_path: Path) -> None:
    state = {
        "global_step": 10, "max_steps": 40, "num_input_tokens_seen": 100, "log_history": [{"step": 10, "loss": 3.0}],
    }  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(json.dumps(state | {"n_params_dense": 5.0}))
    with pytest.raises(InputError, match="at step 10 of 40"):
        import_runs("trainer", tmp_path)
    row = only(import_runs("trainer", tmp_path, unfinished=True).columns)
    assert (row["tokens"], row["loss"], row["n_experts"]) == (100, 3.0, 1)


RUNS_OF_WANDB = (
    '"Name","State","Tags","config.n_layer","config.n_embd","config.tokens_per_batch","config.moe.num_experts",'
    '"_step","eval/loss","train/loss","gpu.util"\n'
    '"a","finished","x, ""y""","12","768","524288","8","10000","2.9812","3.0","97.5%"\n'
    '"b","finished","","12","768","524288","","20000","3.0812","3.1","96%"\n'
    '"c","crashed","","12","768","524288","8","5000","","3.1",""\n'
)


def test_wandb_export_with_columns_of_any_name(tmp_path: Path) -> None:
    path = write(tmp_path, RUNS_OF_WANDB.encode("utf-8-sig"))
    with pytest.raises(InputError, match=r"no size.*--set n_params_dense=EXPR") as caught:
        import_runs("csv", path)
    assert "config.n_layer" in str(caught.value)
    size = dict([rule_of("n_params_dense=12 * config.n_layer * `config.n_embd` ** 2")])
    found = import_runs("csv", path, mapping=size)
    columns = {name: values.tolist() for name, values in found.columns.items()}
    assert columns["name"] == ["a", "b"]
    assert columns["n_params_dense"] == [84934656, 84934656]
    assert columns["n_experts"] == [8, 1]  # an empty cell of a run that speaks of no experts
    assert columns["tokens"] == [10000 * 524288, 20000 * 524288]
    assert columns["loss"] == [2.9812, 3.0812]
    assert columns["gpu.util"] == [0.975, 0.96]
    assert columns["Tags"][0] == 'x, "y"'
    assert "crashed" in found.left_out[0][1]
    assert import_runs("wandb", path, mapping=size).rules == found.rules
    assert "tokens from 'step * `config.tokens_per_batch`' (guessed): 2 runs" in found.rules


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        (  # semicolons, decimal commas, groups of digits, a comma within a name
            "a.csv",
            'Model;"Params, dense (M)";Params (M);Tokens (B);Experts;Validation loss\na;1;12,5;1,25;1;3,125\n'
            "b;2;1.250,5;10;8;2,5\n",
            [(12.5e6, 1.25e9, 1, 3.125), (1250.5e6, 10e9, 8, 2.5)],
        ),
        (  # tabs, thousands separators, scientific notation
            "a.tsv",
            'run\tmodel_size\ttraining tokens\tfinal loss\na\t"1,234,567"\t2 000 000 000\t3.1e0\n'
            'b\t"12,345,678"\t4 000 000 000\t29E-01\n',
            [(1234567, 2e9, 1, 3.1), (12345678, 4e9, 1, 2.9)],
        ),
        ("a.csv", "N,D,E,L\n7B,140B,1,2.1\n1B,20B,8,2.3\n", [(7e9, 140e9, 1, 2.1), (1e9, 20e9, 8, 2.3)]),
        (
            "a.csv",
            "numParams_in_millions,tokens_billions,numExperts,evalLoss,dead\n125,2.5,4.375,3.0,-\n350,7,8,2.9,n/a\n",
            [(125e6, 2.5e9, 4.375, 3.0), (350e6, 7e9, 8, 2.9)],
        ),
        (  # W&B's recipe: frames of mappings
            "a.csv",
            ",summary,config,name\n0,\"{'_step': 1000, 'val_loss': 3.2, 'x': nan}\",\"{'n_params': 1000000, "
            "'num_experts': 4, 'tokens_per_step': 524288}\",a\n",
            [(1e6, 1000 * 524288, 4, 3.2)],
        ),
        (
            "a.jsonl",
            '{"config": {"n_params": 1e6, "experts": 2}, "tokens": 1e9, "eval": {"loss": 3.0}}\n',
            [(1e6, 1e9, 2, 3.0)],
        ),
        (  # MLflow's
            "a.csv",
            "run_id,status,params.num_experts,params.n_params_total,metrics.eval_loss,metrics.tokens_seen\n"
            "ab,FINISHED,8,1e8,2.9,2e9\nac,RUNNING,8,1e8,2.8,2e9\n",
            [(1e8, 2e9, 8, 2.9)],
        ),
    ],
)
def test_tables_of_any_columns(tmp_path: Path, name: str, text: str, rows: list[tuple[float, ...]]) -> None:
    columns = import_runs("csv", write(tmp_path, text, name)).columns
    found = [columns[key].tolist() for key in ("n_params_total", "tokens", "n_experts", "loss")]
    assert list(zip(*found, strict=True)) == rows
    assert read_runs(write_runs(columns, tmp_path / "runs.csv")).loss.tolist() == [row[-1] for row in rows]


def test_a_table_that_fit_reads_stays_as_it_is(tmp_path: Path) -> None:
    source = ROOT / "tests" / "data" / "public" / "olmo_ladder.csv"
    found = import_runs("csv", source)
    written, given = read_runs(write_runs(found.columns, tmp_path / "runs.csv")), read_runs(source)
    for name in ("n_params", "tokens", "experts", "loss"):
        np.testing.assert_array_equal(getattr(written, name), getattr(given, name))
    assert set(given.columns) <= set(written.columns)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("params,tokens,val/bpb\n1e6,1e9,1.1\n", ("bits per byte", "--set 'loss=`val/bpb` * 0.6931 * BYTES'")),
        ("Step,a - loss,a - loss__MIN\n1,2,2\n", ("an export of a chart",)),
        ("params,eval_loss\n1e6,3.0\n1e7,2.9\n", ("and 1 more: no tokens", "--set tokens=EXPR", "names: params")),
        ("params,tokens\n1e6,3e9\n", ("no loss", "--set loss=EXPR")),
        *(
            (f"params,tokens,experts,{header}\n1e8,1e9,8,4.5\n", words)
            for header, words in (
                ("val ppl", ("'val ppl' is a perplexity", "natural logarithm")),
                ("Perplexity", ("'Perplexity' is a perplexity",)),
                ("loss (bits/token)", ("in bits per token", "--set 'loss=`loss (bits/token)` * 0.6931'")),
                ("Val. BPB", ("in bits per byte", "* 0.6931 * BYTES'")),
            )
        ),
        ("a\n", ("there is no run in it",)),
        ("", ("the file is empty",)),
    ],
)
def test_a_table_that_lacks_something_or_has_it_in_other_units_is_told_what_to_state(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        import_runs("csv", write(tmp_path, text))
    assert [word for word in words if word not in str(caught.value)] == []


# Headers as W&B's exports, tables of papers and spreadsheets have them: a row, and the columns that are guessed from it.
HEADERS = [
    ("Run,# Experts,Active Params (M),Total Params (M),Tokens (B),Val CE", "a,8,125,520,2.5,3.1",
     {"n_params_active": 125e6, "n_params_total": 520e6, "tokens": 2.5e9, "n_experts": 8, "loss": 3.1}),
    ("Name,State,Created,model.num_experts,model.moe_top_k,model/non_embedding_params,tokens_seen,train/loss,val/loss,val/aux_loss",
     "a,finished,2026,8,2,1.25e8,2.6e9,3.0,3.1,.01",
     {"n_params_total": 125e6, "tokens": 2.6e9, "n_experts": 8, "top_k": 2, "loss": 3.1}),
    ("Model,N (params),D (tokens),E,Final loss (nats)", "a,125M,2.5B,8,3.1",
     {"n_params_total": 125e6, "tokens": 2.5e9, "n_experts": 8, "loss": 3.1}),
    ("name,params,tokens,experts,eval/c4_en-validation/CrossEntropyLoss,eval/c4_en-validation/Perplexity", "a,1e8,2e9,8,3.1,22.2",
     {"n_params_total": 1e8, "loss": 3.1}),
    ("run_name,Number of experts,Params (non-embedding),Training tokens [B],C4 val loss", "a,8,1.25e8,2.5,3.1",
     {"n_params_total": 125e6, "tokens": 2.5e9, "n_experts": 8, "loss": 3.1}),
    ("id,expert count,parameter count,token count,nll", "a,8,125000000,2500000000,3.1",
     {"n_params_total": 125e6, "tokens": 2.5e9, "n_experts": 8, "loss": 3.1}),
    ("run,args.num_experts,args.seq_length,args.global_batch_size,iteration,n_params,lm loss validation,lm loss validation ppl",
     "a,8,2048,512,2400,1e8,3.1,22.2", {"tokens": 2048 * 512 * 2400, "n_experts": 8, "loss": 3.1}),
    ("Config;#Experts;Params w/o emb. (M);Data (B tokens);Cross-entropy (val)", "a;8;125,5;2,5;3,1",
     {"n_params_total": 125.5e6, "tokens": 2.5e9, "n_experts": 8, "loss": 3.1}),
    ("Model,Activated Parameters,Total Parameters,Experts per token,No. of Experts,Pretraining Tokens,Valid. Loss",
     "a,3B,30B,8,128,36T,1.9", {"n_params_active": 3e9, "n_params_total": 30e9, "top_k": 8, "n_experts": 128, "tokens": 36e12, "loss": 1.9}),
    ("Arch,Size (M params),Tokens (10^9),Routed experts,Shared experts,Held-out loss [nats/token]", "a,125,2.5,64,2,3.1",
     {"n_params_total": 125e6, "tokens": 2.5e9, "n_experts": 64, "loss": 3.1}),
]  # fmt: skip


@pytest.mark.parametrize(("header", "row", "wanted"), HEADERS, ids=lambda v: v[:20] if isinstance(v, str) else "")
def test_columns_are_guessed_from_names_as_people_write_them(
    tmp_path: Path, header: str, row: str, wanted: dict[str, float]
) -> None:
    found = import_runs("csv", write(tmp_path, f"{header}\n{row}\n"))
    columns = only(found.columns)
    assert {name: columns[name] for name in wanted} == pytest.approx(wanted)
    assert any("(guessed)" in rule for rule in found.rules)


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        ("params,tokens,experts,eval/c4/CE loss,eval/pile/CE loss", "1e8,2e9,8,3.1,2.7",
         ("no loss: 'eval/c4/CE loss' and 'eval/pile/CE loss' may be meant", "--set loss=EXPR")),
        ("Total params,Non-embedding params,tokens,# experts,val_loss", "1.6e8,1.25e8,2.5e9,8,3.1",
         ("no size: 'Non-embedding params' and 'Total params' may be meant", "--set n_params_total=EXPR")),
        ("params,tokens seen,total tokens,experts,loss", "1e8,1e9,2e9,8,3.1",
         ("no tokens: 'tokens seen' and 'total tokens' may be meant", "--set tokens=EXPR")),
        ("params,tokens,experts,num experts,loss", "1e8,1e9,8,16,3.1", ("no n_experts: 'experts' and 'num experts'",)),
        ("params,step,max_seq_len,block_size,global_batch_size,loss", "1e8,10,2048,1024,8,3.1", ("'block_size'", "'max_seq_len'", "differ",)),
        ("arch,experts used,width,score", "a,yes,512,3.1",
         ("no size: ", "no n_experts: ", "no tokens: ", "no loss: ",
          "--set n_params_dense=EXPR --set n_experts=EXPR --set tokens=EXPR --set loss=EXPR")),
    ],
)  # fmt: skip
def test_columns_that_could_be_either_or_none_are_refused_with_all(
    tmp_path: Path, header: str, row: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        import_runs("csv", write(tmp_path, f"{header}\n{row}\n"))
    assert [word for word in words if word not in str(caught.value)] == []


def test_columns_of_one_value_are_one_and_a_size_too_many_is_left_out(tmp_path: Path) -> None:
    found = import_runs("csv", write(tmp_path, 'params,tokens,eval_loss\n1e6,"1,500",3.0\n'))
    assert found.warnings[0] == "commas in column 'tokens' are taken as thousands separators: 1,500 is 1500"
    rows = "params,tokens seen,total tokens (B),experts,loss\n1e8,2e9,2,8,3.1\n"
    assert only(import_runs("csv", write(tmp_path, rows)).columns)["tokens"] == 2e9
    rows = "active params,params,non-embedding params,tokens,experts,loss\n1e8,6e8,5e8,2e9,8,3.1\n"
    found = import_runs("csv", write(tmp_path, rows))
    assert "n_params_total" not in found.columns
    assert found.warnings[0].startswith("n_params_total is left out: 'params' and 'non-embedding params' may be meant")
    # n_params_nonemb is the body that one token meets, not the size of the whole model.
    rows = "n_params_dense,n_params_nonemb,tokens,n_experts,loss\n2e8,1e8,1e9,8,3.1\n"
    assert "n_params_total" not in import_runs("csv", write(tmp_path, rows)).columns


SHEET = "Model,Params (M),Tokens (B),# Experts,Val loss"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("a,~125,2.5,8,3.1", "no size: 'Params (M)' is '~125', not a positive number"),
        ("a,125,0,8,3.1", "no tokens: 'Tokens (B)' is 0, not a positive number"),
        ("a,125,2.5,dense,3.1", "no n_experts: '# Experts' is 'dense', not a positive number; dense models have 1"),
        ("a,125,2.5,8,3.1 ± 0.1", "no loss: 'Val loss' is '3.1 ± 0.1', not a positive number"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path: Path, row: str, words: str) -> None:
    for rows in (row, f"b,125,2.5,8,3.0\n{row}"):  # where no other run says that the column is one of numbers, too
        path = write(tmp_path, f"{SHEET}\n{rows}\n")
        if rows == row:
            with pytest.raises(InputError, match=re.escape(words)):
                import_runs("csv", path)
        else:
            assert words in import_runs("csv", path).left_out[0][1]


def test_a_loss_of_nan_is_marked_and_an_empty_one_left_out(tmp_path: Path) -> None:
    rows = [SHEET, "a,125,2.5,8,NaN", "b,125,2.5,8,", "c,125,2.5,NaN,3.0", "d,125,2.5,8,Infinity"]
    found = import_runs("csv", write(tmp_path, "\n".join(rows)))
    assert found.columns["name"].tolist() == ["a", "c", "d"]
    assert found.columns["diverged"].tolist() == [True, False, True]
    assert found.columns["n_experts"].tolist() == [8, 1, 8]
    assert [run[:1] for run, _ in found.left_out] == ["b"]
    assert read_runs(write_runs(found.columns, tmp_path / "runs.csv")).loss.tolist() == [3.0]


def test_lines_that_excel_puts_above_a_table(tmp_path: Path) -> None:
    head, rows = SHEET.replace(",", ";"), "a;125;2,5;8;3,1\n"
    assert only(import_runs("csv", write(tmp_path, f"sep=;\n{head}\n{rows}")).columns)["loss"] == 3.1
    for title in ("Runs of 2026;;;;", "Runs of 2026;;;;\n;;;;"):
        with pytest.raises(InputError, match="names one of 5 columns; begin titles above the names with #"):
            import_runs("csv", write(tmp_path, f"{title}\n{head}\n{rows}"))
    with pytest.raises(InputError, match=r"looks like UTF-16.*as CSV UTF-8"):
        import_runs("csv", write(tmp_path, f"{head}\n{rows}".replace(";", "\t").encode("utf-16"), "a.txt"))


@pytest.mark.system
def test_fit_names_the_command_that_makes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = [(n, d) for n in (10, 30, 90) for d in (1, 3, 9)]
    losses = [1.7 + 400 / (n * 1e6) ** 0.34 + 400 / (d * 1e9) ** 0.28 for n, d in sizes]
    rows = [f"{n};{d};{loss:.4f}" for (n, d), loss in zip(sizes, losses, strict=True)]
    write(tmp_path, "\n".join(["params_M;tokens (B);my score", *rows]), "table.csv")
    found = run("fit", "table.csv", "--law", "chinchilla")
    assert found.code == 2
    command = found.err.split("`")[1]
    assert command == "moescale import csv table.csv -o table-runs.csv"
    words = shlex.split(command)[1:]
    assert "--set loss=EXPR" in run(*words).err
    assert run(*words, "--set", "loss=my score").code == 0
    assert answer_of("fit", "table-runs.csv", "--law", "chinchilla")["n_runs"] == 9
    imported = answer_of("import", "csv", "table.csv", "--set", "loss=my score", "--set", "n_experts=8")
    assert "n_experts from 8.0: 9 runs" in imported["rules"]
    assert "--set: 'loss' is not COLUMN=EXPR" in run("import", "csv", "table.csv", "--set", "loss").err


CURVE: list[tuple[float, float]] = [(step, value) for step, value in enumerate([5.0, 3.0, 2.0, 4.0, 6.0])]


def test_columns_are_set_to_names_expressions_numbers_and_texts() -> None:
    stated = ("n_params_dense=12 * n_layer * n_embd ** 2", "n_experts=1", "tokens=step * 524288", "loss=`ce/bits` * 0.5",
              "name=title", "schedule='cosine'", "lr=optim/lr")  # fmt: skip
    run = a_run({"n_layer": 12.0, "n_embd": 768.0, "title": "gpt"}, {"ce/bits": [(9, 8.0)], "optim/lr": [(9, 0.1)]})
    row = only(rows_of([run], dict(map(rule_of, stated))).columns)
    assert (row["n_params_dense"], row["n_experts"], row["tokens"], row["loss"]) == (84934656, 1, 9 * 524288, 4.0)
    assert (row["name"], row["schedule"], row["lr"]) == ("gpt", "cosine", 0.1)
    row = only(rows_of([a_run({**SIZED, "batch": 10.0}, {"some/curve": CURVE})], dict(map(rule_of, ("tokens=step * batch",
               "loss=some/curve")))).columns)  # fmt: skip
    assert (row["loss"], row["tokens"]) == (6.0, 40.0)  # the tokens of the loss's step
    for text in ("tokens", "=3", "tokens=", " = "):
        with pytest.raises(InputError, match="is not COLUMN=EXPR"):
            rule_of(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss=eval/los", ("'eval'", "nearest: eval/loss")),
        ("tokens=step * bach", ("'bach'", "nearest: batch")),
        ("tokens=step *", ("--set tokens, expression",)),
        ("tokens=step * config.bach", ("'config.bach'", "--set tokens")),
        ("tokens=batch(1)", ("'batch(1.0)' is not available",)),
        ("tokens=1e400", ("no tokens", "gives no positive number")),
    ],
)
def test_a_bad_expression_is_told_with_its_column(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        rows_of([a_run({**SIZED, "batch": 10.0}, {"eval/loss": CURVE})], dict([rule_of(text)]))
    assert [word for word in words if word not in str(caught.value)] == []


def test_one_loss_serves_all_runs_and_one_of_validation_stands_before_one_of_training() -> None:
    params = {**SIZED, "tokens": 10.0}
    both = a_run(params, {"train/loss": CURVE, "val/loss": [(1, 3.5)]}, "both")
    less = a_run(params, {"train/loss": CURVE}, "less")
    found = rows_of([both, less])
    assert only(found.columns)["loss"] == 3.5
    assert found.left_out[0][0] == "less (less)"
    assert "no loss" in found.left_out[0][1]
    assert only(rows_of([less]).columns)["loss"] == 4.0  # the mean of all five
    assert "loss from 'train/loss' (mean of last 100) (guessed): 1 run" in rows_of([less]).rules
    # The mean over a run that Trainer logs is no loss.
    logged = {"train/loss": [(1.0, 3.0), (2.0, 2.5)], "train/train_loss": [(2.0, 2.8)], "tokens": [(2.0, 1e9)]}
    assert only(rows_of([a_run(SIZED, logged)]).columns)["loss"] == np.mean([3.0, 2.5])


def test_a_run_that_speaks_of_experts_without_their_number_is_not_taken_for_dense() -> None:
    params = {"n_params_dense": 1e6, "tokens": 10.0}
    metrics = {"eval_loss": CURVE}
    assert only(rows_of([a_run(params, metrics)]).columns)["n_experts"] == 1
    with pytest.raises(InputError, match="mention experts"):
        rows_of([a_run({**params, "moe_E": 8.0}, metrics)])


def test_sizes_come_from_a_configuration_among_the_params() -> None:
    config = json.loads((ROOT / "examples" / "trainer" / "experts4" / "config.json").read_text())
    params = {f"model.{key}": value for key, value in config.items() if scalar(value) is not None}
    row = only(rows_of([a_run({**params, "tokens": 10.0}, {"eval_loss": CURVE})]).columns)
    # Two layers 32 wide: attention 4 x 32 x 32 with norms of 16 and 16, FFN 3 x 32 x 96, norms 2 x 32; a final norm of 32.
    layer = 4 * 32 * 32 + 2 * 16 + 2 * 32
    dense = 2 * (layer + 3 * 32 * 96) + 32
    assert row["n_params_dense"] == dense
    assert row["n_params_active"] == dense + 3 * 32 * 96 + 4 * 32
    assert row["n_params_total"] == dense + 3 * 3 * 32 * 96 + 4 * 32
    assert (row["n_experts"], row["top_k"]) == (4, 2)


def test_other_scalars_are_columns_and_what_a_mapping_replaces_keeps_its_value() -> None:
    run = a_run({**SIZED, "tokens": 10.0, "loss": 9.0, "flagged": "maybe", "opt": "adam"}, {"eval_loss": CURVE})
    row = only(rows_of([run], {"tokens": "77"}).columns)
    assert (row["tokens"], row["logged_tokens"], row["opt"], row["eval_loss"]) == (77, 10, "adam", 6.0)
    assert row["logged_flagged"] == "maybe"


def test_the_size_that_most_runs_have_decides() -> None:
    metrics = {"eval_loss": CURVE}
    total = {"n_params_total": 5.0, "tokens": 10.0, "n_experts": 4.0}
    runs = [a_run(total, metrics, "a"), a_run(total, metrics, "b"), a_run({**SIZED, "tokens": 10.0}, metrics, "c")]
    found = rows_of([*runs, a_run({"n_params_total": 7.0, "n_experts": 1.0, "tokens": 10.0}, metrics, "dense")])
    assert found.columns["name"].tolist() == ["a", "b", "dense"]
    assert "n_params_dense" not in found.columns
    assert "no n_params_total" in found.left_out[0][1]


NAMES = st.sampled_from(
    ["tokens", "loss", "eval_loss", "n_experts", "n_params_dense", "n_params_total", "diverged", "flagged", "name", "step",
     "imported_from", "logged_tokens", "top_k", "moe.num_experts", "global_step", "seq_len", "batch_tokens", "é b"]
)  # fmt: skip
NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1.0, 4.0, 2.5, 1e9])
RUNS = st.builds(
    a_run,
    st.dictionaries(
        NAMES, NUMBERS | st.booleans() | st.text(max_size=5).filter(lambda t: "\0" not in t and t.isprintable())
    ),
    st.dictionaries(NAMES, st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=4)),
)


@pytest.mark.system
@given(st.lists(RUNS, min_size=1, max_size=4))
def test_whatever_was_logged_the_table_is_one_that_fit_reads(runs: list[TrackedRun]) -> None:
    try:
        found = rows_of(runs)
    except InputError:  # no run makes a row, and the error says why
        return
    assert found.n_runs + len(found.left_out) == len(runs)
    flags = [found.columns[name] for name in ("diverged", "flagged") if name in found.columns]
    out = np.any([flag.astype(bool) for flag in flags], axis=0) if flags else np.zeros(found.n_runs, dtype=bool)
    if not out.all():
        table = read_runs({name: values.tolist() for name, values in found.columns.items()})
        assert len(table) == int((~out).sum())


def test_of_a_step_logged_twice_the_last_value_counts() -> None:
    run = a_run({}, {"loss": [(1, 5.0), (2, 4.0), (1, 3.0), (math.nan, 9.0)], "late": [(1, 2.0)]})
    curve = run.metrics["loss"]
    assert curve.steps.tolist()[:2] == [1, 2]
    assert curve.values.tolist() == [3.0, 4.0, 9.0]
    assert (curve.until(1.5), curve.until(0.5), curve.until(math.nan)) == (3.0, 9.0, 9.0)
    assert run.value("late", 0.5) is None


@pytest.mark.parametrize("tracker", ["mlflow", "wandb", "tensorboard", "trainer"])
def test_a_folder_without_runs_and_a_missing_one_are_told(tmp_path: Path, tracker: str) -> None:
    with pytest.raises(InputError, match="there is no"):
        import_runs(tracker, tmp_path)
    with pytest.raises(InputError, match="no such file or folder"):
        import_runs(tracker, tmp_path / "nowhere")
    with pytest.raises(InputError, match="nearest: mlflow"):
        import_runs("mlfow", tmp_path)


@pytest.mark.parametrize(("tracker", "name"), [("mlflow", "m.db"), ("tensorboard", "a.tfevents.1")])
def test_a_tracker_without_its_library_is_told_what_to_install(
    tmp_path: Path, tracker: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, tracker, None)
    (tmp_path / name).write_bytes(b"SQLite format 3\0")
    with pytest.raises(InputError, match=r"which is not installed.*\[track\]"):
        import_runs(tracker, tmp_path / name)
