// Loss against serving cost: one curve for each expert count, its loss-optimal point, the bounds and the recommendation.

import { Data, PARAMS, Row, Table, View, X_DOMAIN, Y_DOMAIN, halo, spread } from "../chart";
import { Ink, colour } from "../theme";
import * as format from "../format";
import { Around, Curve, Draft, Known, Plan } from "../types";

export const MARGINS = { left: 56, right: 72 };

export const HEIGHT = 380;

export function spec(paper: Ink): object {
  const x = { field: "usd", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "serving cost (US$ per million output tokens)", axis: { format: "$~g", tickCount: 8 } };
  const y = { field: "loss", type: "quantitative", scale: { nice: false, zero: false, domain: Y_DOMAIN }, title: "loss (nats per token)", axis: { tickCount: 7 } };
  const tint = { field: "colour", type: "nominal", scale: null };
  const curve = (over: boolean) => ({
    data: { name: "curves" },
    transform: [{ filter: over ? "datum.over" : "datum.under" }],
    mark: over ? { type: "line", clip: true, strokeWidth: 2.2 } : { type: "line", clip: true, strokeWidth: 1.3, strokeDash: [4, 3], opacity: 0.85 },
    encoding: { x, y, color: tint, detail: { field: "experts" }, order: { field: "i" } },
  });
  const edge = { value: { expr: "width + 10" } };
  return {
    height: HEIGHT,
    padding: { ...MARGINS, top: 8, bottom: 38 },
    params: PARAMS,
    layer: [
      {
        data: { name: "bands" },
        mark: { type: "area", clip: true, opacity: paper.dark ? 0.2 : 0.12 },
        encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, fill: tint },
      },
      {
        data: { name: "frontier" },
        mark: { type: "line", clip: true, strokeWidth: 8, opacity: 0.45, strokeCap: "round", color: paper.frontier },
        encoding: { x, y, order: { field: "usd" } },
      },
      { data: { name: "losses" }, mark: { type: "rule", strokeDash: [2, 3], color: paper.faint, clip: true }, encoding: { y } },
      { data: { name: "costs" }, mark: { type: "rule", strokeDash: [2, 3], color: paper.faint, clip: true }, encoding: { x } },
      {
        data: { name: "losses" },
        mark: { type: "text", align: "right", baseline: "top", dx: -4, dy: 4, color: paper.faint, clip: true },
        encoding: { y, x: { value: { expr: "width" } }, text: { field: "label" } },
      },
      {
        data: { name: "costs" },
        mark: { type: "text", align: "left", baseline: "bottom", dx: 6, dy: -4, angle: 270, color: paper.faint, clip: true },
        encoding: { x, y: { value: HEIGHT }, text: { field: "label" } },
      },
      curve(false),
      curve(true),
      { data: { name: "ends" }, mark: { type: "rule", strokeWidth: 0.8, opacity: 0.55 }, encoding: { x, x2: { value: { expr: "width + 7" } }, y, y2: { field: "place" }, color: tint } },
      {
        data: { name: "optima" },
        mark: { type: "point", filled: true, size: 95, opacity: 1, stroke: paper.background, strokeWidth: 1, clip: true },
        encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } },
      },
      { data: { name: "models" }, mark: { type: "point", filled: true, shape: "diamond", size: 42, color: paper.faint, opacity: 1, clip: true }, encoding: { x, y } },
      ...halo("models", { x, y, text: { field: "label" } }, { align: "left", dx: 7, baseline: "middle", clip: true }, paper.faint, paper),
      { data: { name: "choice" }, mark: { type: "point", filled: false, size: 230, strokeWidth: 2.4, color: paper.accent, opacity: 1 }, encoding: { x, y } },
      ...halo("choice", { x, y, text: { field: "label" } }, { align: "left", dx: 12, dy: -13, fontWeight: "bold" }, paper.accent, paper),
      { data: { name: "pick" }, mark: { type: "point", filled: true, size: 70, color: paper.text, opacity: 1 }, encoding: { x, y } },
      { data: { name: "ends" }, mark: { type: "text", align: "left", baseline: "middle", fontWeight: "bold" }, encoding: { x: edge, y: { ...y, field: "place" }, text: { field: "label" }, color: tint } },
    ],
    resolve: { scale: { x: "shared", y: "shared" } },
  };
}

