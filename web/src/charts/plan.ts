// Loss against serving cost: one curve for each expert count, its loss-optimal point, the bounds and the recommendation.

import { Data, PARAMS, Row, Table, View, X_DOMAIN, Y_DOMAIN, halo, spread } from "../chart";
import { Ink, colour } from "../theme";
import * as format from "../format";
import { Around, Candidate, Curve, Draft, Known, Plan } from "../types";

export const MARGINS = { left: 56, right: 18 };

export const HEIGHT = 380;
const LETTER = 6.4; // pixels of a letter at 11 px
const TICKS = Array.from({ length: 12 }, (_, i) => i - 6).flatMap((power) => [1, 1.5, 2, 3, 5, 7].map((digit) => Number(`${digit}e${power}`)));

export function spec(paper: Ink): object {
  const x = { field: "usd", type: "quantitative", scale: { type: "log", nice: false, domain: X_DOMAIN }, title: "serving cost ($ per million output tokens)", axis: { format: "$~g", values: TICKS } };
  const y = { field: "loss", type: "quantitative", scale: { nice: false, zero: false, domain: Y_DOMAIN }, title: "loss (nats per token)", axis: { tickCount: 7 } };
  const tint = { field: "colour", type: "nominal", scale: null };
  const curve = (beyond: boolean) => ({
    data: { name: "curves" },
    transform: [{ filter: `datum.beyond == ${beyond}` }],
    mark: { type: "line", clip: true, strokeWidth: beyond ? 1.4 : 2.2, strokeDash: beyond ? [4, 3] : [1, 0] },
    encoding: { x, y, color: tint, detail: { field: "experts" }, order: { field: "i" } },
  });
  return {
    height: HEIGHT,
    padding: { ...MARGINS, top: 20, bottom: 38 },
    params: PARAMS,
    layer: [
      {
        data: { name: "bands" },
        mark: { type: "area", clip: true, opacity: paper.dark ? 0.2 : 0.12 },
        encoding: { x, y: { ...y, field: "low" }, y2: { field: "high" }, fill: tint },
      },
      { data: { name: "losses" }, mark: { type: "rule", strokeDash: [2, 3], color: paper.faint, clip: true }, encoding: { y } },
      { data: { name: "costs" }, mark: { type: "rule", strokeDash: [2, 3], color: paper.faint, clip: true }, encoding: { x } },
      curve(true),
      curve(false),
      { data: { name: "pointed" }, mark: { type: "line", clip: true, strokeWidth: 2.2 }, encoding: { x, y, color: tint, order: { field: "i" } } },
      // What the dotted lines are stands at their ends, outside the curves.
      { data: { name: "losses" }, mark: { type: "text", align: "right", baseline: "bottom", dx: 16, dy: -3, color: paper.faint }, encoding: { y, x: { value: { expr: "width" } }, text: { field: "label" } } },
      { data: { name: "costs" }, mark: { type: "text", align: "center", baseline: "bottom", dy: -4, color: paper.faint }, encoding: { x, y: { value: 0 }, text: { field: "label" } } },
      { data: { name: "outside" }, mark: { type: "text", align: "right", baseline: "middle", dx: -4, color: paper.text, fontWeight: "bold" }, encoding: { y: { field: "place", type: "quantitative", scale: { nice: false, zero: false, domain: Y_DOMAIN } }, x: { value: { expr: "width" } }, text: { field: "label" } } },
      {
        data: { name: "optima" },
        mark: { type: "point", filled: true, size: 95, opacity: 1, stroke: paper.background, strokeWidth: 1, clip: true },
        encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } },
      },
      { data: { name: "models" }, mark: { type: "point", filled: false, strokeWidth: 1.4, shape: "diamond", size: 46, color: paper.faint, opacity: 1, clip: true }, encoding: { x, y } },
      ...halo("models", { x, y, text: { field: "label" } }, { align: "left", dx: 7, baseline: "middle", clip: true }, paper.faint, paper),
      // In the text's colour: the palest curves' would be too faint for letters.
      ...halo("names", { x, y: { ...y, field: "place" }, text: { field: "label" } }, { align: "left", baseline: "middle", dx: 9, fontWeight: "bold" }, paper.text, paper),
      // From the baseline to the recommended model, both as built.
      { data: { name: "saving" }, mark: { type: "rule", strokeWidth: 2, color: paper.accent, clip: true }, encoding: { x, y, x2: { field: "usd2" }, y2: { field: "loss2" } } },
      {
        data: { name: "saving" },
        mark: { type: "point", shape: "triangle", filled: true, size: 90, opacity: 1, color: paper.accent, clip: true },
        encoding: { x: { ...x, field: "usd2" }, y: { ...y, field: "loss2" }, angle: { field: "angle", type: "quantitative", scale: null } },
      },
      { data: { name: "saving" }, mark: { type: "point", filled: true, size: 60, opacity: 1, color: paper.accent, clip: true }, encoding: { x, y } },
      ...halo("saving", { x: { ...x, field: "middle" }, y: { ...y, field: "above" }, text: { field: "label" } }, { align: "center", baseline: "bottom", dy: -5, fontWeight: "bold" }, paper.accent, paper),
      { data: { name: "pinned" }, mark: { type: "point", filled: false, size: 170, strokeWidth: 1.6, color: paper.text, opacity: 1, clip: true }, encoding: { x, y } },
      ...halo("pinned", { x, y, text: { field: "label" } }, { align: "right", dx: -11, dy: 9, fontWeight: "bold", clip: true }, paper.text, paper),
      { data: { name: "choice" }, mark: { type: "point", filled: false, size: 230, strokeWidth: 2.4, color: paper.accent, opacity: 1 }, encoding: { x, y } },
      ...halo("choice", { x, y, text: { field: "label" } }, { align: "left", dx: 12, dy: -13, fontWeight: "bold" }, paper.accent, paper),
      { data: { name: "pick" }, mark: { type: "point", filled: true, size: 70, color: paper.text, opacity: 1 }, encoding: { x, y } },
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

/** The models that the chart shows: of each count up to its loss-optimal one, as larger ones have a higher loss and cost more. */
export function points(draft: Draft): Point[] {
  return draft.curves.flatMap((curve) =>
    curve.usd_per_mtok.flatMap((usd, i) => {
      const loss = curve.loss[i];
      return i > draft.optimum || usd === null || loss === null ? [] : [{ curve, i, usd, loss }];
    }),
  );
}

export interface Pinned {
  letter: string;
  usd: number;
  loss: number;
}

/** The data of the chart and the limits of its axes. */
export function view(draft: Draft, plan: Plan | undefined, around: Around | undefined, pinned: Pinned[], paper: Ink, bands: boolean, width: number): View {
  const o = draft.optimum;
  const all = points(draft);
  const optima = all.filter((p) => p.i === o);
  const within = all.filter((p) => draft.base_loss !== null && p.loss <= draft.base_loss);
  const cheapest = draft.curves.flatMap((curve) => {
    const found = within.filter((p) => p.curve === curve);
    return found.length ? [found.reduce((a, b) => (a.usd < b.usd ? a : b))] : [];
  });
  const chosen = plan?.decision.model;
  const usds = [...optima, ...cheapest].map((p) => p.usd).concat(chosen?.usd_per_mtok ?? []);
  const losses = [...optima, ...cheapest].map((p) => p.loss).concat(chosen?.loss ?? []);
  if (!usds.length) usds.push(...(all.length ? all.map((p) => p.usd) : [0.1, 1]));
  if (!losses.length) losses.push(...draft.curves.flatMap((c) => c.loss.filter((v): v is number => v !== null)));
  const xlo = Math.min(...usds) / 1.3;
  const xhi = Math.max(...usds) * 1.7;
  const seen = all.filter((p) => p.usd <= xhi).map((p) => p.loss);
  let [low, high] = [Math.min(...seen, ...losses), Math.max(...losses)];
  // A bound far from every curve would flatten them: it is named at the edge instead.
  const reach = Math.max(high - low, 0.02);
  const near = draft.max_loss !== null && draft.max_loss > low - reach / 2 && draft.max_loss < high + reach / 2;
  if (near) [low, high] = [Math.min(low, draft.max_loss!), Math.max(high, draft.max_loss!)];
  const room = Math.max(high - low, 0.02);
  const signals = { xlo, xhi, ylo: low - 0.2 * room, yhi: high + 0.35 * room };

  // Curves that the decision does not stand on are grey until they are pointed at.
  const base = plan?.base_as_built ?? plan?.base;
  const told = [chosen?.experts, base?.experts];
  const row = (p: Point): Row => ({
    experts: p.curve.experts,
    colour: chosen === undefined || told.includes(p.curve.experts) ? colour(p.curve, paper) : paper.frontier,
    marker: p.curve.marker,
    beyond: p.curve.beyond_law,
    i: p.i,
    usd: p.usd,
    loss: p.loss,
  });
  const shown = choice(plan);
  const names = named(draft, all, signals, width, base);
  const data: Data = {
    curves: all.map(row),
    optima: optima.map(row),
    names,
    choice: shown,
    pointed: [],
    saving: saving(base, chosen, signals, width),
    losses: [],
    costs: [],
    outside: [],
    bands: [],
    models: published(around?.models ?? [], draft.budget_flops, shown, names, signals, width),
    pinned: pinned.map((p) => ({ usd: p.usd, loss: p.loss, label: p.letter })),
    pick: [],
  };
  if (near) data.losses.push({ loss: draft.max_loss, label: "loss bound" });
  else if (draft.max_loss !== null) {
    const below = draft.max_loss < low;
    data.outside.push({ place: below ? signals.ylo + 0.04 * room : signals.yhi - 0.04 * room, label: `loss bound ${draft.max_loss}: ${below ? "below" : "above"} this chart` });
  } else if (draft.base_loss !== null) data.losses.push({ loss: draft.base_loss, label: "baseline" });
  if (draft.max_usd_per_mtok !== null) data.costs.push({ usd: draft.max_usd_per_mtok, label: "cost bound" });
  else if (draft.base_usd_per_mtok !== null) data.costs.push({ usd: draft.base_usd_per_mtok, label: "baseline" });
  const curve = draft.curves.find((c) => c.experts === chosen?.experts);
  const band = bands ? around?.bands.find((b) => b.experts === chosen?.experts) : undefined;
  curve?.usd_per_mtok.forEach((usd, i) => {
    if (band && usd !== null && i <= o && band.low[i] !== null) data.bands.push({ colour: colour(curve, paper), usd, low: band.low[i], high: band.high[i] });
  });
  return { data, signals };
}

/** The known models, each with its name where that covers nothing else. */
function published(models: Known[], budget: number, chosen: Row[], names: Row[], s: Record<string, number>, width: number): Row[] {
  const x = (usd: number) => (Math.log(usd / s.xlo) / Math.log(s.xhi / s.xlo)) * width;
  const y = (loss: number) => ((s.yhi - loss) / (s.yhi - s.ylo)) * HEIGHT;
  const within = (at: number, end: number) => at > 5 && at < end - 5;
  const seen = models.filter((m) => within(x(m.usd_per_mtok), width) && within(y(m.loss), HEIGHT));
  const taken = seen.map((m) => ({ left: x(m.usd_per_mtok) - 5, right: x(m.usd_per_mtok) + 5, y: y(m.loss) }));
  for (const r of chosen as { usd: number; loss: number }[]) {
    const at = x(r.usd);
    taken.push({ left: at - 10, right: at + 10, y: y(r.loss) }, { left: at + 10, right: at + 88, y: y(r.loss) - 13 });
  }
  for (const r of names as { usd: number; place: number; label: string }[]) taken.push({ left: x(r.usd) - 6, right: x(r.usd) + 9 + LETTER * r.label.length, y: y(r.place) });
  return seen.map((m, i) => {
    const [at, height] = [x(m.usd_per_mtok), y(m.loss)];
    const label = `${m.name}, ${ofBudget(m, budget)}`;
    const box = { left: at + 6, right: at + 10 + LETTER * label.length, y: height };
    const free = box.right < width && box.y > 8 && box.y < HEIGHT - 8 && !taken.some((t, k) => k !== i && Math.abs(t.y - box.y) < 13 && t.left < box.right && t.right > box.left);
    if (free) taken.push(box);
    return { usd: m.usd_per_mtok, loss: m.loss, label: free ? label : "" };
  });
}

/** A model's training FLOPs beside the budget: a model of 28 times the budget may well lie below every curve. */
export function ofBudget(m: Known, budget: number): string {
  return `${format.significant(m.training_flops / budget, 2)}x the budget`;
}

export function about(m: Known, budget: number): string {
  const size = m.n_params_active === m.n_params_total ? `${format.count(m.n_params_total)} parameters` : `${format.count(m.n_params_active)} active of ${format.count(m.n_params_total)} parameters`;
  return `${m.name}: ${size}, ${format.count(m.tokens)} tokens, ${format.flops(m.training_flops)} FLOPs (${ofBudget(m, budget)}); loss ${m.loss.toFixed(4)} predicted by the law, ${format.usd(m.usd_per_mtok)} per Mtok as built` + (m.beyond_law ? "; more experts than the law was fitted on" : "");
}

/** The curve of an expert count in its colour. */
export function pointed(draft: Draft, experts: number, paper: Ink): Row[] {
  return points(draft)
    .filter((p) => p.curve.experts === experts)
    .map((p) => ({ usd: p.usd, loss: p.loss, i: p.i, colour: colour(p.curve, paper) }));
}

const RING = 15; // pixels from the recommended model to the point of the arrow

/** An arrow from the baseline to the recommended model, and how much cheaper that is to serve. */
function saving(base: Candidate | undefined, chosen: Candidate | undefined, s: Record<string, number>, width: number): Row[] {
  if (base?.usd_per_mtok === undefined || base.loss === undefined || chosen?.usd_per_mtok === undefined || chosen.loss === undefined) return [];
  const ratio = base.usd_per_mtok / chosen.usd_per_mtok;
  const perX = width / Math.log(s.xhi / s.xlo);
  const perY = HEIGHT / (s.yhi - s.ylo);
  const [dx, dy] = [-Math.log(ratio) * perX, (base.loss - chosen.loss) * perY];
  const length = Math.hypot(dx, dy);
  if (ratio < 1.05 || length < 4 * RING) return [];
  const short = RING / length;
  const usd2 = chosen.usd_per_mtok * Math.exp((-dx * short) / perX);
  const loss2 = chosen.loss + (dy * short) / perY;
  return [
    {
      usd: base.usd_per_mtok,
      loss: base.loss,
      usd2,
      loss2,
      angle: (Math.atan2(dx, -dy) * 180) / Math.PI,
      middle: Math.sqrt(base.usd_per_mtok * usd2),
      above: (base.loss + loss2) / 2,
      label: ratio >= 2 ? `${format.significant(ratio, 2)}x cheaper` : `${format.percent(1 - 1 / ratio)} cheaper`,
    },
  ];
}

function choice(plan: Plan | undefined): Row[] {
  const r = plan?.decision.model;
  return r?.usd_per_mtok === undefined ? [] : [{ usd: r.usd_per_mtok, loss: r.loss, label: "recommended" }];
}

/** Each curve's name beside the end of the curve, far enough from the others. */
function named(draft: Draft, all: Point[], s: Record<string, number>, width: number, base?: Candidate): Row[] {
  const last = draft.curves.flatMap((curve) => {
    const seen = all.filter((p) => p.curve === curve && p.usd > s.xlo && p.usd < s.xhi && p.loss > s.ylo && p.loss < s.yhi);
    return seen.length ? [seen[seen.length - 1]] : [];
  });
  const pixel = (loss: number) => ((s.yhi - loss) / (s.yhi - s.ylo)) * HEIGHT;
  const places = spread(last.map((p) => pixel(p.loss)), 14, 6, HEIGHT - 6);
  // A name that would not fit beside its curve's end stands on the curve.
  const room = (text: string) => Math.exp(Math.log(s.xhi) - ((LETTER * text.length + 12 - MARGINS.right) / width) * Math.log(s.xhi / s.xlo));
  // The baseline as built may stand right of its curve's end: the name begins after it.
  const end = (p: Point) => (p.curve.experts === base?.experts && base.usd_per_mtok !== undefined && base.usd_per_mtok < 1.2 * p.usd ? Math.max(p.usd, base.usd_per_mtok) : p.usd);
  return last.map((p, i) => ({ usd: Math.min(end(p), room(p.curve.label)), place: s.yhi - (places[i] / HEIGHT) * (s.yhi - s.ylo), label: p.curve.label }));
}

export function table(draft: Draft, models: Known[]): Table {
  const names = ["n_params", "n_params_active", "n_params_total", "tokens", "loss", "usd_per_mtok", "gpus", "batch", "prefill_s", "decode_s", "throughput_tok_s"] as const;
  const rows = draft.curves.flatMap((c) =>
    c.loss.map((_, i) => [c.experts, i === draft.optimum ? "loss-optimal" : i < draft.optimum ? "over-trained" : "larger", ...names.map((name) => c[name][i])]),
  );
  const known = models.map((m) => [null, m.name, ...names.map((name) => (m as unknown as Record<string, number>)[name] ?? null)]);
  return { columns: ["experts", "stretch", ...names], rows: [...rows, ...known] };
}
