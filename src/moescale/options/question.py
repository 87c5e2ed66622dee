"""What a plan is asked, as users state it: the budget, its bounds, the models to consider, the price of training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, get_args

from moescale.errors import InfeasibleError, InputError, MoescaleError, located, unknown_name
from moescale.options.fields import (
    LEAST,
    LEAST_BOUND,
    MOST_LOSS,
    MOST_PARAMETERS,
    MOST_REPLICATES,
    MOST_TOKENS,
    MOST_TOTAL_USD,
    MOST_USD_PER_MTOK,
    Group,
    Quantity,
    listed,
    quantity,
    text,
)
from moescale.options.known import nearest_published, published_model
from moescale.options.law import DETAILS, LawOptions
from moescale.units import format_seconds

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.latency import LatencySource
    from moescale.planning.allocation import Budget
    from moescale.planning.plan import Plan
    from moescale.planning.question import KnownModel, Objective, Question
    from moescale.planning.training_price import TrainingPrice
    from moescale.scaling_laws import Law
    from moescale.serving.deployment import Deployment
    from moescale.training.choice import Launch

MOST_COUNTS = 256  # expert counts of one plan
MOST_DAYS = 1e5
SLOWER_S = (0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, math.inf)  # TPOTs that are tried where no model keeps a limit
COUNT = Quantity(whole=True)
SCORE = Quantity("", LEAST, 1)  # a share of right answers
MODELS, BOUNDS, LIFE = "Models to consider", "Bounds", "Training price and lifetime"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Group):
    """What training costs, and how many tokens a model serves in its life."""

    lifetime_tokens: float | None = quantity(
        "Output tokens to serve; adds the serving bill and the model with the lowest total cost.",
        most=MOST_TOKENS,
        unit="tokens",
        panel=LIFE,
    )
    train_gpu: str | None = text("GPU to train on; default: --gpu.", panel=LIFE)
    train_gpus: int | None = quantity(
        "Number of GPUs to train on; default: as many as hold the run and end it within 30 days.",
        whole=True,
        panel=LIFE,
    )
    mfu: float | None = quantity(
        "MFU of training; default: predicted from the parts of a training step.",
        LEAST,
        1,
        panel=LIFE,
    )
    train_precision: str | None = text(
        "Precision of training products: bf16 or fp8; default: bf16; exports train in bf16.", panel=LIFE
    )
    train_usd_per_gpu_hour: float | None = quantity(
        "Price of a GPU hour of training; default: the serving price, or the catalogue's for --train-gpu.",
        LEAST,
        panel=LIFE,
    )

    def training_gpu(self, deployment: Deployment) -> Gpu:
        """The GPU to train on, by default the one that serves."""
        from moescale.hardware.gpus import load_gpu

        with located("--train-gpu"):
            return deployment.gpu if self.train_gpu is None else load_gpu(self.train_gpu)

    def training_price(
        self, deployment: Deployment, *, unpriced: bool = False, launch: Launch | None = None
    ) -> TrainingPrice | None:
        """The price of training; None for a GPU without a price that nothing needs. `launch`: of the runs that are timed.

        Where a lifetime, a GPU to train on, its price or its MFU is stated, such a GPU is refused unless `unpriced`.
        """
        from moescale.hardware.prices import usd_per_gpu_hour
        from moescale.planning.training_price import TrainingPrice, default_mfu

        launch = self._in_precision(launch, self.training_gpu(deployment))
        stated = (self.lifetime_tokens, self.train_gpu, self.mfu, self.train_usd_per_gpu_hour)
        unpriced = unpriced or stated == (None,) * 4
        gpu, usd = self.training_gpu(deployment), self.train_usd_per_gpu_hour
        if usd is None:
            try:
                own = gpu.name == deployment.gpu.name
                usd = float(deployment.usd_per_gpu_hour) if own else usd_per_gpu_hour(gpu)
            except InputError as error:
                if self.lifetime_tokens is None and unpriced:
                    return None
                next_step = "give --train-usd-per-gpu-hour as well"
                raise InputError(
                    error.what, where=error.where or "--train-gpu", nearest=error.nearest, next_step=next_step
                ) from error
        return TrainingPrice(
            gpu=gpu,
            usd_per_gpu_hour=usd,
            mfu=default_mfu() if self.mfu is None else self.mfu,
            timed=self.mfu is None,
            launch=launch,
        )

    def _in_precision(self, stated: Launch | None, gpu: Gpu) -> Launch:
        """A launch in the precision that is stated; InputError where the GPU lacks it, the trainer's files do, or an MFU is stated."""
        from moescale.training.choice import Launch

        where, precisions, launch = "--train-precision", ("bf16", "fp8"), stated or Launch()
        if self.train_precision in (None, "bf16"):
            return launch
        if self.train_precision not in precisions:
            raise unknown_name("precision", str(self.train_precision), precisions, where=where)
        if self.mfu is not None:
            raise InputError("has no effect beside a stated --mfu", where=where, next_step="leave one out")
        if stated is not None:
            raise InputError("exported files train in bf16", where=where, next_step="leave it out, or --export")
        if gpu.fp8_flops_per_s is None:
            raise InputError(f"{gpu.name} has no fp8 arithmetic", where=where, nearest="bf16")
        return replace(launch, precision="fp8")


