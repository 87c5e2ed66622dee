"""The texts of an export, from the templates beside this module."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from moescale import catalogue
from moescale.training.parallelism import Split


def filled(name: str, **values: Any) -> str:
    """The template of this name, filled."""
    return _environment().get_template(name).render(**values)


def torchrun_script(split: Split, trainer: str, about: str, file: str) -> str:
    """The text of run.sh, to be started on each server of a run; `file` is what the trainer reads."""
    per_server = min(split.gpus, int(catalogue.read("export.toml")["choice"]["gpus_per_server"]))
    servers = -(-split.gpus // per_server)
    return filled("run.sh.j2", trainer=trainer, about=about, file=file, servers=servers, per_server=per_server)


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_text),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _text(name: str) -> str:
    return (resources.files("moescale.export") / "templates" / name).read_text(encoding="utf-8")