interface Point {
  curve: Curve;
  i: number;
  usd: number;
  loss: number;
}

export function points(draft: Draft): Point[] {
  return draft.curves.flatMap((curve) =>
    curve.usd_per_mtok.flatMap((usd, i) => {
      const loss = curve.loss[i];
      return usd === null || loss === null ? [] : [{ curve, i, usd, loss }];
    }),
  );
}

/** The data of the chart and the limits of its axes, as moescale.views.figures.plan_figure has them. */
export function view(draft: Draft, plan: Plan | undefined, around: Around | undefined, paper: Ink, bands: boolean, width: number): View {
  const o = draft.optimum;
  const all = points(draft);
  const optima = all.filter((p) => p.i === o);
  const within = all.filter((p) => p.i <= o && draft.base_loss !== null && p.loss <= draft.base_loss);
  const cheapest = draft.curves.flatMap((curve) => {
    const found = within.filter((p) => p.curve === curve);
    return found.length ? [found.reduce((a, b) => (a.usd < b.usd ? a : b))] : [];
  });
  const chosen = plan?.decision.model;
  const usds = [...optima, ...cheapest].map((p) => p.usd).concat(chosen?.usd_per_mtok ?? []);
  const losses = [...optima, ...cheapest].map((p) => p.loss).concat(chosen?.loss ?? [], draft.max_loss ?? []);
  if (!usds.length) usds.push(...(all.length ? all.map((p) => p.usd) : [0.1, 1]));
  if (!losses.length) losses.push(...draft.curves.flatMap((c) => c.loss.filter((v): v is number => v !== null)));
  const xlo = Math.min(...usds) / 1.3;
  const xhi = Math.max(...usds) * 1.9;
  const seen = all.filter((p) => p.usd <= xhi).map((p) => p.loss);
  const low = Math.min(...seen, ...losses);
  const high = Math.max(...losses);
  const room = Math.max(high - low, 0.02);
  const signals = { xlo, xhi, ylo: low - 0.2 * room, yhi: high + 0.35 * room };

  const row = (p: Point): Row => ({
    experts: p.curve.experts,
    colour: colour(p.curve, paper),
    marker: p.curve.marker,
    i: p.i,
    usd: p.usd,
    loss: p.loss,
    over: p.i <= o,
    under: p.i >= o,
  });
  const data: Data = {
    curves: all.map(row),
    optima: optima.map(row),
    ends: ends(draft, all, signals, paper),
    frontier: (plan?.frontier ?? []).map((c) => ({ usd: c.usd_per_mtok, loss: c.loss })),
    choice: choice(plan),
    losses: [],
    costs: [],
    bands: [],
    models: named(around?.models ?? [], choice(plan), signals, width),
    pick: [],
  };
  const base = draft.base_name.replace("the loss-optimal ", "");
  if (draft.max_loss !== null) data.losses.push({ loss: draft.max_loss, label: "loss bound" });
  else if (draft.base_loss !== null) data.losses.push({ loss: draft.base_loss, label: `loss of the base: ${base}` });
  if (draft.max_usd_per_mtok !== null) data.costs.push({ usd: draft.max_usd_per_mtok, label: "cost bound" });
  else if (draft.base_usd_per_mtok !== null) data.costs.push({ usd: draft.base_usd_per_mtok, label: "cost of the base" });
  const curve = draft.curves.find((c) => c.experts === chosen?.experts);
  const band = bands ? around?.bands.find((b) => b.experts === chosen?.experts) : undefined;
  curve?.usd_per_mtok.forEach((usd, i) => {
    if (band && usd !== null && i <= o && band.low[i] !== null) data.bands.push({ colour: colour(curve, paper), usd, low: band.low[i], high: band.high[i] });
  });
  return { data, signals };
}

