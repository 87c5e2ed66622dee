"""What training and serving cost, how likely that is enough, and how far prices were off, in the words of a screen."""

from __future__ import annotations

import math

from moescale.planning.beside import PRICE_STEP
from moescale.planning.limits import stated_limits
from moescale.planning.plan import Plan
from moescale.planning.training_use import FP8_LOSS, TrainingUse
from moescale.serving.accuracy import Calibrated, calibrated, calibrated_by_any, limits_missed
from moescale.training.step_time import StepError
from moescale.units import format_bytes, format_count, format_flops, format_seconds, format_usd, plural
from moescale.views.tables import ends_text, ttft_doubt, usd_range
from moescale.views.tables.choices import asked_number, sizes_text, training_gpus

SURE = 0.9  # chance with which days or dollars are said to be enough
MOSTLY = 0.75  # of a budget: a plan that spends less names the objective that spends more
LONG_TTFT_S = 1.0  # a corrected one that is said where no limit is stated, our choice
ROUNDING = 0.005  # of a chance, as it is printed
LEFT = 0.015  # of a budget: what is left over or spent beyond it is said


def unspent(plan: Plan, *, lower_loss: bool = False) -> list[str]:
    """How much of a budget is left over, and what it could not buy; what the rest buys where no row has that `lower_loss`."""
    use, model, better, told = plan.training, plan.decision.model, plan.choices.quality, list[str]()
    total, most = asked_number(plan, "max_total_usd"), asked_number(plan, "max_flops")
    if most is not None and not plan.of_life and (left := 1.0 - model.training_flops / most) > LEFT:
        told.append(f"{left:.0%} of the {format_flops(most)} FLOPs: the days or dollars buy no more")
    if use is not None and use.left_over:
        text = f"{1.0 - use.budget_share:.0%} of the budget: {use.unused_because}"
        said = lower_loss or plan.objective != "serve" or use.budget_share >= MOSTLY
        if better is not None and not said and better.loss < model.loss:
            rest = f"{plural(better.experts, 'expert')}, {sizes_text(better)}, {format_usd(better.usd_per_mtok)}, loss {better.loss:.4f}"
            if {"max_days", "max_training_usd"} & plan.asked.keys():  # its model has another MFU, and other FLOPs
                rest = f"a loss of about {better.loss:.3g}"
            text += f"; --objective quality: {rest}"
        told.append(text)
    if use is not None and use.unused_because and plan.of_life and total is not None and model.total_usd:
        left = 1.0 - model.total_usd / total
        told += [f"{left:.0%} of the dollars: {use.unused_because}"] if left > LEFT else []
    return told


def training_text(plan: Plan) -> str:
    """Dollars and days of training, and with which chance they are enough."""
    use = plan.training
    if use is None or use.gpu_days is None or use.usd is None:
        return f"{format_flops(plan.decision.model.training_flops)} FLOPs"
    gpus, own = training_gpus(use), use.train_gpu == plan.gpu
    days = f"{format_count(use.gpu_days)} GPU days{'' if own else f' of {use.train_gpu}'}"
    if gpus > 1:
        days = f"{use.gpu_days / gpus:.3g} days on {gpus:.0f} {'GPUs' if own else f'x {use.train_gpu}'}"
    if use.memory_bytes and use.usable_bytes and "train_gpus" in plan.asked:
        days += f" ({use.memory_bytes / 2**30:.3g} of {format_bytes(use.usable_bytes)})"
    other = "" if use.fp8_usd is None else f" (fp8 {format_usd(use.fp8_usd)})"
    if use.bf16_usd is not None:
        days_bf16 = f" in {use.gpu_days / gpus * use.bf16_usd / use.usd:.3g} days" if gpus > 1 else ""
        other = f" (bf16 {format_usd(use.bf16_usd)}{days_bf16}{_fp8_worth(use)})"
    text = f"{format_usd(use.usd)}{other}, {days}"
    dollars = asked_number(plan, "max_training_usd")
    share = use.usd / dollars if plan.of_life and dollars is not None else use.budget_share
    if use.budget_of is None and abs(share - 1.0) > LEFT and not use.left_over:
        text += f", {share:.0%} of the budget"
    if use.error is None or use.mfu is None:
        return f"{text}, MFU {use.mfu_words}" if use.mfu_words else text
    return f"{text}, MFU {use.mfu:.2f}{' of bf16' if use.precision else ''}; {_kept(plan, use, use.error)}"


def _fp8_worth(use: TrainingUse) -> str:
    """Up to which rise of the loss fp8 pays, as predicted and by published runs, and whether the published bound on it is below both."""
    if (worth := use.fp8_worth_loss) is None:
        return ""
    percents = [100.0 * worth, 100.0 * (use.fp8_worth_loss_published or worth)]
    so = " is safer" if min(percents) < 100 * FP8_LOSS else ""
    most = ends_text(percents, "{:.2g}%".format)
    return f"{so}: fp8 pays where it costs < {most} of loss, DeepSeek-V3's < {100 * FP8_LOSS:.2g}%"


