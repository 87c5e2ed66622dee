// The fit itself: loss against tokens with the law's lines and, where there are runs, the runs and their residuals.

import { COUNT_LABEL, PARAMS, Table, View, X_DOMAIN, Y_DOMAIN, limits } from "../chart";
import { Ink, colour } from "../theme";
import { Evidence, Look } from "../types";

export function spec(paper: Ink): object {
  const x = { field: "tokens", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "training tokens D", axis: { labelExpr: COUNT_LABEL, tickCount: 6 } };
  const y = { field: "loss", type: "quantitative", scale: { zero: false, nice: false, domain: Y_DOMAIN }, title: "loss (nats per token)" };
  const tint = { field: "colour", type: "nominal", scale: null };
  return {
    width: "container",
    height: 320,
    autosize: { type: "fit-x", contains: "padding" },
    padding: { left: 4, top: 8, bottom: 4, right: 74 },
    params: PARAMS,
    layer: [
      { data: { name: "lines" }, mark: { type: "line", strokeWidth: 1.4, opacity: 0.85 }, encoding: { x, y, color: tint, detail: { field: "line" } } },
      { data: { name: "runs" }, mark: { type: "point", filled: true, size: 34, opacity: 0.9, stroke: paper.background, strokeWidth: 0.5 }, encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } } },
      { data: { name: "sizes" }, mark: { type: "text", align: "left", baseline: "middle", color: paper.text }, encoding: { x: { value: { expr: "width + 6" } }, y, text: { field: "label" } } },
    ],
  };
}

export function residualSpec(paper: Ink): object {
  const x = { field: "tokens", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "training tokens D", axis: { labelExpr: COUNT_LABEL, tickCount: 6 } };
  const y = { field: "residual", type: "quantitative", scale: { nice: false, domain: Y_DOMAIN }, title: "residual ln(L̂/L), 10⁻³" };
  const tint = { field: "colour", type: "nominal", scale: null };
  return {
    width: "container",
    height: 180,
    autosize: { type: "fit-x", contains: "padding" },
    padding: { left: 4, top: 8, bottom: 4, right: 74 },
    params: PARAMS,
    layer: [
      { data: { name: "band" }, mark: { type: "rect", opacity: 0.35, color: paper.frontier }, encoding: { y: { ...y, field: "low" }, y2: { field: "high" } } },
      { data: { name: "zero" }, mark: { type: "rule", color: paper.faint }, encoding: { y } },
      { data: { name: "runs" }, mark: { type: "point", filled: true, size: 30, opacity: 0.85 }, encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } } },
      { data: { name: "band" }, mark: { type: "text", align: "left", baseline: "middle", color: paper.faint }, encoding: { x: { value: { expr: "width + 6" } }, y: { ...y, field: "high" }, text: { field: "label" } } },
    ],
  };
}

export function data(found: Evidence, paper: Ink): View {
  const looks = new Map<number, Look>((found.looks ?? []).map((l) => [l.experts, l]));
  const bySize = new Map<string, number[]>();
  for (const line of found.lines) {
    const value = line.loss[line.loss.length - 1];
    if (value !== null) bySize.set(line.size, [...(bySize.get(line.size) ?? []), value]);
  }
  const lines = found.lines.flatMap((l) => l.loss.filter((v): v is number => v !== null));
  const [xlo, xhi] = limits(found.runs?.tokens ?? found.lines.flatMap((l) => l.tokens), 0.03, true);
  const [ylo, yhi] = limits([...lines, ...(found.runs?.loss ?? [])], 0.04, false);
  const data = {
    lines: found.lines.flatMap((line, k) => line.tokens.flatMap((tokens, i) => (line.loss[i] === null ? [] : [{ line: k, colour: colour(line, paper), tokens, loss: line.loss[i] }]))),
    sizes: [...bySize].map(([label, values]) => ({ label, loss: values.reduce((a, b) => a + b) / values.length })),
    runs: (found.runs?.loss ?? []).map((loss, i) => {
      const look = looks.get(found.runs!.experts[i]);
      return { tokens: found.runs!.tokens[i], loss, colour: look ? colour(look, paper) : paper.text, marker: look?.marker ?? "circle" };
    }),
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
