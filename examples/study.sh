#!/bin/sh
# A whole study on two CPU cores, from text to a plan: pack -> design -> sweep -> fit -> plan. docs/sweeps.md tells of it.
#   sh examples/study.sh [FOLDER]        (default runs/study; stopped at any point, the same command goes on)
set -eu
examples=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-runs/study}" && cd "${1:-runs/study}"
# A plan searches from a million parameters up: of fewer FLOPs a law of such small runs may want less.
plan="--budget 1e17 --experts 1,2,4,8 --match-experts 1 --gpu l40s --max-gpus 1"

# 1. Text: the sources of Python's standard library, a token a byte. A corpus that is packed is found again.
library=$(python -c "import os; print(os.path.dirname(os.__file__))")
moescale pack "$library/**/*.py" --exclude site-packages --undecodable skip --tokenizer bytes --validation 0.02 -o corpus

# 2. Which runs to train, after the 36 that there are. Short sequences and a cheaper validation make them fit a CPU.
if [ ! -e sweep.toml ]; then
  cp "$examples/stdlib-runs.csv" sweep.csv
  moescale design --budget 3e13 --runs sweep.csv --for "$plan" -o designed.toml
  sed -e 's/^name = .*/name = "study"/' -e 's/^table = .*/table = "sweep.csv"/' -e 's/^folder = .*/folder = "sweep"/' \
    -e 's/^sequence_tokens = .*/sequence_tokens = 256\nmicro_batch_tokens = 2048\nvalidation_tokens = "50K"/' \
    designed.toml > sweep.toml
fi

# 3. The sweep adds its rows to the table of the runs before.
moescale sweep sweep.toml --jobs 2

# 4. The law of all of them, with draws, and 5. the plan by it.
moescale fit sweep.csv --law yun2024 --bootstrap 50 -o law.toml
moescale plan --law law.toml $plan
