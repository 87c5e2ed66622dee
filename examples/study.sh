#!/bin/sh
# A whole study on two CPU cores, from text to a plan: pack -> design -> sweep -> fit -> plan. docs/sweep.md.
#   sh examples/study.sh [FOLDER]        (default runs/study; stopped at any point, the same command goes on)
set -eu
mkdir -p "${1:-runs/study}" && cd "${1:-runs/study}"
budget=1e18
plan="--experts 1,2,4,8 --match-experts 1 --gpu l40s --max-gpus 1 --max-num-seqs none"
limits="--budget 6e12 --min-params 20K --max-run-tokens 3.2M --max-runs 24 --sequence-tokens 256"

# 1. Text: the sources of Python's standard library, a token a byte. A corpus that is packed is found again.
library=$(python -c "import os; print(os.path.dirname(os.__file__))")
sources=$(find "$library" -name "*.py" ! -path "*/site-packages/*" | sort)
moescale pack $sources --tokenizer bytes --validation 0.02 -o corpus

# 2. Which runs to train. A cheaper validation makes them fit a CPU.
if [ ! -e study.toml ]; then
  moescale design $limits --plan-budget $budget $plan -o designed.toml
  sed -e 's/designed/study/' -e 's/^schedule = .*/schedule = "cosine"\nmicro_batch_tokens = 2048\nvalidation_tokens = "50K"/' \
    designed.toml > study.toml
fi

# 3. Train them.
moescale sweep study.toml --jobs 2

# 4. What the plan would lose now, and which runs would come next.
moescale design $limits --plan-budget $budget $plan --runs study.csv

# 5. The law of the runs, and the plan by it.
moescale fit study.csv -o law.toml
moescale plan --law law.toml --budget $budget $plan
