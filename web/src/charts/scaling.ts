// Loss-optimal size, or tokens, against the training budget; the budget of the question as a rule, its answer as a ring.

import { COUNT_LABEL, PARAMS, POWERS, Table, View, X_DOMAIN, Y_DOMAIN, halo, spread } from "../chart";
import { Ink, colour } from "../theme";
import { Plan, Scales } from "../types";

export const MARGINS = { left: 52, right: 56 };

const HEIGHT = 240;
export type Field = "n_params" | "tokens";

export function spec(field: Field): (paper: Ink) => object {
  const title = field === "n_params" ? "loss-optimal size N (parameters)" : "training tokens D";
  return (paper) => {
    const x = { field: "budget", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "training budget (FLOPs)", axis: { format: "~e", values: POWERS.filter((_, i) => i % 2 === 0) } };
    const y = { field: "value", type: "quantitative", scale: { type: "log", nice: false, domain: Y_DOMAIN }, title, axis: { labelExpr: COUNT_LABEL, values: POWERS } };
    const tint = { field: "colour", type: "nominal", scale: null };
    return {
      height: HEIGHT,
      padding: { ...MARGINS, top: 8, bottom: 38 },
      params: PARAMS,
      layer: [
        { data: { name: "rule" }, mark: { type: "rule", strokeDash: [2, 3], color: paper.faint }, encoding: { x } },
        { data: { name: "lines" }, mark: { type: "line", strokeWidth: 1.8 }, encoding: { x, y, color: tint, detail: { field: "experts" } } },
        { data: { name: "choice" }, mark: { type: "point", filled: false, size: 160, strokeWidth: 2.2, color: paper.accent, opacity: 1 }, encoding: { x, y } },
        ...halo("choice", { x, y, text: { field: "label" } }, { align: "left", dx: 12, dy: field === "n_params" ? 14 : -14, fontWeight: "bold" }, paper.accent, paper),
        { data: { name: "ends" }, mark: { type: "text", align: "left", baseline: "middle", fontWeight: "bold" }, encoding: { x: { value: { expr: "width + 6" } }, y: { ...y, field: "place" }, text: { field: "label" }, color: tint } },
      ],
    };
  };
}

export function data(scales: Scales, plan: Plan | undefined, field: Field, paper: Ink): View {
  const known = scales.curves.flatMap((c) => c[field].filter((v): v is number => v !== null));
  const r = plan?.decision.model;
  const chosen = r?.[field];
  const [low, high] = [Math.log(Math.min(...known, chosen ?? Infinity)), Math.log(Math.max(...known, chosen ?? 0))];
  const last = scales.curves.map((c) => c[field].findLast((v): v is number => v !== null));
  const pixel = (value: number) => ((high - Math.log(value)) / (high - low)) * HEIGHT;
  const named = scales.curves.flatMap((c, i) => (last[i] === undefined ? [] : [{ c, value: last[i] }]));
  const places = spread(named.map((n) => pixel(n.value)), 14, 5, HEIGHT - 5);
  const data = {
    lines: scales.curves.flatMap((c) => c[field].flatMap((value, i) => (value === null ? [] : [{ experts: c.experts, colour: colour(c, paper), budget: scales.budget_flops[i], value }]))),
    ends: named.map((n, i) => ({ label: n.c.label, colour: colour(n.c, paper), place: Math.exp(high - (places[i] / HEIGHT) * (high - low)) })),
    rule: plan ? [{ budget: plan.budget_flops }] : [],
    choice: plan && chosen !== undefined ? [{ budget: r?.training_flops ?? plan.budget_flops, value: chosen, label: "recommended" }] : [],
  };
  const budgets = scales.budget_flops;
  const signals = { xlo: Math.min(budgets[0], plan?.budget_flops ?? Infinity), xhi: Math.max(budgets[budgets.length - 1], plan?.budget_flops ?? 0), ylo: Math.exp(low), yhi: Math.exp(high) };
  return { data, signals };
}

export function table(scales: Scales, field: Field): Table {
  return {
    columns: ["budget_flops", ...scales.curves.map((c) => `${field}, ${c.label}`)],
    rows: scales.budget_flops.map((budget, i) => [budget, ...scales.curves.map((c) => c[field][i])]),
  };
}