@dataclass(frozen=True, kw_only=True)
class BoundOptions(TrainingOptions):
    """The budget of a plan, what bounds it, and what training costs.

    >>> bounds = BoundOptions(budget=5.15e21, experts="1,8,16", match_experts=8, max_tokens=2e12)
    >>> question = bounds.question(LawOptions().find_law(), ServingOptions().deployment())
    """

    budget: float | None = quantity(
        "Training FLOPs, such as 5.15e21; instead: --train-gpus and --days, or --budget-usd.",
        1e12,
        1e32,
        unit="FLOPs",
    )
    days: float | None = quantity("Days of training; they buy FLOPs at the predicted MFU.", LEAST, MOST_DAYS)
    budget_usd: float | None = quantity("Dollars for training.", LEAST_BOUND, MOST_TOTAL_USD)
    experts: str | None = text(
        "Expert counts to consider; default: 1,4,8,16,32,64, or those of --shape.", metavar="LIST", panel=MODELS
    )
    match: str | None = text(
        "Baseline: expert count, loss or model name; default: 4; an expert count means its loss-optimal model.",
        metavar="E|LOSS|MODEL",
    )
    target: str | None = text(
        "Benchmark score to reach: the baseline is the dense model that is expected to; such as hellaswag=0.75.",
        metavar="TASK=SCORE",
    )
    match_experts: int | None = quantity(
        "Baseline by its expert count; the same as --match E.", whole=True, panel=MODELS
    )
    against: str | None = text(
        "Published models to show with the plan, such as deepseek-v3:15T (its tokens); default: the nearest in training FLOPs.",
        metavar="LIST",
        panel=MODELS,
    )
    objective: str | None = text(
        "Goal: serve, quality, lifetime or loss; serve: cheapest at the baseline's loss, quality: lowest loss at a serving cost, "
        "lifetime: lowest cost of training and serving, loss: lowest loss; without it, the bounds decide.",
    )
    confidence: float | None = quantity(
        "Required probability of reaching the loss; default: 0.8 for an ensemble; for one law, its central curve.",
        LEAST,
        1,
        panel=BOUNDS,
    )
    max_loss: float | None = quantity(
        "Highest loss; replaces the baseline's loss.", LEAST_BOUND, MOST_LOSS, panel=BOUNDS
    )
    max_usd_per_mtok: float | None = quantity(
        "Highest serving cost in dollars per million output tokens.", LEAST_BOUND, MOST_USD_PER_MTOK, panel=BOUNDS
    )
    max_tokens: float | None = quantity(
        "Most training tokens; default: the most that a published model was trained on.",
        most=MOST_TOKENS,
        unit="tokens",
        panel=BOUNDS,
    )
    max_active_params: float | None = quantity(
        "Most active parameters, without embeddings.", most=MOST_PARAMETERS, unit="parameters", panel=BOUNDS
    )
    max_total_params: float | None = quantity(
        "Most total parameters, without embeddings.", most=MOST_PARAMETERS, unit="parameters", panel=BOUNDS
    )
    max_days: float | None = quantity("Most days of training on --train-gpus.", LEAST, MOST_DAYS, panel=BOUNDS)
    max_total_usd: float | None = quantity(
        "Dollars for training and serving together; needs --lifetime-tokens.",
        LEAST_BOUND,
        MOST_TOTAL_USD,
        panel=LIFE,
    )
    bootstrap: int | None = quantity(
        "Draws of the law for intervals; default: all; 0: no intervals.", 0, MOST_REPLICATES, whole=True, panel=DETAILS
    )
    vocab_size: int | None = quantity(
        "Vocabulary of the served and exported model; default: the law's, or 32000.",
        2,
        whole=True,
        panel=MODELS,
    )

    def question(
        self,
        law: Law,
        deployment: Deployment,
        details: LawOptions | None = None,
        *,
        kv_heads: int | None = None,
        unpriced: bool = False,
        buys_at: float | None = None,
        launch: Launch | None = None,
    ) -> Question:
        """The question under the `details` of a law; `unpriced`: training may be on a GPU without a price, and has then none.

        Days and dollars buy FLOPs at the MFU `buys_at`, by default that of the base. `launch` says how the run is trained.

        Raises InputError that names the option.
        """
        from moescale.models.recipe import text_ceiling
        from moescale.planning.allocation import Budget
        from moescale.planning.question import Objective, Question

        stated = details or LawOptions()
        base, loss = self._matched(law)
        tokens = text_ceiling().largest_trained_tokens if self.max_tokens is None else self.max_tokens
        objectives = {name: name for name in get_args(Objective)}
        if self.objective is not None and self.objective not in objectives:
            raise unknown_name("objective", self.objective, objectives, where="--objective")
        experts = self.expert_counts(law)

        def budget(training: TrainingPrice | None) -> Budget:
            return Budget(self.flops(training, base), tokens, stated.inputs())

        training = self.training_price(deployment, unpriced=unpriced, launch=launch)
        bought = (self.days, self.budget_usd, self.max_days, self.max_total_usd, self.lifetime_tokens)
        if training is not None and training.timed and bought != (None,) * len(bought):
            training = self._by_parts(training, law, budget(training), (*experts, self._base_experts(law)))
            training = training if buys_at is None else replace(training, mfu=buys_at)
        asked = budget(training)
        if self.against is not None:
            against = tuple(published_model(name, "--against") for name in listed("--against", self.against))
        else:
            against = nearest_published(asked.flops) if law.form.of_sources else ()
        return Question(
            budget=asked,
            experts=experts,
            match_experts=self._base_experts(law),
            base=base,
            flops_of_base=self._flops_of_base(base),
            flops_of_total=(self.budget, self.days, self.budget_usd) == (None,) * 3 and self.max_total_usd is not None,
            against=against,
            max_loss=loss if self.max_loss is None else self.max_loss,
            max_usd_per_mtok=self.max_usd_per_mtok,
            lifetime_tokens=self.lifetime_tokens,
            training=training,
            train_gpus=None if self.train_gpus is None else float(self.train_gpus),
            max_total_usd=self.max_total_usd,
            kv_heads=kv_heads,
            vocab_size=self.vocab_size,
            draws=self.bootstrap,
            convention=stated.convention,
            objective=self._implied() if self.objective is None else objectives[self.objective],
            confidence=self.confidence,
            max_active_params=self.max_active_params,
            max_total_params=self.max_total_params,
        )

    def _implied(self) -> Objective | None:
        """The lowest loss, where a size is bounded and nothing else says what is looked for."""
        sizes = (self.max_active_params, self.max_total_params)
        aims = (self.match, self.match_experts, self.target, self.max_loss, self.max_usd_per_mtok, self.lifetime_tokens)
        return "loss" if sizes != (None, None) and aims == (None,) * len(aims) else None

    def _by_parts(self, training: TrainingPrice, law: Law, budget: Budget, experts: tuple[float, ...]) -> TrainingPrice:
        """The price with the MFU of each expert count from the parts of a training step; days and dollars buy at the base's.

        As stated where no split holds a model, and for a law that a plan refuses anyway.
        """
        from moescale.planning.training_price import training_rate

        try:
            rate = training_rate(
                law,
                budget,
                experts,
                training.gpu,
                gpus=self.train_gpus,
                vocab_size=self.vocab_size,
                launch=training.launch,
            )
        except MoescaleError:
            return training
        return training if rate is None else replace(training, rate=rate, mfu=float(rate.at(self._base_experts(law))))

    def plan(
        self,
        law: Law,
        deployment: Deployment,
        latency: LatencySource,
        details: LawOptions | None = None,
        *,
        kv_heads: int | None = None,
        unpriced: bool = False,
        launch: Launch | None = None,
        slower: bool = False,
    ) -> Plan:
        """The plan of the `question`, whose model takes the days or dollars that are stated.

        Shapes jump with the budget, and the MFU with them: of a few plans the largest that stays within what is stated.
        Where no model keeps the deployment's TPOT, the plan is made at the nearest that one keeps, with a warning, if it
        may be `slower`; else it is refused with that TPOT.
        """
        limit = deployment.max_tpot_s
        made = partial(self._plan, law, latency=latency, details=details, kv_heads=kv_heads)
        made = partial(made, unpriced=unpriced, launch=launch)
        try:
            return made(deployment)
        except InfeasibleError as error:
            if limit is None:
                raise
            for tpot_s in [s for s in SLOWER_S if s > float(limit)]:
                try:
                    found = made(replace(deployment, max_tpot_s=None if tpot_s == math.inf else tpot_s))
                except InfeasibleError:
                    continue
                nearest = "none" if tpot_s == math.inf else format_seconds(tpot_s).replace(" ", "")
                if not slower:
                    next_step = f"give --max-tpot {nearest}, or take a faster GPU"
                    raise InfeasibleError(error.what, nearest=f"--max-tpot {nearest}", next_step=next_step) from error
                slow = f"no model serves within {format_seconds(float(limit))} per output token: planned with --max-tpot {nearest}"
                return replace(found, warnings=(slow, *found.warnings))
            raise

    def _plan(
        self,
        law: Law,
        deployment: Deployment,
        latency: LatencySource,
        details: LawOptions | None,
        kv_heads: int | None,
        unpriced: bool,
        launch: Launch | None,
    ) -> Plan:
        from moescale.planning.plan import make_plan
        from moescale.planning.within import plan_within

        def at(mfu: float | None) -> Plan:
            question = self.question(
                law, deployment, details, kv_heads=kv_heads, unpriced=unpriced, buys_at=mfu, launch=launch
            )
            return make_plan(law, question, deployment, latency)

        most = {"days": self.days or self.max_days, "usd": self.budget_usd}
        return plan_within(at, {} if self.mfu is not None else most, self.budget)

    def _matched(self, law: Law | None = None) -> tuple[KnownModel | None, float | None]:
        """The published model, or the loss, that --match names, or the dense model of the score that --target states."""
        if self.target is not None:
            if self.match is not None:
                raise InputError("names the baseline, as --match does", where="--target", next_step="leave one out")
            return (None if law is None else self._of_target(law, self.target)), None
        if self.match is None or self.match.strip().isdigit():
            return None, None
        try:
            return None, float(self.match)
        except ValueError:
            pass
        return published_model(self.match, "--match"), None

    def _of_target(self, law: Law, target: str) -> KnownModel:
        """The dense model of least training FLOPs that is expected to have a benchmark score."""
        from moescale.models.coordinates import in_family
        from moescale.models.family import architecture
        from moescale.planning.question import KnownModel
        from moescale.planning.scores import dense_model_for

        task, _, stated = target.partition("=")
        if not stated:
            nearest = f"{task.strip() or 'mmlu'}=0.45"
            raise InputError(
                f"{target!r} states no score", where="--target", nearest=nearest, next_step="write TASK=SCORE"
            )
        wanted = SCORE.parse(stated, "--target")
        body, tokens = dense_model_for(task.strip(), wanted)
        n, _ = in_family(law.family, body, 1.0)
        name = f"the dense model of {task.strip().lower()} {wanted:g}"
        return KnownModel(name=name, architecture=architecture(law.family, float(n), 1.0), tokens=tokens)

    def _base_experts(self, law: Law) -> float:
        """The expert count of the base, as stated or as the law's family says."""
        stated = [self.match] if self.match is not None and self.match.strip().isdigit() else []
        if stated and self.match_experts is not None:
            raise InputError("names the baseline, as --match does", where="--match-experts", next_step="leave one out")
        if stated:
            return COUNT.parse(stated[0], "--match")
        return law.family.base_experts if self.match_experts is None else float(self.match_experts)

    def flops(self, training: TrainingPrice | None, base: KnownModel | None = None) -> float:
        """The training FLOPs that are stated, that time or dollars buy, or of the base; InputError for none or two budgets."""
        stated = {"--budget": self.budget, "--days": self.days, "--budget-usd": self.budget_usd}
        given = [name for name, value in stated.items() if value is not None]
        if base is not None and self._flops_of_base(base):
            flops = base.training_flops
        elif not given and self.max_total_usd is not None and training is not None:
            return self.max_total_usd / training.usd_per_flop
        elif len(given) != 1:
            what = "no budget" if not given else f"{' and '.join(given)} state a budget each"
            raise InputError(
                what, where="--budget", next_step="give --budget FLOPS, --train-gpus N --days X, or --budget-usd X"
            )
        elif self.budget is not None:
            flops = self.budget
        elif training is None:
            raise InputError(
                "needs a priced GPU to train on", where=given[0], next_step="give --train-usd-per-gpu-hour as well"
            )
        else:
            flops = self._flops_of_days(training, "--days", self.days) if self.days else None
            flops = flops or (self.budget_usd or 0.0) / training.usd_per_flop
        if self.max_days is not None and training is not None:
            return min(flops, self._flops_of_days(training, "--max-days", self.max_days))
        return flops

    def _flops_of_base(self, base: KnownModel | None) -> bool:
        """Whether the budget is the training FLOPs of the published base, as none is stated."""
        return base is not None and (self.budget, self.days, self.budget_usd, self.max_total_usd) == (None,) * 4

    def _flops_of_days(self, training: TrainingPrice, option: str, days: float) -> float:
        from moescale.planning.training_price import flops_of_gpu_hours

        if self.train_gpus is None:
            raise InputError("needs a number of GPUs", where=option, next_step="give --train-gpus as well")
        return flops_of_gpu_hours(training.gpu, 24.0 * days * self.train_gpus, training.mfu)

    def expert_counts(self, law: Law) -> tuple[float, ...]:
        """The expert counts to consider: those that are stated, else those of the law's family."""
        from moescale.planning.question import ladder, only_experts

        if self.experts is None:
            only = only_experts(law)
            return ladder(law) if only is None else tuple(sorted({*law.family.ladder, only}))
        parts = [part for part in self.experts.split(",") if part.strip()]
        if not 1 <= len(parts) <= MOST_COUNTS:
            what = f"{len(parts)} expert counts" if parts else f"{self.experts!r} is not a list of expert counts"
            raise InputError(
                what, where="--experts", nearest=f"1 to {MOST_COUNTS} counts", next_step="such as 1,4,8,16"
            )
        return tuple(COUNT.parse(part.strip(), "--experts") for part in parts)
