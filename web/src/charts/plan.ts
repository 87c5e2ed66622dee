// Loss against serving cost: one curve for each expert count, its loss-optimal point, the bounds and the recommendation.

import { Data, PARAMS, Row, Table, View, X_DOMAIN, Y_DOMAIN, halo, spread } from "../chart";
import { Ink, colour } from "../theme";
import * as format from "../format";
import { Around, Candidate, Curve, Draft, Known, Plan } from "../types";

export const MARGINS = { left: 56, right: 18 };

export const HEIGHT = 380;
const LETTER = 6.4; // pixels of a letter at 11 px
const BOLD_LETTER = 7.8; // of a bold one
const NARROW = 480; // pixels of a plot where published models have numbers for names
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
  const words = (name: string, color: string, fontWeight: string) => halo(name, { x, y, text: { field: "label" } }, { align: "left", baseline: "middle", fontWeight }, color, paper);
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
      // What the bounds are stands at their ends, outside the curves; the baseline's name stands at its model.
      { data: { name: "losses" }, mark: { type: "text", align: "right", baseline: "bottom", dx: 16, dy: -3, color: paper.faint }, encoding: { y, x: { value: { expr: "width" } }, text: { field: "label" } } },
      { data: { name: "costs" }, mark: { type: "text", align: "center", baseline: "bottom", dy: -4, color: paper.faint }, encoding: { x, y: { value: 0 }, text: { field: "label" } } },
      { data: { name: "outside" }, mark: { type: "text", align: "right", baseline: "middle", dx: -4, color: paper.text, fontWeight: "bold" }, encoding: { y: { field: "place", type: "quantitative", scale: { nice: false, zero: false, domain: Y_DOMAIN } }, x: { value: { expr: "width" } }, text: { field: "label" } } },
      {
        data: { name: "optima" },
        mark: { type: "point", filled: true, size: 95, opacity: 1, stroke: paper.background, strokeWidth: 1, clip: true },
        encoding: { x, y, fill: tint, shape: { field: "marker", type: "nominal", scale: null } },
      },
      { data: { name: "models" }, mark: { type: "point", filled: false, strokeWidth: 1.4, shape: "diamond", size: 46, color: paper.faint, opacity: 1, clip: true }, encoding: { x, y } },
      // From the baseline to the recommended model, both as built.
      { data: { name: "saving" }, mark: { type: "rule", strokeWidth: 2, color: paper.accent, clip: true }, encoding: { x, y, x2: { field: "usd2" }, y2: { field: "loss2" } } },
      {
        data: { name: "saving" },
        mark: { type: "point", shape: "triangle", filled: true, size: 90, opacity: 1, color: paper.accent, clip: true },
        encoding: { x: { ...x, field: "usd2" }, y: { ...y, field: "loss2" }, angle: { field: "angle", type: "quantitative", scale: null } },
      },
      { data: { name: "base" }, mark: { type: "point", filled: true, size: 60, opacity: 1, color: paper.accent, clip: true }, encoding: { x, y } },
      { data: { name: "pinned" }, mark: { type: "point", filled: false, size: 170, strokeWidth: 1.6, color: paper.text, opacity: 1, clip: true }, encoding: { x, y } },
      { data: { name: "choice" }, mark: { type: "point", filled: false, size: 230, strokeWidth: 2.4, color: paper.accent, opacity: 1 }, encoding: { x, y } },
      // Curves' names are in the text's colour: the palest curves' would be too faint for letters.
      ...words("faint", paper.faint, "normal"),
      ...words("plain", paper.text, "bold"),
      ...words("accent", paper.accent, "bold"),
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

interface Limits {
  xlo: number;
  xhi: number;
  ylo: number;
  yhi: number;
}

/** What is drawn: a plan's own figures stand beside curves only where it answers the curves' question. */
export interface Shown {
  draft: Draft;
  plan?: Plan; // of the same question
  last?: Plan; // the newest one, of whatever question
  around?: Around;
  pinned: Pinned[];
  bands: boolean;
}

