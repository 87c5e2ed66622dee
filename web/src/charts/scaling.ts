// Loss-optimal size, or tokens, against the training budget: a band over all expert counts, the recommended count's line, and the
// answer as a ring.

import { COUNT_LABEL, PARAMS, POWERS, Table, View, X_DOMAIN, Y_DOMAIN, halo } from "../chart";
import { Ink, colour } from "../theme";
import { Plan, Scales } from "../types";

export const MARGINS = { left: 52, right: 16 };

const HEIGHT = 240;
export type Field = "n_params" | "tokens";

export function spec(field: Field): (paper: Ink) => object {
  const title = field === "n_params" ? "N (dense-equivalent parameters)" : "training tokens D";
  return (paper) => {
    const x = { field: "budget", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "training budget (FLOPs)", axis: { labelExpr: "replace(format(datum.value, '~e'), '+', '')", values: POWERS.filter((_, i) => i % 2 === 0) } };
    const y = { field: "value", type: "quantitative", scale: { type: "log", nice: false, domain: Y_DOMAIN }, title, axis: { labelExpr: COUNT_LABEL, values: POWERS } };
    const tint = { field: "colour", type: "nominal", scale: null };
    return {
      height: HEIGHT,
      padding: { ...MARGINS, top: 8, bottom: 38 },
      params: PARAMS,
      layer: [
        { data: { name: "band" }, mark: { type: "area", color: paper.frontier, opacity: 0.55 }, encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" } } },
        { data: { name: "rule" }, mark: { type: "rule", strokeDash: [2, 3], color: paper.faint }, encoding: { x } },
        { data: { name: "lines" }, mark: { type: "line", strokeWidth: 2.2 }, encoding: { x, y, color: tint } },
        { data: { name: "choice" }, mark: { type: "point", filled: false, size: 160, strokeWidth: 2.2, color: paper.accent, opacity: 1 }, encoding: { x, y } },
        ...halo("choice", { x, y, text: { field: "label" } }, { align: "left", dx: 12, dy: field === "n_params" ? 14 : -14, fontWeight: "bold" }, paper.accent, paper),
        ...halo("names", { x, y, text: { field: "label" } }, { align: field === "n_params" ? "right" : "left", dx: field === "n_params" ? -10 : 10, dy: field === "n_params" ? -10 : 10, fontWeight: "bold" }, paper.text, paper),
      ],
    };
  };
}

export function data(scales: Scales, plan: Plan | undefined, field: Field, paper: Ink): View {
  const known = scales.curves.flatMap((c) => c[field].filter((v): v is number => v !== null));
  const r = plan?.decision.model;
  const chosen = r?.[field];
  const budgets = scales.budget_flops;
  const own = scales.curves.find((c) => c.experts === r?.experts) ?? scales.curves[scales.curves.length - 1];
  const middle = budgets.length >> 1;
  const data = {
    band: budgets.flatMap((budget, i) => {
      const values = scales.curves.flatMap((c) => c[field][i] ?? []);
      return values.length ? [{ budget, low: Math.min(...values), high: Math.max(...values) }] : [];
    }),
    lines: budgets.flatMap((budget, i) => (own[field][i] === null ? [] : [{ colour: colour(own, paper), budget, value: own[field][i] }])),
    names: own[field][middle] === null ? [] : [{ budget: budgets[middle], value: own[field][middle], label: `loss-optimal, ${own.label}` }],
    rule: plan ? [{ budget: plan.budget_flops }] : [],
    choice: plan && chosen !== undefined ? [{ budget: r?.training_flops ?? plan.budget_flops, value: chosen, label: "recommended" }] : [],
  };
  const signals = {
    xlo: Math.min(budgets[0], plan?.budget_flops ?? Infinity),
    xhi: Math.max(budgets[budgets.length - 1], plan?.budget_flops ?? 0),
    ylo: Math.min(...known, chosen ?? Infinity),
    yhi: Math.max(...known, chosen ?? 0),
  };
  return { data, signals };
}

export function table(scales: Scales, field: Field): Table {
  return {
    columns: ["budget_flops", ...scales.curves.map((c) => `${field}, ${c.label}`)],
    rows: scales.budget_flops.map((budget, i) => [budget, ...scales.curves.map((c) => c[field][i])]),
  };
}
