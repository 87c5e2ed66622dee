"""torchrun, tied to the process that starts it: `python -m moescale.experiments.training.launch ARGUMENTS-OF-TORCHRUN`."""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    """Ask Linux for SIGTERM when the parent ends, however it ends, so that torchrun ends its workers; then be torchrun."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    torchrun: Any = import_module("torch.distributed.run")
    torchrun.main(sys.argv[1:])


if __name__ == "__main__":
    main()
