"""What a SWEEP.toml expands to, and the run table that its rows are added to."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from examples import daily
from moescale.errors import InputError
from moescale.experiments.run import add_rows, check_same, read_result
from moescale.experiments.settings import settings_of
from moescale.experiments.sweep_file import expand, read_sweep
from moescale.runs.table import read_runs
from reference_data import ROOT
from stub_training import GRID, document, made

# The grid.


def test_what_all_runs_share_is_in_each(tmp_path: Path) -> None:
    sweep = made(
        tmp_path,
        name="a",
        seed=3,
        model={"top_k": 1, "moe_every": 1},
        training={"sequence_tokens": 64, "batch_tokens": 1024, "peak_lr": 0.001},
        data={"corpus": "c"},
    )
    assert {run.name for run in sweep.runs} == {f"a-e{e}-{d}x2-1m" for e in (1, 4) for d in (64, 128)}
    for run in sweep.runs:
        s = run.settings
        assert (s.seed, s.model.top_k, s.model.moe_every, s.training.peak_lr) == (3, 1, 1, 0.001)
        assert s.data.corpus == str(Path("c").absolute())
        assert s.output == str((tmp_path / "sweep" / run.name).absolute())
    flops = [run.training_flops for run in sweep.runs]
    assert flops == sorted(flops)


def test_a_grid_varies_what_a_list_may_and_tokens_as_a_multiple_of_the_built_size(tmp_path: Path) -> None:
    sweep = made(tmp_path, grid={"n_params": "1M", "experts": [1, 8], "tokens_per_param": [5, 20]})
    for run in sweep.runs:
        ratio = 5 if "-5per" in run.name else 20
        assert run.settings.training.tokens == round(ratio * run.n_params_dense)
    assert len({run.n_params_dense for run in sweep.runs}) == 1
    runs = made(tmp_path, grid={**GRID, "peak_lr": [1e-3, 2e-3]}).runs
    assert len(runs) == 8
    assert {(run.settings.model.experts, run.settings.training.peak_lr) for run in runs} >= {(4, 1e-3), (4, 2e-3)}
    (run,) = expand(listed({"d_model": 64, "n_layers": 2, "tokens_per_param": 20})).runs
    assert run.settings.training.tokens == round(20 * run.n_params_dense)


def test_a_run_has_one_length_whatever_its_schedule(tmp_path: Path) -> None:
    training = {"schedule": "wsd", "sequence_tokens": 64, "batch_tokens": 1024}
    sweep = made(tmp_path, grid={**GRID, "tokens": ["4M", "1M"], "seeds": [0, 1]}, training=training)
    assert len(sweep.runs) == 16
    assert {run.settings.training.tokens for run in sweep.runs} == {1_000_000, 4_000_000}
    assert {run.name for run in sweep.runs} >= {"e4-64x2-4m", "e4-64x2-1m-s1"}


SIZES = st.lists(st.sampled_from([(64, 2), (64, 4), (128, 2)]), min_size=1, max_size=3, unique=True)
COUNTS = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True)
LENGTHS = st.lists(st.integers(1_000, 10**12), min_size=1, max_size=3, unique=True)


@daily(12)
@given(sizes=SIZES, experts=COUNTS, tokens=LENGTHS)
def test_every_combination_is_one_run_and_its_file_says_all(
    sizes: list[tuple[int, int]], experts: list[int], tokens: list[int]
) -> None:
    sweep = expand(document(grid={"shapes": [list(size) for size in sizes], "experts": experts, "tokens": tokens}))
    assert len({run.name for run in sweep.runs}) == len(sizes) * len(experts) * len(tokens)
    assert {(run.settings.model.experts, run.settings.training.tokens) for run in sweep.runs} == {
        (e, d) for e in experts for d in tokens
    }
    for run in sweep.runs:
        assert settings_of(tomllib.loads(tomli_w.dumps(run.settings.to_dict()))) == run.settings


def listed(*runs: dict[str, Any], **tables: Any) -> dict[str, Any]:
    return {key: value for key, value in document(runs=list(runs), **tables).items() if key != "grid"}


def test_a_list_holds_each_run_as_it_is_stated() -> None:
    training = {"sequence_tokens": 64, "batch_tokens": 1024, "peak_lr": 0.002, "warmup": 0.1}
    small = {"n_params": "1M", "tokens": "30M"}
    wide = {"d_model": 128, "n_layers": 2, "head_dim": 32, "experts": 8, "tokens": "4M", "batch_tokens": 4096}
    sweep = expand(listed(small, wide | {"peak_lr": 0.01, "warmup": 0.02, "seed": 7}, training=training, name="a"))
    first, second = sorted(sweep.runs, key=lambda run: run.settings.model.experts)
    assert (first.name, second.name) == ("a-e1-1m-30m", "a-e8-128x2-4m-s7")
    stated = first.settings.training
    assert (stated.batch_tokens, stated.peak_lr, stated.warmup, stated.tokens) == (1024, 0.002, 0.1, 30_000_000)
    stated = second.settings.training
    assert (stated.batch_tokens, stated.peak_lr, stated.warmup, second.settings.seed) == (4096, 0.01, 0.02, 7)
    assert (second.settings.model.d_model, second.settings.model.head_dim, stated.tokens) == (128, 32, 4_000_000)
    flops = [run.training_flops for run in sweep.runs]
    assert flops == sorted(flops)
    assert second.to_dict()["peak_lr"] == 0.01


def test_a_list_of_all_combinations_is_the_grid() -> None:
    runs = [
        {"d_model": d, "n_layers": 2, "experts": e, "tokens": tokens, "seed": seed}
        for d in (64, 128) for e in (1, 4) for tokens in ("1M", "4M") for seed in (0, 3)
    ]  # fmt: skip
    assert expand(listed(*runs)).runs == expand(document(grid={**GRID, "tokens": ["1M", "4M"], "seeds": [0, 3]})).runs


def test_runs_that_differ_in_batch_or_rate_alone_have_names_that_stay_when_the_list_grows() -> None:
    run = {"d_model": 64, "n_layers": 2, "tokens": "1M"}
    runs = [run, run | {"batch_tokens": 2048}, run | {"batch_tokens": 2048, "peak_lr": 0.01}, run | {"d_ffn": 256}]
    training = {"sequence_tokens": 64, "batch_tokens": 1024, "peak_lr": 0.002}
    names = ["e1-64x2-1m", "e1-64x2-1m-2", "e1-64x2-1m-3", "e1-64x2-1m-4"]
    for count in (1, 2, 3, 4):
        found = expand(listed(*runs[:count], training=training)).runs
        assert {each.name for each in found} == set(names[:count])
    stated = {each.name: (each.settings.training.batch_tokens, each.settings.model.d_ffn) for each in found}
    assert [stated[name] for name in names] == [(1024, 192), (2048, 192), (2048, 192), (1024, 256)]


RUN: dict[str, Any] = {"n_params": "1M", "tokens": "1M"}

# What is wrong with a grid, and with a list of runs.
GRIDS = [
    ({"grid": {**GRID, "tokens": ["1M", 1e6]}}, "are the same run"),
    ({"grid": {**GRID, "experts": [4, 4]}}, "entries 1 and 2 of [grid] are the same run, e4-64x2-1m"),
    ({"grid": {"n_params": ["10M", "10.001M"], "tokens": "1M"}}, "entries 1 and 2 of [grid] are the same run, e1-10m-1m"),
    ({"grid": {**GRID, "n_params": "1M"}}, "d_model does not go with n_params; state one of the two"),
    ({"grid": {"n_params": "1M"}}, "[grid], [training]: tokens is missing"),
    ({"grid": {**GRID, "tokens_per_param": 20}}, "tokens does not go with tokens_per_param; state one of the two"),
    ({"grid": {**GRID, "expert": 1}}, "unknown key 'expert'; nearest: experts"),
    ({"grid": {**GRID, "shapes": [[768]]}}, "n_layers is missing"),
    ({"grid": {**GRID, "shapes": [{"d_model": 64, "layers": 2}]}}, "unknown key 'layers'"),
    ({"grid": {**GRID, "shapes": []}}, "is empty"),
    ({"grid": {**GRID, "experts": 1.5}}, "1.5 is not a whole number"),
    ({"grid": {**GRID, "tokens": ["1GB"]}}, "'1GB' is a number of bytes, and a count is needed; nearest: 1G"),
    ({"grid": 5}, "is not a table"),
    ({"grid": {**GRID, "tokens": list(range(1, 10**4)), "seeds": list(range(9))}}, "at most 10,000 are taken"),
    ({"model": {"experts": 4}}, "state it in [grid]"),
    ({"output": "x"}, "output belongs to one run"),
    ({"name": "../x"}, "name: "),
    ({"name": "x" * 65}, "name: "),
    ({"folder": "\0"}, "is not a text"),
    ({"folder": ""}, "'' is not a text"),
    ({"trainig": {}}, "unknown key 'trainig'"),
    ({"execute": {"on": "cloud"}}, "unknown on 'cloud'"),
    ({"execute": {"slurm": 5}}, "is not a table"),
    ({"execute": {"jobs": 0}}, "jobs: 0 is not at least 1; nearest: 1"),
]  # fmt: skip
LISTS = [
    ({"runs": [RUN], "grid": GRID}, "holds [grid] and [[runs]]"),
    ({"runs": []}, "holds no [grid] and no [[runs]]"),
    ({"runs": [RUN, RUN]}, "entries 1 and 2 of [[runs]] are the same run, e1-1m-1m"),
    ({"runs": [RUN, RUN | {"batch_tokens": 1025}]}, "are the same run"),  # whole sequences of both are 16
    ({"runs": [RUN, RUN | {"n_params": "1.001M"}]}, "are the same run, e1-1m-1m"),
    ({"runs": [RUN, {"tokens": "1M"}]}, "[[runs]] 2, [model]: d_model is missing; give n_params, or d_model and n_layers"),
    ({"runs": [RUN | {"d_model": 64, "n_layers": 2}]}, "d_model does not go with n_params"),
    ({"runs": [{"d_model": 64, "tokens": "1M"}]}, "n_layers is missing; give n_params, or d_model and n_layers"),
    ({"runs": [RUN | {"n_heads": 4}]}, "n_heads does not go with n_params"),
    ({"runs": [{"n_params": "1M"}]}, "[[runs]] 1, [training]: tokens is missing"),
    ({"runs": [RUN, RUN | {"expert": 4}]}, "[[runs]] 2: unknown key 'expert'; nearest: experts"),
    ({"runs": [RUN | {"tokens": ["1M", "2M"]}]}, "[[runs]] 1, [training], tokens: ['1M', '2M'] is not a number"),
    ({"runs": [RUN | {"peak_lr": 11}]}, "[[runs]] 1, [training], peak_lr: 11 is not at most 10; nearest: 10"),
    ({"runs": 5}, "runs: is not a table"),
    ({"runs": [RUN], "model": {"experts": 4}}, "experts belongs to one run"),
    ({"runs": [RUN], "training": {"tokens": "1M"}}, "tokens belongs to one run"),
    ({"runs": [{"d_model": 64, "n_layers": 2, "n_heads": 2, "tokens": 9}], "model": {"n_heads": 1}}, "n_heads belongs to one run"),
    ({"runs": [{"d_model": 64, "n_layers": 2, "tokens": i} for i in range(1, 10_002)]}, "at most 10,000 are taken"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tables", "what"),
    [
        *(({**document(), **tables}, what) for tables, what in GRIDS),
        *(({**listed(), **tables}, what) for tables, what in LISTS),
    ],
)
def test_bad_sweeps_are_refused_with_the_reason(tables: dict[str, Any], what: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(tomli_w.dumps(tables))
    with pytest.raises(InputError) as error:
        read_sweep(file)
    assert what in str(error.value)
    assert "sweep.toml" in str(error.value)


def test_the_example_is_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sweep = read_sweep("examples/sweep.toml")
    assert len({run.n_params_dense for run in sweep.runs}) >= 3
    assert {run.settings.model.experts for run in sweep.runs} == {1, 2, 4, 8}
    assert len({run.settings.training.tokens for run in sweep.runs}) >= 3


def row(name: str, loss: float, **more: Any) -> dict[str, Any]:
    fixed = {"n_experts": 1, "tokens": 10, "n_params_dense": 5.0, "diverged": False}
    return {"name": name, "settings_sha256": name, **fixed, "loss": loss, **more}


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_rows_keep_every_digit_and_come_once(suffix: str, tmp_path: Path) -> None:
    table = tmp_path / f"runs{suffix}"
    third = 1 / 3
    add_rows(table, [row("a", third), row("b", 2.0)])
    first = table.read_text()
    add_rows(table, [row("a", third)])
    assert table.read_text() == first
    add_rows(table, [row("c", float("nan"), diverged=True, why='a "b",\tc'), row("a", 4.0)])
    lines = table.read_text().splitlines()
    assert len(lines) == 4
    assert lines[2].startswith(first.splitlines()[2])  # a row that was there keeps its text
    read = read_runs(table)
    assert read.loss.tolist() == [4.0, 2.0]
    assert any("1 run left out: column 'diverged' is true" in warning for warning in read.warnings)
    assert repr(third) in first


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("name,loss\na,1\n", "has no column settings_sha256, tokens"),
        ("name,settings_sha256,tokens\na,b\n", "data row 1"),
    ],
)
def test_tables_of_others_are_left_alone(text: str, what: str, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text(text)
    with pytest.raises(InputError, match=what):
        add_rows(table, [row("a", 1.0)])
    assert table.read_text() == text
    with pytest.raises(InputError, match=r"unknown suffix of a run table '\.json'"):
        add_rows(tmp_path / "runs.json", [row("a", 1.0)])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"rows": []}', '{"rows": [1]}', '{"rows": [{"name": "a"}]}', "\udcff"]
)
def test_a_result_that_is_none_is_an_error(text: str, tmp_path: Path) -> None:
    assert read_result(tmp_path) is None
    (tmp_path / "result.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError):
        read_result(tmp_path)


@pytest.mark.parametrize("content", ["", "[1]", "1.5", "null", "{", "[" * 5000, '"x"', "\0", '{"identity": []}'])
def test_a_folder_with_damaged_settings_holds_no_run(tmp_path: Path, content: str) -> None:
    path = tmp_path / "settings.json"
    path.write_text(content)
    check_same(tmp_path, {"settings_sha256": "ab", "corpus_sha256": "cd"})  # of a run that never began
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="other settings"):
        check_same(tmp_path, {"settings_sha256": "ab", "corpus_sha256": "cd"})
