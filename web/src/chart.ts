// One chart: a Vega-Lite specification whose named data are replaced without compiling it again; its downloads and table.

import type { Result, VisualizationSpec } from "vega-embed";
import { count } from "./format";
import { Ink, config } from "./theme";

export type Row = Record<string, unknown>;
export type Data = Record<string, Row[]>;

export interface Table {
  columns: string[];
  rows: (string | number | null)[][];
}

export class Chart {
  private result?: Result;
  private paper?: Ink;
  private built?: Promise<void>;
  private observer?: ResizeObserver;
  private current: { data: Data; signals: Record<string, unknown> } = { data: {}, signals: {} };
  table: Table = { columns: [], rows: [] };
  /** Called when the plot has another width, for what is placed by pixels. */
  resized?: () => void;

  constructor(
    readonly card: HTMLElement,
    private make: (paper: Ink) => object,
    private margins: { left: number; right: number },
  ) {
    const details = card.querySelector("details.table");
    details?.addEventListener("toggle", () => this.showTable());
    for (const button of card.querySelectorAll<HTMLButtonElement>("button[data-save]")) {
      button.addEventListener("click", () => void this.save(button.dataset.save!));
    }
  }

  get view() {
    return this.result?.view;
  }

  /** The plot's width: what the card leaves beside the axis at the left and the names at the right. */
  width(): number {
    const place = this.card.querySelector<HTMLElement>(".plot")!;
    return Math.max(place.clientWidth - this.margins.left - this.margins.right, 60);
  }

  private async build(paper: Ink): Promise<void> {
    const place = this.card.querySelector<HTMLElement>(".plot")!;
    this.paper = paper;
    this.result?.finalize();
    const spec = { ...this.make(paper), width: this.width(), autosize: "none", $schema: "https://vega.github.io/schema/vega-lite/v6.json", config: config(paper) };
    const { embed, expressionInterpreter } = await import("./vega.js");
    // Expressions are interpreted, not compiled by eval: the page's content security policy forbids that.
    this.result = await embed(place, spec as VisualizationSpec, {
      mode: "vega-lite",
      renderer: "canvas",
      actions: false,
      ast: true,
      expr: expressionInterpreter,
      defaultStyle: false,
      tooltip: false,
    });
    // A chart is an image with a name (on the place itself); what Vega puts inside is not for screen readers.
    place.removeAttribute("title");
    if (!this.observer) {
      this.observer = new ResizeObserver(() => {
        const view = this.result?.view;
        if (!view || view.width() === this.width()) return;
        void view.width(this.width()).runAsync();
        this.resized?.();
      });
      this.observer.observe(place);
    }
  }

  /** Draw these data; the specification is compiled once for each theme. */
  async draw(paper: Ink, data: Data, signals: Record<string, unknown> = {}): Promise<void> {
    this.current = { data, signals };
    if (this.paper !== paper) {
      this.built = this.build(paper);
    }
    await this.built;
    const view = this.result!.view;
    for (const [name, value] of Object.entries(this.current.signals)) view.signal(name, value);
    for (const [name, rows] of Object.entries(this.current.data)) view.data(name, rows);
    await view.runAsync();
    this.showTable();
  }

  /** Replace some of the data only. */
  async update(data: Data): Promise<void> {
    if (!this.result) return;
    Object.assign(this.current.data, data);
    for (const [name, rows] of Object.entries(data)) this.result.view.data(name, rows);
    await this.result.view.runAsync();
  }

  private showTable(): void {
    const details = this.card.querySelector<HTMLDetailsElement>("details.table");
    if (!details?.open) return;
    const table = document.createElement("table");
    table.className = "numbers";
    const head = table.createTHead().insertRow();
    for (const name of this.table.columns) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = name;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of this.table.rows) {
      const line = body.insertRow();
      for (const value of row) line.insertCell().textContent = shown(value);
    }
    details.querySelector(".rows")!.replaceChildren(table);
  }

  private async save(kind: string): Promise<void> {
    const name = this.card.id;
    if (kind === "csv") return download(`${name}.csv`, new Blob([csv(this.table)], { type: "text/csv" }));
    if (!this.result) return;
    if (kind === "svg") {
      const text = await this.result.view.toSVG();
      return download(`${name}.svg`, new Blob([text], { type: "image/svg+xml" }));
    }
    const canvas = await this.result.view.toCanvas(2);
    canvas.toBlob((blob) => blob && download(`${name}.png`, blob), "image/png");
  }
}

function shown(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value !== "number") return value;
  return Math.abs(value) >= 1e5 ? count(value) : String(Number(value.toPrecision(6)));
}

function csv(table: Table): string {
  const cell = (value: string | number | null) => {
    const text = value === null ? "" : String(value);
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [table.columns, ...table.rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

export function download(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Places for labels at least `gap` pixels apart, near where they want to be, within [low, high]. */
export function spread(wanted: number[], gap: number, low: number, high: number): number[] {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
  const placed = order.map((i) => Math.min(Math.max(wanted[i], low), high));
  for (let i = 1; i < placed.length; i++) placed[i] = Math.max(placed[i], placed[i - 1] + gap);
  if (placed.length) placed[placed.length - 1] = Math.min(placed[placed.length - 1], high);
  for (let i = placed.length - 2; i >= 0; i--) placed[i] = Math.min(placed[i], placed[i + 1] - gap);
  const out: number[] = [];
  order.forEach((i, place) => (out[i] = placed[place]));
  return out;
}

export const COUNT_LABEL = "replace(format(datum.value, '~s'), 'G', 'B')";

export interface View {
  data: Data;
  signals: Record<string, number>;
}

/** The limits of both axes as parameters: an explicit domain follows the data without a new specification. */
export const PARAMS = ["xlo", "xhi", "ylo", "yhi"].map((name, i) => ({ name, value: 1 + (i % 2) }));
export const X_DOMAIN = { expr: "[xlo, xhi]" };
export const Y_DOMAIN = { expr: "[ylo, yhi]" };

/** Limits with room on both sides, as a share of the range; of its logarithm where `log`. */
export function limits(values: number[], room: number, log: boolean): [number, number] {
  const to = log ? Math.log : (v: number) => v;
  const from = log ? Math.exp : (v: number) => v;
  if (!values.length) return log ? [1, 10] : [0, 1];
  const [low, high] = [to(Math.min(...values)), to(Math.max(...values))];
  const pad = Math.max(high - low, log ? 0.1 : 1e-3) * room;
  return [from(low - pad), from(high + pad)];
}

/** Places for boxes side by side, `gap` apart, near where they want to begin, within [0, width]. */
export function beside(wanted: number[], widths: number[], gap: number, width: number): number[] {
  const placed: number[] = [];
  wanted.forEach((at, i) => placed.push(i ? Math.max(at, placed[i - 1] + widths[i - 1] + gap) : Math.max(at, 0)));
  for (let i = placed.length - 1, end = width; i >= 0; i--) {
    placed[i] = Math.min(placed[i], end - widths[i]);
    end = placed[i] - gap;
  }
  return placed;
}

/** Text that stays readable on lines: the same text, thick and in the colour of the paper, below it. */
export function halo(name: string, encoding: object, mark: object, color: string, paper: Ink): object[] {
  const text = { type: "text", ...mark };
  return [
    { data: { name }, mark: { ...text, color: paper.background, stroke: paper.background, strokeWidth: 4, strokeJoin: "round" }, encoding },
    { data: { name }, mark: { ...text, color }, encoding },
  ];
}

/** Every power of ten that a chart may need; an axis shows those within its domain. */
export const POWERS = Array.from({ length: 30 }, (_, i) => 10 ** i);