/** The data of the chart, the limits of its axes, and the published models that have a number for a name. */
export function view({ draft, plan, last, around, pinned, bands }: Shown, paper: Ink, width: number): View & { numbered: string[] } {
  const o = draft.optimum;
  const all = points(draft);
  const chosen = plan?.decision.model;
  const base = plan?.base_as_built ?? plan?.base;
  const goal = base?.loss ?? draft.base_loss;
  const optima = all.filter((p) => p.i === o);
  const within = all.filter((p) => goal !== null && p.loss <= goal);
  const cheapest = draft.curves.flatMap((curve) => {
    const found = within.filter((p) => p.curve === curve);
    return found.length ? [found.reduce((a, b) => (a.usd < b.usd ? a : b))] : [];
  });
  const usds = [...optima, ...cheapest].map((p) => p.usd).concat(chosen?.usd_per_mtok ?? [], base?.usd_per_mtok ?? []);
  const losses = [...optima, ...cheapest].map((p) => p.loss).concat(chosen?.loss ?? [], goal ?? []);
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
  const limits = { xlo, xhi, ylo: low - 0.2 * room, yhi: high + 0.35 * room };
  const space = new Space(limits, width);

  // Curves that the decision does not stand on are grey until they are pointed at.
  const told = [last?.decision.model.experts, (last?.base_as_built ?? last?.base)?.experts];
  const row = (p: Point): Row => ({
    experts: p.curve.experts,
    colour: last === undefined || told.includes(p.curve.experts) ? colour(p.curve, paper) : paper.frontier,
    marker: p.curve.marker,
    beyond: p.curve.beyond_law,
    i: p.i,
    usd: p.usd,
    loss: p.loss,
  });
  const at = (c: Candidate | undefined): Spot[] => (c?.usd_per_mtok === undefined || c.loss === undefined ? [] : [{ usd: c.usd_per_mtok, loss: c.loss }]);
  const [[from], [to]] = [at(base), at(chosen)];
  const arrow = from && to ? saving(from, to, space, chosen?.total_usd !== undefined) : undefined;
  const known = (around?.models ?? []).filter((m) => space.holds({ usd: m.usd_per_mtok, loss: m.loss })).map((m) => ({ usd: m.usd_per_mtok, loss: m.loss, model: m }));

  // Places are given in this order: what stands at a curve's end cannot move, published models can do without a name.
  for (const p of [...optima, ...known]) space.take(p, 5);
  for (const p of [to, from, ...pinned]) if (p) space.take(p, 10);
  if (arrow) space.line(arrow.from, arrow.to);
  const plain = named(draft, all, space, from);
  const accent = [
    ...(to ? [space.label(to, `recommended ${format.usd(to.usd)}`, 14, BOLD_LETTER)] : []),
    ...(from && arrow ? [space.label(from, `baseline ${format.usd(from.usd)}`, 10, BOLD_LETTER) ?? space.label(from, "baseline", 10, BOLD_LETTER)] : []),
    ...(from && !to ? [space.label(from, `baseline ${format.usd(from.usd)}`, 10, BOLD_LETTER)] : []),
    ...(arrow ? [space.along(arrow.from, arrow.to, arrow.label)] : []),
  ].flatMap((found) => found ?? []);
  plain.push(...pinned.flatMap((p) => space.label(p, p.letter, 12) ?? []));
  const { faint, numbered } = published(known, draft.budget_flops, space);

  const data: Data = {
    curves: all.map(row),
    optima: optima.map(row),
    choice: to ? [{ ...to }] : [],
    base: from && (arrow || !to) ? [{ ...from }] : [],
    pointed: [],
    saving: arrow ? [{ usd: arrow.from.usd, loss: arrow.from.loss, usd2: arrow.to.usd, loss2: arrow.to.loss, angle: arrow.angle }] : [],
    losses: [],
    costs: [],
    outside: [],
    bands: [],
    models: known.map(({ usd, loss }) => ({ usd, loss })),
    pinned: pinned.map((p) => ({ usd: p.usd, loss: p.loss })),
    faint,
    plain,
    accent,
    pick: [],
  };
  if (near) data.losses.push({ loss: draft.max_loss, label: "loss bound" });
  else if (draft.max_loss !== null) {
    const below = draft.max_loss < low;
    data.outside.push({ place: below ? limits.ylo + 0.04 * room : limits.yhi - 0.04 * room, label: `loss bound ${draft.max_loss}: ${below ? "below" : "above"} this chart` });
  } else if (goal !== null) data.losses.push({ loss: goal, label: "" });
  if (draft.max_usd_per_mtok !== null) data.costs.push({ usd: draft.max_usd_per_mtok, label: "cost bound" });
  else if (from) data.costs.push({ usd: from.usd, label: "" });
  const curve = draft.curves.find((c) => c.experts === chosen?.experts);
  const band = bands ? around?.bands.find((b) => b.experts === chosen?.experts) : undefined;
  curve?.usd_per_mtok.forEach((usd, i) => {
    if (band && usd !== null && i <= o && band.low[i] !== null) data.bands.push({ colour: colour(curve, paper), usd, low: band.low[i], high: band.high[i] });
  });
  return { data, signals: { ...limits }, numbered };
}