def _kept(plan: Plan, use: TrainingUse, error: StepError) -> str:
    """The chance that a run stays within its stated days or dollars by the error of predicted times, and what it keeps SURE of the time."""
    slowly, limits = (use.gpu_days or 0.0) / training_gpus(use) * error.times(SURE), stated_limits(plan)
    if not limits:
        uneven = f" (routing: {slowly * error.real_routing:.3g})" if error.real_routing else ""
        return f"in {slowly:.3g} days {SURE:.0%}{uneven}"
    limit = limits[0]
    of_days = limit.name == "max_days"
    words, surely = (f"{n:.3g} days" if of_days else format_usd(n) for n in (limit.most, limit.taken(SURE)))
    text = f"in {words} {limit.chance:.0%}"
    if limit.name == "max_total_usd":
        servings = f"with the error of {'its' if plan.accuracy else 'all'} servings"
        text += f" {servings}" if limit.servings else " by training's error alone"
    uneven = f" (routing: up to +{error.real_routing - 1.0:.0%})" if error.real_routing else ""
    if limit.chance < SURE - ROUNDING:
        return f"{text}{uneven}; {SURE:.0%}: --within-chance {SURE:g}"
    if limit.chance >= SURE + ROUNDING:
        days = "" if of_days or not use.days else f" in {use.days * error.times(SURE):.3g} days"
        text += f", {surely}{days} {SURE:.0%}"
    return f"{text}{uneven}"


def late_tpot_s(plan: Plan) -> float | None:
    """The TPOT of the model by the known error of its kind, where it misses the limit; None where it does not, or is not known."""
    tpot_s = plan.decision.model.tpot_s, asked_number(plan, "max_tpot_s")
    return limits_missed(plan.accuracy, (None, None), tpot_s).get("TPOT")


def likely_price(plan: Plan) -> tuple[Calibrated | None, bool]:
    """What serving the model should cost by the error of its kind (True), else of all kinds; None where neither is known."""
    usd = plan.decision.model.usd_per_mtok
    own = calibrated(usd, plan.accuracy)
    return own or calibrated_by_any(usd, plan.latency_source), own is not None


def price_error(plan: Plan) -> str:
    a, model, (likely, own) = plan.accuracy, plan.decision.model, likely_price(plan)
    span = "" if likely is None else usd_range(likely.interval)
    if a is None or likely is None or not own:
        known = "unknown: no servings of this kind were compared"
        known = f"{span} by servings of other kinds of models" if span else known
        share = asked_number(plan, "utilization") or 1.0
        full = "full servers" if share == 1.0 else f"servers used {share:.0%}"
        return f"{known}; {full}, {format_usd(plan.usd_per_gpu_hour)} a GPU hour"
    times = "" if (late := late_tpot_s(plan)) is None else f", TPOT {format_seconds(late)} ({_stricter(plan)} keeps it)"
    likely_ttft_s = 0.0 if a.ttft is None else (model.ttft_s or 0.0) / a.ttft.geometric_mean
    if likely_ttft_s > (0.0 if "max_ttft_s" in plan.asked else LONG_TTFT_S):
        times += f", TTFT {format_seconds(likely_ttft_s)}"
    times += ttft_doubt(a, plan.asked.get("max_ttft_s"))
    hourly = f"{format_usd(plan.usd_per_gpu_hour)}/h"
    faster = plan.faster_usd_per_mtok or 0.0
    step = f"; {format_usd(faster)} past a step of TPOT" if faster > PRICE_STEP * model.usd_per_mtok else ""
    return f"corrected {format_usd(likely.usd_per_mtok)} ({span}{step}){times}; {a.n} {a.kind} servings, {hourly}"


def _stricter(plan: Plan) -> str:
    """The limit of TPOT that keeps the stated one by the known error of its kind."""
    band, limit = plan.accuracy and plan.accuracy.tpot, asked_number(plan, "max_tpot_s") or 0.0
    return f"--max-tpot {math.floor(1e4 * limit * (band.geometric_mean if band else 1.0)) / 10:g}ms"


def limits_text(plan: Plan) -> str:
    """What a limit of TTFT is of, and the command that gives percentiles; empty without one."""
    if asked_number(plan, "max_ttft_s") is None:
        return ""
    loaded, split, at = plan.open_loop, plan.open_loop_apart, plan.open_loop or plan.open_loop_apart
    whole = "TTFT of a full pass" if plan.asked.get("disaggregated") else "means at full load"
    found = [format_usd(loaded.usd_per_mtok)] if loaded else []
    if split is not None:
        found.append(
            f"{'apart ' * bool(loaded)}{format_usd(split.usd_per_mtok)} ({split.prefill.gpus} + {split.decode.gpus} GPUs)"
        )
    price = f"for 99% of requests {', '.join(found)}: " if found else ""
    options = f"--request-rate {f'{at.requests_per_s:g}' if at else 'R'} --percentile 99"
    options += " --prefill-gpus auto" if split or plan.asked.get("disaggregated") else ""
    return f"{whole}; {price}cost plan.json:recommendation .. {options}"
