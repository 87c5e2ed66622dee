// The fit itself: loss against tokens with the law's lines and, where there are runs, the runs and their residuals.

import { COUNT_LABEL, PARAMS, Table, View, X_DOMAIN, Y_DOMAIN, limits, spread } from "../chart";
import { Ink, colour } from "../theme";
import { Evidence, Look } from "../types";

export const MARGINS = { left: 56, right: 66 };

const HEIGHT = 300;

export function spec(paper: Ink): object {
  const x = { field: "tokens", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "training tokens D", axis: { labelExpr: COUNT_LABEL, tickCount: 5 } };
  const y = { field: "loss", type: "quantitative", scale: { zero: false, nice: false, domain: Y_DOMAIN }, title: "loss (nats per token)" };
  const tint = { field: "colour", type: "nominal", scale: null };
  return {
    height: HEIGHT,
    padding: { ...MARGINS, top: 8, bottom: 38 },
    params: PARAMS,
    layer: [
      { data: { name: "lines" }, mark: { type: "line", strokeWidth: 1.4, opacity: 0.85 }, encoding: { x, y, color: tint, detail: { field: "line" } } },
      { data: { name: "runs" }, mark: { type: "point", filled: true, size: 34, opacity: 0.9, stroke: paper.background, strokeWidth: 0.5 }, encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } } },
      { data: { name: "ends" }, mark: { type: "point", shape: "square", filled: true, size: 50, opacity: 1, clip: false }, encoding: { x: { value: { expr: "width + 9" } }, y: { ...y, field: "place" }, color: tint } },
      { data: { name: "ends" }, mark: { type: "text", align: "left", baseline: "middle", fontWeight: "bold" }, encoding: { x: { value: { expr: "width + 17" } }, y: { ...y, field: "place" }, text: { field: "label" } } },
    ],
  };
}

export function residualSpec(paper: Ink): object {
  const x = { field: "tokens", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "training tokens D", axis: { labelExpr: COUNT_LABEL, tickCount: 5 } };
  const y = { field: "residual", type: "quantitative", scale: { nice: false, domain: Y_DOMAIN }, title: "residual ln(L̂/L), 10⁻³" };
  const tint = { field: "colour", type: "nominal", scale: null };
  return {
    height: 180,
    padding: { ...MARGINS, top: 8, bottom: 38 },
    params: PARAMS,
    layer: [
      { data: { name: "band" }, mark: { type: "rect", opacity: 0.35, color: paper.frontier }, encoding: { y: { ...y, field: "low" }, y2: { field: "high" } } },
      { data: { name: "zero" }, mark: { type: "rule", color: paper.faint }, encoding: { y } },
      { data: { name: "runs" }, mark: { type: "point", filled: true, size: 30, opacity: 0.85 }, encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } } },
      { data: { name: "band" }, mark: { type: "text", align: "left", baseline: "middle", color: paper.faint }, encoding: { x: { value: { expr: "width + 6" } }, y: { ...y, field: "high" }, text: { field: "label" } } },
    ],
  };
}

/** The sizes that have lines, as the law counts them, rising. */
export function sizes(found: Evidence): number[] {
  return [...new Set(found.lines.map((l) => l.n_params))].sort((a, b) => a - b);
}

/** Lines and runs of one size; runs of sizes without a line of their own stand with the nearest. */
export function data(found: Evidence, size: number, paper: Ink): View {
  const looks = new Map<number, Look>((found.looks ?? []).map((l) => [l.experts, l]));
  const all = sizes(found);
  const nearest = (n: number) => all.reduce((a, b) => (Math.abs(Math.log(b / n)) < Math.abs(Math.log(a / n)) ? b : a), all[0]);
  const lines = found.lines.filter((l) => l.n_params === size);
  const runs = (found.runs?.loss ?? []).flatMap((loss, i) => {
    if (nearest(found.runs!.n_params[i]) !== size) return [];
    const look = looks.get(found.runs!.experts[i]);
    return [{ tokens: found.runs!.tokens[i], loss, colour: look ? colour(look, paper) : paper.text, marker: look?.marker ?? "circle" }];
  });
  const losses = [...lines.flatMap((l) => l.loss.filter((v): v is number => v !== null)), ...runs.map((r) => r.loss)];
  const [xlo, xhi] = limits([...lines.flatMap((l) => l.tokens), ...runs.map((r) => r.tokens)], 0.03, true);
  const [ylo, yhi] = limits(losses, 0.06, false);
  const named = lines.flatMap((l) => {
    const last = l.loss[l.loss.length - 1];
    return last === null ? [] : [{ l, last }];
  });
  const pixel = (v: number) => ((yhi - v) / (yhi - ylo)) * HEIGHT;
  const places = spread(named.map((n) => pixel(n.last)), 14, 5, HEIGHT - 5);
  const data = {
    lines: lines.flatMap((line, k) => line.tokens.flatMap((tokens, i) => (line.loss[i] === null ? [] : [{ line: k, colour: colour(line, paper), tokens, loss: line.loss[i] }]))),
    ends: named.map((n, i) => ({ label: n.l.label, colour: colour(n.l, paper), place: yhi - (places[i] / HEIGHT) * (yhi - ylo) })),
    runs,
  };
  return { data, signals: { xlo, xhi, ylo, yhi } };
}

export function residualData(found: Evidence, paper: Ink): View {
  const looks = new Map<number, Look>((found.looks ?? []).map((l) => [l.experts, l]));
  const runs = found.runs!;
  const rmsle = 1e3 * found.fit!.rmsle;
  const [xlo, xhi] = limits(runs.tokens, 0.03, true);
  const [ylo, yhi] = limits([...runs.residual.map((r) => 1e3 * r), -1.2 * rmsle, 1.2 * rmsle], 0.05, false);
  const data = {
    zero: [{ residual: 0 }],
    band: [{ low: -rmsle, high: rmsle, label: "± RMSLE" }],
    runs: runs.residual.map((residual, i) => {
      const look = looks.get(runs.experts[i]);
      return { tokens: runs.tokens[i], residual: 1e3 * residual, colour: look ? colour(look, paper) : paper.text, marker: look?.marker ?? "circle" };
    }),
  };
  return { data, signals: { xlo, xhi, ylo, yhi } };
}

export function table(found: Evidence): Table {
  if (found.runs) {
    const r = found.runs;
    return { columns: ["row", "n_params", "tokens", "experts", "loss", "residual"], rows: r.row.map((row, i) => [row, r.n_params[i], r.tokens[i], r.experts[i], r.loss[i], r.residual[i]]) };
  }
  return { columns: ["experts", "n_params", "tokens", "loss"], rows: found.lines.flatMap((l) => l.tokens.map((tokens, i) => [l.experts, l.n_params, tokens, l.loss[i]])) };
}
