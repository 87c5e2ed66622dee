// What one model's serving cost is made of: the memory of a GPU and the time of an iteration, every part named below its bar.

import { Data, Table, beside } from "../chart";
import { gigabytes, percent, seconds } from "../format";
import { Ink } from "../theme";
import { Draft, Served } from "../types";

export const MARGINS = { left: 2, right: 2 };

// Okabe and Ito's palette, as moescale.views.figures has it for things without an order.
const TINTS: Record<string, string> = { weights: "#0072B2", "KV cache": "#56B4E9", prefill: "#009E73", decode: "#E69F00" };
const ROW = 76; // pixels of a bar with its title and labels
const LETTER = 6.2; // pixels of a letter at 11 px
const SWATCH = 12; // of a label

export function spec(): object {
  const place = (field: string) => ({ field, type: "quantitative", axis: null, scale: { domain: [0, 1], nice: false } });
  const row = (dy: number) => ({ field: "row", type: "quantitative", axis: null, scale: { domain: [0, 2], range: [dy, 2 * ROW + dy], zero: false, nice: false } });
  const tint = { field: "colour", type: "nominal", scale: null };
  return {
    height: 2 * ROW - 12,
    padding: { ...MARGINS, top: 2, bottom: 2 },
    layer: [
      { data: { name: "titles" }, mark: { type: "text", align: "left", baseline: "middle", fontWeight: "bold", dy: 10 }, encoding: { x: { value: 0 }, y: row(0), text: { field: "label" } } },
      { data: { name: "parts" }, mark: { type: "bar", height: 20, yOffset: 30, clip: false }, encoding: { x: place("from"), x2: { field: "to" }, y: row(0), color: tint } },
      { data: { name: "parts" }, mark: { type: "point", shape: "square", filled: true, size: 70, opacity: 1, xOffset: 4, yOffset: 51 }, encoding: { x: place("at"), y: row(0), color: tint } },
      { data: { name: "parts" }, mark: { type: "text", align: "left", baseline: "middle", dx: SWATCH, dy: 51 }, encoding: { x: place("at"), y: row(0), text: { field: "label" } } },
    ],
  };
}

export interface Parts {
  name: string;
  of: string;
  share: number;
  amount: string;
}

export function parts(draft: Draft, model: Served): Parts[] {
  const { weight_bytes_per_gpu: weights, prefill_s: prefill, decode_s: decode } = model;
  if (weights === null || prefill === null || decode === null) return [];
  const memory = draft.gpu_memory_bytes;
  // A batch that memory limits fills what may be used; otherwise the cache holds less and the rest is free.
  const usable = memory * draft.memory_fraction;
  const memoryLimited = draft.limits[model.limited_by ?? 0] === "memory";
  const held = ((model.batch ?? 0) * (model.kv_bytes_per_token ?? 0) * draft.context_tokens) / (model.gpus ?? 1);
  const cache = memoryLimited ? usable - weights : held;
  const [whole, iteration] = [`memory of a GPU: ${gigabytes(memory)}`, `time of an iteration: ${seconds(prefill + decode)}`];
  const free = memory - weights - cache;
  const part = (name: string, of: string, share: number, amount: string) => ({ name, of, share, amount });
  return [
    part("weights", whole, weights / memory, gigabytes(weights)),
    part("KV cache", whole, cache / memory, gigabytes(cache)),
    ...(free > 0 ? [part("free", whole, free / memory, gigabytes(free))] : []),
    part("prefill", iteration, prefill / (prefill + decode), seconds(prefill)),
    part("decode", iteration, decode / (prefill + decode), seconds(decode)),
  ];
}

export function data(found: Parts[], paper: Ink, width: number): Data {
  const bars = [...new Set(found.map((p) => p.of))];
  const rows = bars.flatMap((of, row) => {
    const own = found.filter((p) => p.of === of);
    const from = own.map((_, i) => own.slice(0, i).reduce((sum, p) => sum + p.share, 0));
    const labels = own.map((p) => `${p.name} ${p.amount}`);
    const widths = labels.map((text) => SWATCH + LETTER * text.length);
    const at = beside(from.map((share) => share * width), widths, 10, width);
    return own.map((p, i) => ({ row, from: from[i], to: from[i] + p.share, at: at[i] / width, label: labels[i], colour: TINTS[p.name] ?? paper.frontier }));
  });
  return { parts: rows, titles: bars.map((label, row) => ({ label, row })) };
}

export function table(found: Parts[]): Table {
  return { columns: ["of", "part", "share", "amount"], rows: found.map((p) => [p.of, p.name, percent(p.share), p.amount]) };
}
