"""Write examples/requests.csv: 400 made-up requests, log-normal lengths with ShareGPT's means (230 and 203 tokens)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moescale.io.files import write_atomically

SIGMA = 1.2  # of the logarithm: a long tail, as chats have; not fitted to anything


def main() -> None:
    rng = np.random.default_rng(0)
    p, n = (
        np.maximum(1, np.round(rng.lognormal(np.log(mean) - SIGMA**2 / 2, SIGMA, 400))).astype(int)
        for mean in (230, 203)
    )
    rows = "".join(f"{prompt},{output}\n" for prompt, output in zip(p, n, strict=True))
    write_atomically(
        Path(__file__).resolve().parents[1] / "examples" / "requests.csv", f"prompt_tokens,output_tokens\n{rows}"
    )


if __name__ == "__main__":
    main()
