"""`python -m moescale` is `moescale`."""

from __future__ import annotations

import sys


def main() -> None:
    """The command line; Ctrl-C while it is still being loaded ends it as quietly as later."""
    try:
        from moescale.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