/** The known models, each with its name where that covers no other's. */
function named(models: Known[], chosen: Row[], s: Record<string, number>, width: number): Row[] {
  const x = (m: { usd_per_mtok: number }) => (Math.log(m.usd_per_mtok / s.xlo) / Math.log(s.xhi / s.xlo)) * width;
  const y = (m: { loss: number }) => ((s.yhi - m.loss) / (s.yhi - s.ylo)) * HEIGHT;
  const seen = models.filter((m) => x(m) > 0 && x(m) < width && y(m) > 0 && y(m) < HEIGHT);
  const taken = seen.map((m) => ({ left: x(m) - 5, right: x(m) + 5, y: y(m) }));
  for (const r of chosen as { usd: number; loss: number }[]) {
    const at = x({ usd_per_mtok: r.usd });
    taken.push({ left: at - 10, right: at + 10, y: y(r) }, { left: at + 10, right: at + 88, y: y(r) - 13 });
  }
  return seen.map((m, i) => {
    const box = { left: x(m) + 6, right: x(m) + 10 + 6.2 * m.name.length, y: y(m) };
    const free = box.right < width && box.y > 8 && box.y < HEIGHT - 8 && !taken.some((t, k) => k !== i && Math.abs(t.y - box.y) < 13 && t.left < box.right && t.right > box.left);
    if (free) taken.push(box);
    return { usd: m.usd_per_mtok, loss: m.loss, label: free ? m.name : "" };
  });
}

export function about(m: Known): string {
  const size = m.n_params_active === m.n_params_total ? format.count(m.n_params_total) : `${format.count(m.n_params_active)} active of ${format.count(m.n_params_total)}`;
  return `${m.name}: ${size}, ${format.count(m.tokens)} tokens; loss ${m.loss.toFixed(4)} under the law, ${format.usd(m.usd_per_mtok)} a million tokens as built` + (m.beyond_law ? "; more experts than the law may speak of" : "");
}

function choice(plan: Plan | undefined): Row[] {
  const r = plan?.decision.model;
  return r?.usd_per_mtok === undefined ? [] : [{ usd: r.usd_per_mtok, loss: r.loss, label: "recommended" }];
}

/** Each curve's name beside its last point in the picture, far enough from the others. */
function ends(draft: Draft, all: Point[], s: Record<string, number>, paper: Ink): Row[] {
  const last = draft.curves.flatMap((curve) => {
    const seen = all.filter((p) => p.curve === curve && p.usd > s.xlo && p.usd < s.xhi && p.loss > s.ylo && p.loss < s.yhi);
    return seen.length ? [seen[seen.length - 1]] : [];
  });
  const pixel = (loss: number) => ((s.yhi - loss) / (s.yhi - s.ylo)) * HEIGHT;
  const places = spread(last.map((p) => pixel(p.loss)), 15, 6, HEIGHT - 6);
  return last.map((p, i) => ({
    usd: p.usd,
    loss: p.loss,
    place: s.yhi - (places[i] / HEIGHT) * (s.yhi - s.ylo),
    label: p.curve.label + (p.curve.beyond_law ? " *" : ""),
    colour: colour(p.curve, paper),
  }));
}

export function table(draft: Draft, models: Known[]): Table {
  const names = ["n_params", "n_params_active", "n_params_total", "tokens", "loss", "usd_per_mtok", "gpus", "batch", "prefill_s", "decode_s", "throughput_tok_s"] as const;
  const rows = draft.curves.flatMap((c) =>
    c.loss.map((_, i) => [c.experts, i === draft.optimum ? "loss-optimal" : i < draft.optimum ? "over-trained" : "larger", ...names.map((name) => c[name][i])]),
  );
  const known = models.map((m) => [null, m.name, ...names.map((name) => (m as unknown as Record<string, number>)[name] ?? null)]);
  return { columns: ["experts", "stretch", ...names], rows: [...rows, ...known] };
}
