"""`python -m moescale` is `moescale`."""

from __future__ import annotations

import gc
import sys

# Loading makes a million objects that stay: to look through them for garbage again and again takes 5% of a plan.
OBJECTS_BETWEEN_COLLECTIONS = 100_000


def main() -> None:
    """The command line; Ctrl-C while it is still being loaded ends it as quietly as later."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from moescale.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
