"""Traffic from traces: what the files may look like, and that the summary keeps what serving cost depends on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.serving.traffic import read_trace, summarise
from moescale.typing import FloatArray
from run_tables import write

lengths = st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 2000)), min_size=1, max_size=40)


def columns(pairs: list[tuple[int, int]]) -> tuple[FloatArray, FloatArray]:
    array = np.asarray(pairs, dtype=np.float64)
    return array[:, 0], array[:, 1]


def test_two_requests_by_hand_and_lengths_that_are_no_requests() -> None:
    traffic = summarise(np.array([100.0, 300.0]), np.array([10.0, 30.0]))
    assert (traffic.prompt_tokens, traffic.output_tokens) == (200, 20)
    # 10 iterations with 105 tokens on average and 30 with 315.
    assert traffic.context_tokens == (10 * 105 + 30 * 315) / 40
    assert traffic.longest_request_tokens == 330
    assert np.ravel(traffic.prompt_nodes) == pytest.approx([100, 0.5, 300, 0.5])
    with pytest.raises(InputError, match="0 prompts"):
        summarise(np.array([]), np.array([]))
    with pytest.raises(InputError, match="1 prompts and 2 outputs"):
        summarise(np.array([1.0]), np.array([1.0, 2.0]))
    with pytest.raises(InputError, match="at least 1"):
        summarise(np.array([0.5]), np.array([1.0]))


@given(lengths)
def test_the_nodes_keep_the_first_four_moments_within_the_range(pairs: list[tuple[int, int]]) -> None:
    p, n = columns(pairs)
    traffic = summarise(p, n)
    at, share = np.asarray(traffic.prompt_nodes).T
    assert np.all((at >= p.min() * (1 - 1e-9)) & (at <= p.max() * (1 + 1e-9)) & (share > 0))
    for power in range(4):
        assert np.sum(share * at**power) == pytest.approx(np.mean(p**power), rel=1e-6)
    assert traffic.context_tokens is not None
    assert traffic.longest_request_tokens is not None
    assert p.min() + n.min() / 2 <= traffic.context_tokens * (1 + 1e-12)
    assert traffic.context_tokens < traffic.longest_request_tokens


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens,output_tokens\n100,10\n300,30\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,100,10\n2023-11-16 18:15:47,300,30\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,100,10,110,x\n6,y,300,30,330,x\n",
        "input_tokens\toutput_tokens\n100\t10\n300\t30\n",
        '{"input_tokens": 100, "output_tokens": 10}\n\n{"input_tokens": 300, "output_tokens": 30}\n',
        '[{"prompt_len": 100, "output_len": 10}, {"prompt_len": 300, "output_len": 30}]',
        "\ufeffprompt_tokens,completion_tokens\r\n100,10\r\n300,30\r\n",
    ],
    ids=["plain", "azure", "burstgpt", "tabs", "lines", "list", "windows"],
)
def test_formats_of_traces(text: str, tmp_path: Path) -> None:
    found = read_trace(write(tmp_path, text, "trace.txt"))
    same = summarise(np.array([100.0, 300.0]), np.array([10.0, 30.0]), found.source)
    assert found == same
    assert found.source == "trace.txt (2 requests)"


def test_failed_requests_are_left_out(tmp_path: Path) -> None:
    found = read_trace(write(tmp_path, "prompt_tokens,output_tokens\n100,10\n300,0\n"))
    assert found.prompt_tokens == 100
    assert "1 without prompt or output left out" in found.source


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("empty",)),
        ("a,b\n1,2\n", ("prompt tokens among a, b", "contexttokens")),
        ("prompt_tokens,b\n1,2\n", ("output tokens among",)),
        ("prompt_tokens,output_tokens\n", ("no requests",)),
        ("prompt_tokens,output_tokens\n1,x\n", ("row 1", "column output_tokens", "'x'")),
        ("prompt_tokens,output_tokens\n1\n", ("row 1", "1 cells")),
        ("prompt_tokens,output_tokens\n-1,5\n", ("'-1'",)),
        ("prompt_tokens,output_tokens\nnan,5\n", ("'nan'",)),
        ("prompt_tokens,output_tokens\n1e300,5\n", ("'1e300'",)),
        ("prompt_tokens,output_tokens\n0,0\n", ("no request with a prompt",)),
        ("[", ("not JSON",)),
        ("[" * 100_000, ("not JSON",)),
        ("[1, 2]", ("row 1", "must be an object")),
        ("[]", ("no requests",)),
        ('{"a": 1}', ("prompt tokens among a",)),
        ('{"a": 1\n', ("line 1", "not JSON")),
        ('{"prompt_tokens": 1, "output_tokens": 2}\n[]\n', ("row 2", "must be an object")),
        ('{"prompt_tokens": true, "output_tokens": 2}\n', ("'True'",)),
    ],
)
def test_bad_traces_say_where_and_what(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    path = write(tmp_path, text, "trace.txt")
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("number", ["1" + "0" * 400, "1e400", "-1", '"x"', "[[1]]"])
def test_a_count_that_is_none_is_told_with_its_row(tmp_path: Path, number: str) -> None:
    path = tmp_path / "trace.json"
    first, second = '{"prompt_tokens": 1, "output_tokens": 2}', f'{{"prompt_tokens": {number}, "output_tokens": 2}}'
    path.write_text(f"[{first}, {second}]")
    with pytest.raises(InputError, match="is not a count of tokens") as caught:
        read_trace(path)
    assert caught.value.where == f"{path}, row 2, column prompt_tokens"
