"""Messages: what they quote of a file can neither steer a terminal nor fill it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import ROOT, commands_that_fail, options_of
from moescale.cli import main
from moescale.errors import MOST_COMPARED, MOST_SHOWN, InputError, MoescaleError, install, nearest_names, unknown_name
from moescale.experiments.corpus import read_description
from moescale.experiments.run import read_result
from moescale.models.hf_config import from_config
from moescale.runs.importers import import_runs


@pytest.mark.parametrize("mark", ["\x1b[31m", "\0", "\r", "\x9b", "\u202e", "\ud800"])
def test_control_characters_are_shown_and_not_sent(mark: str) -> None:
    message = str(InputError(f"a{mark}b", where=mark, nearest=mark, next_step=mark))
    assert mark[0] not in message
    assert message.count(ascii(mark[0])[1:-1]) == 4
    message.encode()


def test_a_message_ends_however_much_it_quotes_and_ordinary_text_stays_as_it_is() -> None:
    assert len(str(MoescaleError("x" * 10**6, where="y" * 10**6))) < 3 * MOST_SHOWN
    assert len(str(unknown_name("column", "a", (f"c{i}" for i in range(100_000))))) < 3 * MOST_SHOWN
    assert str(InputError("é, 日本 µ", where="a b", next_step="do\nthis")) == "a b: é, 日本 µ; do\nthis"


def test_the_nearest_name_is_sought_among_a_bounded_number_and_one_that_begins_so_is_nearest() -> None:
    assert nearest_names("tokns", ["zzz", "tokens"]) == "tokens"
    assert nearest_names("x" * 10**6, ["x" * 10**6]) is None
    assert nearest_names("a", ["a" * 10**6]) is None
    many = [f"c{i}" for i in range(MOST_COMPARED)]
    assert nearest_names("tokens", [*many, "tokens"]) is None
    assert nearest_names("tokens", ["tokens", *many]) == "tokens"
    gpus = ["h20", "gb200", "h200-sxm", "b200-sxm", "h100-sxm"]
    assert str(nearest_names("h200", gpus)).startswith("h200-sxm, ")
    assert str(nearest_names("B200 ", gpus)).startswith("b200-sxm, ")
    assert nearest_names("h", gpus) == "h20, h200-sxm, h100-sxm"
    assert nearest_names("", gpus) is None


def test_bad_input_is_a_value_error_and_the_command_line_words_it_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(InputError("a"), ValueError)
    with pytest.raises(SystemExit) as ended:
        main(["cost", "--n-params", "many"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("moescale: --n-params: 'many' is not a quantity; write a number")


def trainer(folder: Path) -> object:
    return import_runs("trainer", folder / "trainer_state.json")


@pytest.mark.parametrize("read", [from_config, read_result, read_description, trainer])
def test_a_file_that_cannot_be_read_is_not_told_as_one_of_bad_content(
    read: Callable[[Any], object], tmp_path: Path
) -> None:
    for name in ("config.json", "settings.json", "result.json", "corpus.json", "trainer_state.json"):
        (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError) as caught:
        read(tmp_path)
    assert "JSON" not in str(caught.value)
    assert str(caught.value).count(str(tmp_path)) == 1


def strings(file: Path) -> Iterator[str]:
    """The strings of a module, docstrings included; what is filled in is `{}`."""
    parts: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(value) for value in node.values}
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "{}" for value in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


@pytest.mark.system
def test_every_command_that_a_message_names_works_and_those_that_cannot_are_found() -> None:
    sources = sorted((ROOT / "src" / "moescale").rglob("*.py"))
    assert [
        f"{file}: {wrong}" for file in sources for text in strings(file) for wrong in commands_that_fail(text)
    ] == []
    assert any("moescale fit" in text for file in sources for text in strings(file))
    assert {"--budget", "-o", "--help"} <= options_of("plan")
    for text in (
        "run `moescale plan --budget 1e21 -o x`",
        "`fit -o LAW.toml`",
        "moescale lock",
        "`moescale {}`",
        "`--mfu`",
    ):
        assert commands_that_fail(text) == []
    for text in (
        "run `moescale plan --bugdet 1e21`",
        "run `moescale plain`",
        "`fit --out LAW.toml`",
        "$ moescale predict \\\n  --budget 1e21",
        "pip install moescale",
        "pip install 'moescale[web]'",
        "uvx moescale plan",
        "the extra moescale[web]",
    ):
        assert len(commands_that_fail(text)) >= 1, text


def test_what_a_message_tells_to_install_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = (file.read_text(encoding="utf-8") for file in (ROOT / "src" / "moescale").rglob("*.py"))
    extras = {extra for text in sources for extra in re.findall(r"""\binstall\(["'](\w+)["']\)""", text)}
    assert {"figures", "web"} < extras <= set(project["optional-dependencies"])
    assert install() == "pip install . in a clone of moescale"
    assert install("web") == "pip install '.[web]' in a clone of moescale"