type Spot = { usd: number; loss: number };
type Label = Spot & { label: string };

interface Box {
  left: number;
  right: number;
  top: number;
  bottom: number;
}

/** The plot in pixels, and what of it is taken. */
class Space {
  private taken: Box[] = [];

  constructor(
    private limits: Limits,
    readonly width: number,
  ) {}

  x(usd: number): number {
    const { xlo, xhi } = this.limits;
    return (Math.log(usd / xlo) / Math.log(xhi / xlo)) * this.width;
  }

  y(loss: number): number {
    const { ylo, yhi } = this.limits;
    return ((yhi - loss) / (yhi - ylo)) * HEIGHT;
  }

  spot(x: number, y: number): Spot {
    const { xlo, xhi, ylo, yhi } = this.limits;
    return { usd: xlo * (xhi / xlo) ** (x / this.width), loss: yhi - (y / HEIGHT) * (yhi - ylo) };
  }

  holds({ usd, loss }: Spot, margin = 5): boolean {
    const [x, y] = [this.x(usd), this.y(loss)];
    return x > margin && x < this.width - margin && y > margin && y < HEIGHT - margin;
  }

  take({ usd, loss }: Spot, radius: number): void {
    const [x, y] = [this.x(usd), this.y(loss)];
    this.taken.push({ left: x - radius, right: x + radius, top: y - radius, bottom: y + radius });
  }

  line(from: Spot, to: Spot): void {
    const steps = Math.ceil(Math.hypot(this.x(to.usd) - this.x(from.usd), this.y(to.loss) - this.y(from.loss)) / 8);
    for (let i = 0; i <= steps; i++) {
      const share = i / Math.max(steps, 1);
      this.take(this.spot(mix(this.x(from.usd), this.x(to.usd), share), mix(this.y(from.loss), this.y(to.loss), share)), 3);
    }
  }

  /** A text whose left end is at x and whose middle is at y; undefined where something else is. */
  put(x: number, y: number, label: string, force = false): Label | undefined {
    const box = { left: x - 1, right: x + LETTER * label.length + 1, top: y - 7, bottom: y + 7 };
    const inside = box.left >= 0 && box.right <= this.width + MARGINS.right && box.top >= -8 && box.bottom <= HEIGHT;
    const free = inside && !this.taken.some((t) => t.left < box.right && t.right > box.left && t.top < box.bottom && t.bottom > box.top);
    if (!free && !force) return undefined;
    this.taken.push(box);
    return { ...this.spot(x, y), label };
  }

  /** A text beside a point: right of it, left, below or above. */
  label({ usd, loss }: Spot, text: string, off: number, letter = LETTER): Label | undefined {
    const [x, y, length] = [this.x(usd), this.y(loss), letter * text.length];
    const places = [[off, 0], [-off - length, 0], [off - 4, 12], [off - 4, -12], [4 - off - length, 12], [4 - off - length, -12], [-length / 2, off + 9], [-length / 2, -off - 9]];
    for (const [dx, dy] of places) {
      const found = this.put(x + dx, y + dy, text);
      if (found) return found;
    }
    return undefined;
  }

  /** A text beside a line, as near its middle as there is room. */
  along(from: Spot, to: Spot, text: string): Label | undefined {
    for (const share of [0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8]) {
      const [x, y] = [mix(this.x(from.usd), this.x(to.usd), share), mix(this.y(from.loss), this.y(to.loss), share)];
      for (const [dx, dy] of [[-LETTER * text.length - 6, -10], [8, 12], [-LETTER * text.length - 6, 12], [8, -10]]) {
        const found = this.put(x + dx, y + dy, text);
        if (found) return found;
      }
    }
    return undefined;
  }
}

function mix(from: number, to: number, share: number): number {
  return from + (to - from) * share;
}

