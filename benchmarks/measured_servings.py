"""Predicted over measured servings: how far this version's throughput and latencies lie from published measurements.

`python benchmarks/measured_servings.py [--src PATH] [--against benchmarks/results/measured_servings_v0.1.csv]`

Measured: (a) $MOESCALE_SHARED/data/measured_serving/points.csv where it is at hand; (b) the rows that the kernel package
ships, aiconfigurator_core's systems/silicon_sample.csv. --src names the `src` folder of another version to judge.

The rule that sets rows aside was written, and committed, before any error of these rows was computed.

Rows of (b) that belong to one set are not independent, so whole sets go to one half. A set is (model_path, system, backend,
precision) as the file spells them; its key is those four joined by "|"; the half is `development` where the last byte of the
SHA-256 of the key (UTF-8) is even, else `held_out`. Work on the program looks at `development` alone. `held_out` is scored,
by kind only, with an explicit --held-out. Some of its sets and some of (a) are of one campaign (DeepSeek-R1, InferenceX), so
of those kinds it is no blind test of what was mended with (a) in sight.

Predicted: what `moescale cost` answers with the row's GPU, GPU count, engine, formats, lengths and expert parallelism, and
--concurrency at the row's (a closed loop of c clients; its --max-num-seqs is not below, and before version 0.2 was all there
is of it); --scheduling and --host default to the command's own. Neither source says whether its first tokens are means or
medians over the requests. Where both measured one server under one load (30 pairs of the development half, DeepSeek-R1 and
V3), (b) is above (a) in every one, from 1.1 times at 4 clients (TensorRT-LLM on B200) to 5 times at 64 (on H200): as
means are above medians where the first burst waits long. So (b) is held against closed_loop's ttft_s, the mean, and (a)
against plateau_ttft_s. This was seen before it was written; it changes no prediction.
A row with a number of requests is a burst of them, all at once (`--burst`), with the GPU's default of --max-num-seqs unless
the row says otherwise; its latencies are means over the requests. Where no kernels of a GPU were measured, the roofline
answers, as with --latency auto. Conventions where a source says less than a prediction needs, all written before any score:

- Lengths are as stated; where the notes say "0.8-1.0 of nominal", 0.9 of it.
- (b) states no cache format: fp8 for TensorRT-LLM with weights of 8 or 4 bits, else bf16, as (a) has it for the same engines;
  what the campaign's scripts say (campaign.toml), or else fp8 on Blackwell.
- Rows of (b) whose file is named by a day, or has no path, are InferenceX's (the others are the package's authors'): its lengths are uniform in 0.8
  to 1.0 of the stated ones, so 0.9 of them on average, as for (a).
- fp8 has a scale a tensor where neither the row nor the model's own config states blocks: NVIDIA's checkpoints.
- Servers of InferenceX, by its launching scripts: campaign.toml; TensorRT-LLM on B200 holds prompts of 1024 tokens, with as many out, back for 20 passes or 0.9 of 2,248 tokens (dense, fewer
  than 8 GPUs), or 40 passes or 0.8 of 8,192 (latent MoE in fp8, 64 to 255 clients).
- (b) states no throughput: output_tok_s is measured by the closed loop's law, c n / (TTFT + (n - 1) TPOT), n output tokens.
- No number format in (b) (an empty field): bf16, the format of the checkpoints without one in their name.
- The time of one whole request of a closed loop (e2e) is c n / throughput, in every version.

Attention data-parallelism in (b), by ids and columns, and by the campaign's own configurations and launching scripts at the
days of the rows (InferenceX: .github/configs/nvidia-master.yaml, benchmarks/); written before any of these rows was scored:

- vLLM: attention_dp_size = tp_size and moe_ep_size = tp_size^2, with ids tpN_epN. Its scripts start --tensor-parallel-size N
  --enable-expert-parallel and no data parallelism, and an earlier dump has the same runs with attention_dp_size 1: these
  are N tensor-parallel GPUs with expert parallelism over N.
- TensorRT-LLM: attention_dp_size is moe_tp_size times moe_ep_size. Where both are above 1 the ids say tpN_epN with N equal to
  both (`tp: N, ep: N, dp-attn: true`): N GPUs, attention data-parallel over N, experts over N. Where one of them is 1 the
  degrees are those of the server: attention_dp_size GPUs and groups, experts whole over moe_ep_size.
- batch_size is the concurrency over attention_dp_size as it stands.
- TensorRT-LLM's scripts balance prompts over the groups (attention_dp_config: enable_balance), which `--latency
  silicon:trtllm` answers for. Two candidates were written down before their scores: none is held back, or up to 50 passes.
  The first one's scores had been seen, and that its H200 row with prompts of 8192 tokens was 1.68 times too slow. The second
  one is taken: median errors of TPOT fell from 11% to 9% (gpt-oss) and TTFT came from 0.08 to 0.32 of what was measured.

A row is counted with its reason, not guessed, where the program has no word for what was measured: pipelines, servers with
prefill and decode apart, formats and models it does not know; and where it refuses or answers nothing. Four more reasons lie in the data, and were written after the development half's first scores were seen:

- A row of (b) without a stated concurrency, or with another batch_size without attention data-parallelism: several servers.
- (b) has rows of 16 and 64 tensor-parallel GPUs that stand for servers of 4 and 8: it multiplies the degree by that of the
  experts. More GPUs than a server of that GPU holds (8; 72 of gb200 and gb300) are no mapping to predict.
- A set with "aggregated" rows of 12, 20, 36 .. tensor-parallel GPUs, no power of 2, which no model's heads divide, states the
  GPUs of whole fleets (the campaign's servers with prefill and decode apart): every row of more than 8 GPUs of such a set
  is left out. Written after two such rows of 32 and 64 GPUs of the development half came out at 5 times.
- A set with a row that needs more than PLAUSIBLE of the data sheet's arithmetic, at two FLOPs a token and active
  parameter without the embeddings, did not compute what it states (cached prefixes, shorter prompts): the whole set is
  left out.

A score is of sets, for a set's rows are not independent: each row weighs one over the rows of its set, and then
geometric mean: exp of the mean ln(predicted / measured); spread: exp of its standard deviation; within 25%: the share with
0.8 <= ratio <= 1.25, within 2x: that with 0.5 <= ratio <= 2; error: the median of |ratio - 1|.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path

from serving_predictions import Setting, predict
from serving_rows import DEVELOPMENT, HELD_OUT, read_package, read_points
from serving_scores import (
    BY_KIND,
    LEVELS,
    about,
    common_sets,
    compare,
    implausible,
    read_scores,
    refusals,
    sample_scores,
    scores,
    table,
    write_rows,
    write_scores,
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predicted over measured servings.")
    parser.add_argument("--src", type=Path, help="the src folder of the version to judge; default: the installed one")
    parser.add_argument("--held-out", action="store_true", help="score the half set aside, by kind only")
    parser.add_argument("--latency", choices=("silicon", "roofline"), default="silicon")
    parser.add_argument("--scheduling", help="default: that of `moescale cost`")
    parser.add_argument("--host", help="default: that of `moescale cost`")
    parser.add_argument("--against", type=Path, metavar="CSV", help="scores of another version to print beside these")
    parser.add_argument("--output", type=Path, metavar="CSV", help="write the scores")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="write every row with its ratio")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args()


def main() -> int:
    """Print the scores; the exit code."""
    asked = arguments()
    if asked.src is not None:
        sys.path.insert(0, str(asked.src.resolve()))
    if asked.held_out and asked.rows is not None:
        raise SystemExit("--held-out is scored by kind only: leave out --rows")
    which = HELD_OUT if asked.held_out else DEVELOPMENT
    setting = Setting(asked.latency, asked.scheduling, asked.host)
    rows = read_package(which) if asked.held_out else read_points() + read_package(which)
    found = compare(rows, predict((row.case for row in rows), setting), implausible(rows))
    results = scores(found, BY_KIND) if asked.held_out else scores(found, tuple(LEVELS)) + sample_scores(found)
    refused, facts = refusals(found), about(which, setting)
    if asked.output is not None:
        write_scores(asked.output, results, refused, facts)
    if asked.rows is not None:
        write_rows(asked.rows, found)
    if asked.json:
        listed = [{"source": s, "kind": k, "reason": why, "rows": n} for (s, k, why), n in refused.items()]
        print(
            json.dumps(
                {
                    **facts,
                    "scores": [asdict(one) for one in results if math.isfinite(one.geometric_mean)],
                    "refused": listed,
                },
                indent=1,
            )
        )
        return 0
    before = None if asked.against is None else read_scores(asked.against)
    print(", ".join(f"{name} {value}" for name, value in facts.items()), "\n")
    print("\n".join(table(results, before)))
    if before is not None:
        print("\n" + "\n".join(common_sets(results, before)))
    print("\nRows without a ratio")
    for (source, name, reason), n in refused.items():
        print(f"{source:8s} {n:5d}  {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
