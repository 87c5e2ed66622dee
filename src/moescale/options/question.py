"""What a plan is asked, as users state it: the budget, its bounds, the models to consider, the price of training."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from moescale import bounds
from moescale.errors import InfeasibleError, InputError, MoescaleError, located, unknown_name
from moescale.options.fields import Group, flag, listed, quantity, text, within
from moescale.options.law import DETAILS, LawOptions
from moescale.units import expert_model

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.planning.allocation import Budget
    from moescale.planning.question import KnownModel, Question
    from moescale.planning.training_price import TrainingPrice
    from moescale.scaling_laws import Law
    from moescale.serving.deployment import Deployment
    from moescale.training.choice import Launch

MOST_COUNTS = 256  # expert counts of one plan
COUNTS = within(bounds.COUNT)
SCORE = within(bounds.SHARE)  # a share of right answers
# What a question has by the option's own name.
SAME = (
    *("max_usd_per_mtok", "max_total_usd", "max_active_params", "max_total_params"),
    *("lifetime_tokens", "confidence", "vocab_size", "disaggregated"),
)
MODELS, LIFE = "Models to consider", "Training price and lifetime"
bounded, of_life = partial(quantity, panel="Bounds"), partial(quantity, panel=LIFE)
considered = partial(text, panel=MODELS, metavar="LIST")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Group):
    """What training costs, and how many tokens a model serves in its life."""

    lifetime_tokens: float | None = of_life("Output tokens to serve; plans the life of the lowest cost.", bounds.TOKENS)
    train_gpu: str | None = text("GPU to train on; default: --gpu.", panel=LIFE)
    train_gpus: int | None = of_life("GPUs to train on; default: what ends the run within 30 days.", whole=True)
    mfu: float | None = of_life("MFU of training; default: predicted from the parts of a training step.", bounds.SHARE)
    train_precision: str | None = text("Precision of training products: bf16 or fp8; default: bf16.", panel=LIFE)
    train_usd_per_gpu_hour: float | None = of_life("Price of a GPU hour of training.", bounds.USD_PER_HOUR)

    def training_gpu(self, deployment: Deployment) -> Gpu:
        """The GPU to train on, by default the one that serves."""
        from moescale.hardware.gpus import load_gpu

        with located("--train-gpu"):
            return deployment.gpu if self.train_gpu is None else load_gpu(self.train_gpu)

    def training_price(self, deployment: Deployment, launch: Launch | None = None) -> TrainingPrice:
        """The price of training; a stated GPU without a price is refused. `launch`: of the runs that are timed."""
        from moescale.hardware.prices import usd_per_gpu_hour
        from moescale.planning.training_price import TrainingPrice, default_mfu

        gpu, usd = self.training_gpu(deployment), self.train_usd_per_gpu_hour
        launch = self._in_precision(launch, gpu)
        if usd is None and gpu.name == deployment.gpu.name:
            usd = float(deployment.usd_per_gpu_hour)
        elif usd is None:
            try:
                usd = usd_per_gpu_hour(gpu)
            except InputError as error:
                where, next_step = error.where or "--train-gpu", "give --train-usd-per-gpu-hour as well"
                raise InputError(error.what, where=where, nearest=error.nearest, next_step=next_step) from error
        mfu = default_mfu() if self.mfu is None else self.mfu
        return TrainingPrice(gpu=gpu, usd_per_gpu_hour=usd, mfu=mfu, timed=self.mfu is None, launch=launch)

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

    budget: float | None = quantity("Training FLOPs, such as 5.15e21; instead: --days or --budget-usd.", bounds.FLOPS)
    days: float | None = quantity("Days of training; they buy FLOPs at the predicted MFU.", bounds.DAYS)
    budget_usd: float | None = quantity("Dollars for training.", bounds.TOTAL_USD)
    experts: str | None = considered("Expert counts to consider, such as 8,16,32 or '<=16'; default: the shape's.")
    match: str | None = text("Baseline: experts, loss or model; default: the best dense model.", metavar="E|LOSS|MODEL")
    target: str | None = text("Benchmark score of a dense baseline, such as hellaswag=0.75.", metavar="TASK=SCORE")
    match_experts: int | None = quantity("Baseline by its expert count, as --match E.", whole=True, panel=MODELS)
    against: str | None = considered("Published models to show, such as deepseek-v3:15T; default: the nearest.")
    objective: str | None = text("Goal: serve, quality, lifetime or loss.")
    confidence: float | None = bounded(
        "Required probability of reaching the loss; default: 0.8 of a law with draws of sources.", bounds.SHARE
    )
    max_loss: float | None = bounded("Highest loss; replaces the baseline's loss.", bounds.LOSS)
    max_usd_per_mtok: float | None = bounded("Most dollars per million output tokens.", bounds.USD_PER_MTOK)
    max_tokens: float | None = bounded(
        "Most training tokens; default: the most published (with --unique-tokens 4 epochs).", bounds.TOKENS
    )
    max_active_params: float | None = bounded("Most active parameters, without embeddings.", bounds.PARAMETERS)
    max_total_params: float | None = bounded("Most total parameters, without embeddings.", bounds.PARAMETERS)
    max_days: float | None = bounded("Most days of training on --train-gpus.", bounds.DAYS)
    within_chance: float | None = bounded("Chance to stay within days or dollars; default: about half.", bounds.SHARE)
    max_total_usd: float | None = of_life("Dollars for training and serving together.", bounds.TOTAL_USD)
    disaggregated: bool = flag("Price models with prefill and decode on GPUs of their own.", panel="Price")
    bootstrap: int | None = quantity("Draws of the law; default: all; 0: no intervals.", bounds.DRAWS, panel=DETAILS)
    vocab_size: int | None = quantity("Vocabulary; default: the law's, or 32000.", 2, whole=True, panel=MODELS)

    def question(
        self,
        law: Law,
        deployment: Deployment,
        details: LawOptions | None = None,
        *,
        kv_heads: int | None = None,
        launch: Launch | None = None,
    ) -> Question:
        """The question under the `details` of a law.

        Its budget is what days and dollars buy at the MFU of the base. `launch` says how the run is trained. Raises InputError that names the option.
        """
        from moescale.models.recipe import most_trained_tokens
        from moescale.options.known import nearest_published, published_model
        from moescale.planning.allocation import FEW_EPOCHS, Budget
        from moescale.planning.question import Objective, Question

        details = details or LawOptions()
        base, loss = self.matched(law)
        if base is not None and self.train_precision is not None:
            base = replace(base, trained_in=None)
        tokens, epochs = most_trained_tokens() if self.max_tokens is None else self.max_tokens, None
        few = FEW_EPOCHS * (details.unique_tokens or math.inf)
        if few < tokens and (self.max_tokens, self.lifetime_tokens) == (None, None):
            tokens, epochs = few, FEW_EPOCHS
        objective: Any = self.objective
        sizes = (self.max_active_params, self.max_total_params)
        aims = (self.match, self.match_experts, self.target, self.max_loss, self.max_usd_per_mtok, self.lifetime_tokens)
        if objective is None and sizes != (None, None) and aims == (None,) * len(aims):
            objective = "loss"  # where a size is bounded and nothing else says what is looked for
        elif objective is not None and objective not in get_args(Objective):
            raise unknown_name("objective", objective, get_args(Objective), where="--objective")
        experts, base_experts = self.expert_counts(law), self._base_experts(law)

        def bought(training: TrainingPrice) -> tuple[str | None, float | None, Budget]:
            whose, most = self._most_flops(training, base, law)
            if self._limits[0] is not None and self.train_gpus is None:
                where = "--days" if self.days else "--max-days"
                raise InputError("needs a number of GPUs", where=where, next_step="give --train-gpus as well")
            each = training.flops_by_experts(*self._limits, most) if self.lifetime_tokens is None else ()
            flops = training.flops_bought(*self._limits, most)
            return whose, most, Budget(flops, tokens, details.inputs(), each, epochs)

        training = self.training_price(deployment, launch)
        limits = (self.days, self.budget_usd, self.max_days, self.max_total_usd, self.lifetime_tokens)
        _, _, first = bought(training)
        if training.timed and limits != (None,) * len(limits):
            training = self._by_parts(training, law, first, (*experts, base_experts))
        budget_of, most_flops, asked = bought(training)
        if self.against is not None:
            against = tuple(published_model(name, "--against") for name in listed("--against", self.against))
        else:
            against = nearest_published(asked.flops) if law.form.of_sources else ()
        same: dict[str, Any] = {name: getattr(self, name) for name in SAME}
        return Question(
            budget=asked,
            experts=experts,
            match_experts=base_experts,
            base=base,
            base_flops=self._base_flops(training, law, first) if asked.by_experts else None,
            budget_of=budget_of,
            target=None if self.target is None else "{}={}".format(*_score(self.target)),
            against=against,
            against_stated=self.against is not None,
            max_loss=loss if self.max_loss is None else None if self._of_loss else self.max_loss,
            training=training,
            train_gpus=None if self.train_gpus is None else float(self.train_gpus),
            max_days=self._limits[0],
            max_training_usd=self.budget_usd,
            max_flops=most_flops,
            kv_heads=self._kv_heads_of(base, law) if kv_heads is None else kv_heads,
            draws=self.bootstrap,
            convention=details.convention,
            objective=objective,
            **same,
        )

    def _by_parts(self, training: TrainingPrice, law: Law, budget: Budget, experts: tuple[float, ...]) -> TrainingPrice:
        """The price with the MFU of each expert count, at the base's; as stated where no split holds a model."""
        from moescale.planning.training_price import by_parts

        try:
            found = by_parts(training, law, budget, experts, gpus=self.train_gpus, vocab_size=self.vocab_size)
        except MoescaleError:
            return training
        return (
            found if found.mfu_by_experts is None else replace(found, mfu=float(found.mfu_at(self._base_experts(law))))
        )

    def matched(self, law: Law | None = None) -> tuple[KnownModel | None, float | None]:
        """The published model, or the loss, that --match names, or the dense model of the score that --target states."""
        from moescale.options.known import published_model

        if self.target is not None:
            if self.match is not None:
                raise InputError("names the baseline, as --match does", where="--target", next_step="leave one out")
            return (None if law is None else self._of_target(law, self.target)), None
        if self.match is None or self.match.strip().isdigit():
            return None, None
        with suppress(ValueError):
            return None, float(self.match)
        return published_model(self.match, "--match"), None

    def _of_target(self, law: Law, target: str) -> KnownModel:
        """The dense model of least training FLOPs that is expected to have a benchmark score; of the default shape where a law speaks of all."""
        from moescale.models.coordinates import in_family
        from moescale.models.rounding import buildable
        from moescale.options.law import PLANNED_SHAPE, in_shape
        from moescale.planning.question import KnownModel
        from moescale.planning.scores import dense_model_for

        law = in_shape(law, PLANNED_SHAPE) if law.form.of_sources else law
        task, wanted = _score(target)
        body, tokens = dense_model_for(task, wanted)
        n, _ = in_family(law.family, body, 1.0)
        shape = buildable(law.family, float(n), 1.0, vocab_size=self.vocab_size)
        name = f"the dense model of {task} {wanted:g}"
        return KnownModel(name=name, architecture=shape.architecture(), tokens=tokens)

    def _kv_heads_of(self, base: KnownModel | None, law: Law) -> float | None:
        """Those of the model that --match names, else one cache would be set against another; None: the law's."""
        if base is None or self.target is not None or law.family.kv_lora_rank or base.architecture.kv_lora_rank:
            return None
        heads, cached = (float(n) for n in (base.architecture.n_heads, base.architecture.n_kv_heads))
        return cached if cached < heads else None

    def _base_experts(self, law: Law) -> float:
        """The expert count of the base, as stated or as the law's family says."""
        if self.match is None or not self.match.strip().isdigit():
            return law.family.base_experts if self.match_experts is None else float(self.match_experts)
        if self.match_experts is not None:
            raise InputError("names the baseline, as --match does", where="--match-experts", next_step="leave one out")
        return COUNTS.parse(self.match, "--match")

    @property
    def _limits(self) -> tuple[float | None, float | None, float | None]:
        """Days, GPUs and dollars of training, as `TrainingPrice` takes them."""
        days = [days for days in (self.days, self.max_days) if days is not None]
        return min(days, default=None), self.train_gpus, self.budget_usd

    def _most_flops(
        self, training: TrainingPrice, base: KnownModel | None, law: Law
    ) -> tuple[str | None, float | None]:
        """The most FLOPs of training, and whose they are where no budget is stated; InputError for none or two."""
        from moescale.planning.total_cost import flops_optimal

        stated = {"--budget": self.budget, "--days": self.days, "--budget-usd": self.budget_usd}
        given = [name for name, value in stated.items() if value is not None]
        if len(given) == 1:
            return None, self.budget
        if not given and self.max_total_usd:
            return "the total dollars", self.max_total_usd / training.usd_per_flop
        if not given and base is not None:
            return base.name, base.training_flops
        if given or not self._of_loss or self.max_loss is None:
            what = f"{' and '.join(given)} state a budget each" if given else "no budget"
            for_life = "" if self.lifetime_tokens is None else ", --max-total-usd X or --max-loss X"
            ways = "--budget FLOPS, --train-gpus N --days X, --budget-usd X, --match MODEL for its FLOPs"
            raise InputError(what, where="--budget", next_step=f"give one of {ways}{for_life}")
        experts = self._base_experts(law)
        found, model = float(flops_optimal(law, experts, self.max_loss, 0.0).training_flops[0]), expert_model(experts)
        if not math.isfinite(found):
            what = f"no {model} has a loss of {self.max_loss:g} by {law.name}"
            raise InfeasibleError(what, where="--max-loss", next_step="give a higher loss, or --budget FLOPS")
        return f"the {model} of loss {self.max_loss:g}", found

    @property
    def _of_loss(self) -> bool:
        """Whether a life is asked for at a loss alone: the baseline is then the model that has it."""
        others = (self.budget, self.days, self.budget_usd, self.max_total_usd, self.match, self.target)
        return self.lifetime_tokens is not None and self.max_loss is not None and others == (None,) * len(others)

    def _base_flops(self, training: TrainingPrice, law: Law, budget: Budget) -> float | None:
        """What days or dollars buy the baseline, in bf16 whatever the others are trained in; None where FLOPs are stated."""
        if training.mfu_by_experts is None:
            return None
        if training.launch.precision != "bf16":
            plain = replace(training, mfu_by_experts=None, launch=replace(training.launch, precision="bf16"))
            training = self._by_parts(plain, law, budget, (self._base_experts(law),))
        own = replace(training, mfu=float(training.mfu_at(self._base_experts(law))))
        return own.flops_bought(*self._limits, self.budget)

    def expert_counts(self, law: Law) -> tuple[float, ...]:
        """The expert counts to consider: those that are stated, else those of the law's family."""
        from moescale.planning.question import ladder, only_experts

        if self.experts is None:
            only = only_experts(law)
            return ladder(law) if only is None else tuple(sorted({*law.family.ladder, only}))
        if (stated := self.experts.strip()).startswith("<="):
            most = COUNTS.parse(stated[2:].strip(), "--experts")
            return tuple(count for count in ladder(law) if count <= most) or (most,)
        parts = [part for part in self.experts.split(",") if part.strip()]
        if not 1 <= len(parts) <= MOST_COUNTS:
            what = f"{len(parts)} expert counts" if parts else f"{self.experts!r} is not a list of expert counts"
            next_step = "such as 1,4,8,16 or '<=16'"
            raise InputError(what, where="--experts", nearest=f"1 to {MOST_COUNTS} counts", next_step=next_step)
        return tuple(COUNTS.parse(part.strip(), "--experts") for part in parts)


def _score(target: str) -> tuple[str, float]:
    """The task and the score that --target states."""
    task, _, stated = target.partition("=")
    if not stated:
        nearest = f"{task.strip() or 'mmlu'}=0.45"
        raise InputError(f"{target!r} states no score", where="--target", nearest=nearest, next_step="write TASK=SCORE")
    return task.strip().lower(), SCORE.parse(stated, "--target")