/** The known models' names where those cover nothing else; else their numbers, whose names stand below the chart. */
function published(known: (Spot & { model: Known })[], budget: number, space: Space): { faint: Label[]; numbered: string[] } {
  const name = (m: Known) => `${m.name} ${ofBudget(m, budget)}`;
  const full = new Map(known.map((m) => [m, space.width < NARROW ? undefined : space.label(m, name(m.model), 8)]));
  const [faint, numbered] = [[] as Label[], [] as string[]];
  for (const m of known) {
    const found = full.get(m);
    const number = String(numbered.length + 1);
    if (!found) numbered.push(`${number}: ${name(m.model)}`);
    const row = found ?? space.label(m, number, 7) ?? space.put(space.x(m.usd) + 6, space.y(m.loss) - 8, number, true);
    if (row) faint.push(row);
  }
  return { faint, numbered };
}

/** A model's training FLOPs beside the budget: a model of 28 times the budget may well lie below every curve. */
export function ofBudget(m: Known, budget: number): string {
  return `${format.significant(m.training_flops / budget, 2)}x`;
}

export function about(m: Known, budget: number): string {
  const size = m.n_params_active === m.n_params_total ? `${format.count(m.n_params_total)} parameters` : `${format.count(m.n_params_active)} active of ${format.count(m.n_params_total)} parameters`;
  return `${m.name}: ${size}, ${format.count(m.tokens)} tokens, ${format.flops(m.training_flops)} FLOPs (${ofBudget(m, budget)} the budget); loss ${m.loss.toFixed(4)} predicted by the law, ${format.usd(m.usd_per_mtok)} per Mtok as built` + (m.beyond_law ? "; more experts than the law was fitted on" : "");
}

/** The curve of an expert count in its colour. */
export function pointed(draft: Draft, experts: number, paper: Ink): Row[] {
  return points(draft)
    .filter((p) => p.curve.experts === experts)
    .map((p) => ({ usd: p.usd, loss: p.loss, i: p.i, colour: colour(p.curve, paper) }));
}

const RING = 15; // pixels from the recommended model to the point of the arrow

/** An arrow from the baseline to the recommended model, and how much cheaper that is to serve. */
function saving(base: Spot, chosen: Spot, space: Space, life: boolean): { from: Spot; to: Spot; angle: number; label: string } | undefined {
  const ratio = base.usd / chosen.usd;
  const [x, y] = [space.x(chosen.usd), space.y(chosen.loss)];
  const [dx, dy] = [x - space.x(base.usd), y - space.y(base.loss)];
  const length = Math.hypot(dx, dy);
  if (ratio < 1.05 || length < 4 * RING) return undefined;
  const to = space.spot(x - (dx * RING) / length, y - (dy * RING) / length);
  return { from: base, to, angle: (Math.atan2(dx, -dy) * 180) / Math.PI, label: `${format.cheaper(ratio)}${life ? " to serve" : ""}` };
}

/** Each curve's name beside the end of the curve, far enough from the others. */
function named(draft: Draft, all: Point[], space: Space, base?: Spot): Label[] {
  const last = draft.curves.flatMap((curve) => {
    const seen = all.filter((p) => p.curve === curve && space.holds(p, 0));
    return seen.length ? [seen[seen.length - 1]] : [];
  });
  const places = spread(last.map((p) => space.y(p.loss)), 14, 6, HEIGHT - 6);
  return last.flatMap((p, i) => {
    const { label } = p.curve;
    // A name that would not fit beside its curve's end stands on the curve; one at the baseline begins after it.
    const beside = base && Math.abs(space.y(base.loss) - places[i]) < 12 && space.x(base.usd) >= space.x(p.usd) - 4 && space.x(base.usd) < space.x(p.usd) + 30;
    const end = Math.max(space.x(p.usd), beside ? space.x(base.usd) + 3 : 0) + 9;
    return space.put(Math.min(end, space.width + MARGINS.right - LETTER * label.length - 2), places[i], label, true) ?? [];
  });
}

export function table(draft: Draft, models: Known[]): Table {
  const names = ["n_params", "n_params_active", "n_params_total", "tokens", "loss", "usd_per_mtok", "gpus", "batch", "prefill_s", "decode_s", "throughput_tok_s"] as const;
  const rows = draft.curves.flatMap((c) =>
    c.loss.map((_, i) => [c.experts, i === draft.optimum ? "loss-optimal" : i < draft.optimum ? "over-trained" : "larger", ...names.map((name) => c[name][i])]),
  );
  const known = models.map((m) => [null, m.name, ...names.map((name) => (m as unknown as Record<string, number>)[name] ?? null)]);
  return { columns: ["experts", "stretch", ...names], rows: [...rows, ...known] };
}
