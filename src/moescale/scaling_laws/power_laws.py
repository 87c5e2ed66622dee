"""Laws that are a sum of power terms, L = sum_k a_k / (v^p w^q ..): all of their calculus follows from the terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from moescale.scaling_laws.form import EXPONENT, Inputs, LawForm, Parameter, Shape, below_losses
from moescale.typing import FloatArray, Real


def power_law(
    *,
    parameters: tuple[Parameter, ...],
    terms: Mapping[str, Mapping[str, str]],
    variables: Callable[[Inputs], dict[str, FloatArray]] = lambda _: {},
    **about: Any,
) -> LawForm:
    """The form that is the sum of `terms`, each an amplitude over a product of powers; `about` are further fields of LawForm.

    A term is the name of its amplitude, and the exponent's name of each variable in it: "n", "d" and "e", or one of `variables`,
    which gives their logarithms, (n,) each.
    """
    scanned = [parameter.name for parameter in parameters if parameter.scan]
    powers = [terms[parameter.name] for parameter in parameters if not parameter.scan]

    def parts(shape: Shape, x: Inputs) -> tuple[list[FloatArray | float], float]:
        exponents = dict(zip(scanned, shape, strict=True))
        values = {"n": x.ln_n, "d": x.ln_d, "e": np.log(x.experts), **variables(x)}
        return [-sum(exponents[e] * values[v] for v, e in of_term.items()) for of_term in powers], 0.0

    uses_experts = any("e" in of_term for of_term in powers)
    return LawForm(parameters=parameters, parts=parts, uses_experts=uses_experts, **about)


# The dense law of Hoffmann et al. (arXiv 2203.15556, approach 3): L = E + A / N^alpha + B / D^beta.
CHINCHILLA = power_law(
    name="chinchilla",
    title="dense law in N and D",
    equation="L = E + A/N^alpha + B/D^beta",
    source="Hoffmann et al. 2022, arXiv 2203.15556, section 3.3",
    parameters=(
        Parameter("E", True, "irreducible loss", box=below_losses),
        Parameter("A", True, "amplitude of the size term"),
        Parameter("B", True, "amplitude of the data term"),
        Parameter("alpha", False, "exponent of the size term", scan=(0.05, 1.5)),
        Parameter("beta", False, "exponent of the data term", scan=(0.05, 1.5)),
    ),
    terms={"E": {}, "A": {"n": "alpha"}, "B": {"d": "beta"}},
)

# The law of fine-grained MoE of Krajewski et al. (arXiv 2402.07871, equation 9).
#
#     L = c + (g / G^gamma + a) / N^alpha + b / D^beta
#
# N counts ALL parameters of all experts without embeddings, N = d_model^2 (8 E + 4) n_layers at E = 64 (some notes say active:
# that is wrong). The expansion rate is E = 64 in every run, so E is not an input. `granularity` G = d_ff / d_expert with
# d_ff = 4 d_model: a layer has G E experts, of which a token meets G (default 1: ordinary experts). Nats per token of C4.
KRAJEWSKI = power_law(
    name="krajewski2024",
    title="fine-grained MoE",
    equation="L = c + (g/G^gamma + a)/N^alpha + b/D^beta",
    source="Krajewski et al. 2024, arXiv 2402.07871, equation 9",
    parameters=(
        Parameter("a", True, "amplitude of the size term that granularity leaves"),
        Parameter("alpha", False, "exponent of the size term", scan=(0.05, 1.0)),
        Parameter("b", True, "amplitude of the data term"),
        Parameter("beta", False, "exponent of the data term", scan=(0.05, 1.0)),
        Parameter("g", True, "amplitude of the size term that granularity reduces"),
        Parameter("gamma", False, "exponent of granularity", scan=(0.1, 2.0)),
        Parameter("c", True, "irreducible loss", box=below_losses),
    ),
    terms={"a": {"n": "alpha"}, "b": {"d": "beta"}, "g": {"granularity": "gamma", "n": "alpha"}, "c": {}},
    variables=lambda x: {"granularity": np.log(x.extra["granularity"])},
    extra_inputs={"granularity": 1.0},
)

# The law of sparsely-connected models of Frantar et al. (arXiv 2309.08520, equation 1).
#
#     L = (a_S (1 - S)^b_S + c_S) / N^b_N + (a_D / D)^b_D + c
#
# N counts the non-zero parameters (whether embeddings count is not known to us), `sparsity` S is the share of weights that
# are zero (default 0: dense), D the training data: tokens of C4 for T5, images of JFT for ViT. The search moves
# b_D ln a_D, the logarithm of the data term's amplitude, in place of a_D.
FRANTAR = power_law(
    name="frantar2023",
    title="models with sparse weights",
    equation="L = (a_S (1-S)^b_S + c_S)/N^b_N + (a_D/D)^b_D + c",
    source="Frantar et al. 2023, arXiv 2309.08520, equation 1",
    parameters=(
        Parameter("a_S", True, "amplitude of the size term that sparsity reduces"),
        Parameter("b_S", False, "exponent of the share of weights that is kept", scan=(0.1, 2.0)),
        Parameter("c_S", True, "amplitude of the size term that sparsity leaves"),
        Parameter("b_N", False, "exponent of the size term", scan=(0.05, 1.0)),
        Parameter(
            "a_D", True, "data at which the data term is 1", box=(-14.0, 60.0),
            to_search=lambda given: np.log(given["a_D"]) * given["b_D"],
            to_public=lambda moved: np.exp(moved["a_D"] / moved["b_D"]),
        ),
        # It stays above zero, so that a_D is a finite number.
        Parameter("b_D", False, "exponent of the data term", scan=(0.05, 1.5), box=(0.05, 3.0)),
        Parameter("c", True, "irreducible loss", box=below_losses),
    ),
    terms={"a_S": {"dense_per_kept": "b_S", "n": "b_N"}, "c_S": {"n": "b_N"}, "a_D": {"d": "b_D"}, "c": {}},
    variables=lambda x: {"dense_per_kept": -np.log1p(-x.extra["sparsity"])},
    extra_inputs={"sparsity": 0.0},
)  # fmt: skip


def sparsity_of(experts: FloatArray, top_k: Real) -> dict[str, FloatArray]:
    """S of models that activate min(top_k, E) of E experts; same shape."""
    return {"sparsity": 1.0 - np.minimum(top_k, experts) / experts}


# The law of parameters against FLOPs of Abnar et al. (arXiv 2501.12370, equation 6).
#
#     L = a / N^alpha + b / D^beta + c / (1 - S)^lam + d / ((1 - S)^delta N^gamma) + e
#
# N counts ALL parameters of the whole network, all experts included, embeddings not excluded; `sparsity` S is the share of
# inactive experts (E - K) / E, not a ratio of parameters, and must be given. Nats per token of RedPajama. A negative lam (as
# published) makes the third term fall with sparsity, so the law trades it against the fourth.
EITHER_SIGN = (-0.5, 0.5), (-EXPONENT[1], EXPONENT[1])  # where a search begins, and the box
ABNAR = power_law(
    name="abnar2025",
    title="MoE law in total size and sparsity",
    equation="L = a/N^alpha + b/D^beta + c/(1-S)^lam + d/((1-S)^delta N^gamma) + e",
    source="Abnar et al. 2025, arXiv 2501.12370, equation 6",
    parameters=(
        Parameter("a", True, "amplitude of the size term"),
        Parameter("alpha", False, "exponent of the size term", scan=(0.1, 1.0)),
        Parameter("b", True, "amplitude of the data term"),
        Parameter("beta", False, "exponent of the data term", scan=(0.1, 1.0)),
        Parameter("c", True, "amplitude of the sparsity term"),
        Parameter("lam", False, "exponent of the share of active experts in the sparsity term", *EITHER_SIGN),
        Parameter("d", True, "amplitude of the interaction term"),
        Parameter("delta", False, "exponent of the share of active experts in the interaction term", *EITHER_SIGN),
        Parameter("gamma", False, "exponent of size in the interaction term", scan=(0.02, 0.6)),
        Parameter("e", True, "irreducible loss", box=below_losses),
    ),
    terms={
        "a": {"n": "alpha"},
        "b": {"d": "beta"},
        "c": {"active_share": "lam"},
        "d": {"active_share": "delta", "n": "gamma"},
        "e": {},
    },
    variables=lambda x: {"active_share": np.log1p(-x.extra["sparsity"])},
    extra_inputs={"sparsity": None},
    implied_inputs=sparsity_of,
)
