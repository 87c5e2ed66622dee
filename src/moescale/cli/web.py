"""The command that serves the page: web."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from moescale.cli.options import app, at_option, examples, file_option, number_option
from moescale.errors import InputError


@app.command(epilog=examples("moescale web", "moescale web --port 8600 --no-open --law law.toml"))
def web(
    port: Annotated[int, number_option("--port", "Port to listen on; 0: any free one.", 0, 65535, whole=True)] = 8501,
    open_: Annotated[bool, Option("--open/--no-open", help="Open the page in a browser.")] = True,
    law: Annotated[Path | None, file_option("--law", "Law file that `fit -o` wrote: the page's default law.")] = None,
) -> None:
    """Serve the page to play with: sliders, curves, uploads; on this machine only."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"the page needs {' and '.join(missing)}", next_step="install it: pip install 'moescale[web]'")
    from moescale.io.files import read_text
    from moescale.web.app import ADDRESS, create_app, listen, serve

    text = None
    if law is not None:
        with at_option("--law"):
            text = read_text(law)
    bound = listen(port)
    with bound:
        port = int(bound.getsockname()[1])
        address = f"http://{ADDRESS}:{port}/"
        page = create_app(port, law_text=text, law_name=str(law))
        sys.stderr.write(f"moescale: {address} (Ctrl-C ends it)\n")
        sys.stderr.flush()
        serve(page, bound, open_url=address if open_ else None)
