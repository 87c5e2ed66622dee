"""Figures into files: whole or not at all, and the same figure gives the same bytes."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.errors import InputError
from moescale.io.files import check_target, write_atomically
from moescale.views.figures.style import house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".pdf", ".png")


def check_plot(path: str | os.PathLike[str]) -> None:
    """Refuse, before any work is done, a figure that could not be written: its suffix, or matplotlib missing."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(
            f"{suffix!r} is not a kind of figure" if suffix else "the figure's name has no suffix",
            where=os.fspath(path),
            nearest=f"{Path(path).stem or 'figure'}.svg",
            next_step=f"end the name in {', '.join(SUFFIXES)}",
        )
    check_target(path)
    house_style()


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure as SVG, PDF or PNG by its suffix, whole or not at all; the same figure gives the same bytes."""
    check_plot(path)
    return write_atomically(path, figure_bytes(figure, Path(path).suffix.lower()[1:]))


def figure_bytes(figure: Figure, kind: str) -> bytes:
    """A figure as svg, pdf or png; the same figure gives the same bytes."""
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "moescale"},
        "pdf": {"CreationDate": None, "ModDate": None, "Creator": "moescale", "Producer": None},
        "png": {"Software": "moescale"},
    }
    stream = io.BytesIO()
    with house_style():
        figure.savefig(stream, format=kind, metadata=metadata[kind])
    return stream.getvalue()
