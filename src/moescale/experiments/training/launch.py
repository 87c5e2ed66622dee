"""torchrun, tied to the process that starts it: `python -m moescale.experiments.training.launch ARGUMENTS-OF-TORCHRUN`."""

from __future__ import annotations

import ctypes
import signal
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that ends; a worker so ends with torchrun."""
    with suppress(OSError, AttributeError):  # other systems have no such call
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Be torchrun, and end with the run that started it."""
    end_with_parent()
    torchrun: Any = import_module("torch.distributed.run")
    torchrun.main(sys.argv[1:])


if __name__ == "__main__":
    main()
