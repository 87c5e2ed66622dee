// What one model's serving cost is made of: the memory of a GPU and the time of an iteration, as shares.

import { Data, Table } from "../chart";
import { gigabytes, seconds } from "../format";
import { Ink } from "../theme";
import { Curve, Draft } from "../types";

export const MARGINS = { left: 96, right: 18 };

// Okabe and Ito's palette, as moescale.views.figures has it for things without an order.
const PARTS = { weights: "#0072B2", cache: "#56B4E9", prefill: "#009E73", decode: "#E69F00" };

export function spec(paper: Ink): object {
  const x = { field: "from", type: "quantitative", scale: { domain: [0, 1] }, title: null, axis: { format: "%", values: [0, 0.25, 0.5, 0.75, 1] } };
  const y = { field: "of", type: "nominal", title: null, sort: null, axis: { labelLimit: 150, domain: false, ticks: false, labelPadding: 8 } };
  return {
    height: 84,
    padding: { ...MARGINS, top: 4, bottom: 22 },
    layer: [
      { data: { name: "parts" }, mark: { type: "bar", height: 26 }, encoding: { x, x2: { field: "to" }, y, color: { field: "colour", type: "nominal", scale: null } } },
      { data: { name: "parts" }, transform: [{ filter: "(datum.to - datum.from) * width > 105" }], mark: { type: "text", baseline: "middle", fontSize: 11 }, encoding: { x: { ...x, field: "middle" }, y, text: { field: "label" }, color: { field: "ink", type: "nominal", scale: null } } },
    ],
    config: { axis: { gridColor: paper.rule } },
  };
}

export interface Parts {
  name: string;
  of: string;
  share: number;
  amount: string;
}

export function parts(draft: Draft, curve: Curve, i: number): Parts[] {
  const weights = curve.weight_bytes_per_gpu[i];
  const [prefill, decode] = [curve.prefill_s[i], curve.decode_s[i]];
  if (weights === null || prefill === null || decode === null) return [];
  const memory = draft.gpu_memory_bytes;
  // A batch that memory limits fills what may be used; otherwise the cache holds less and the rest is free.
  const usable = memory * draft.memory_fraction;
  const found: Parts[] = [{ name: "weights", of: "GPU memory", share: weights / memory, amount: gigabytes(weights) }];
  const memoryLimited = draft.limits[curve.limited_by[i] ?? 0] === "memory";
  const held = (curve.batch[i] ?? 0) * (curve.kv_bytes_per_token[i] ?? 0) * draft.context_tokens / (curve.gpus[i] ?? 1);
  const cache = memoryLimited ? usable - weights : held;
  found.push({ name: "KV cache", of: "GPU memory", share: cache / memory, amount: gigabytes(cache) });
  const iteration = prefill + decode;
  found.push({ name: "prefill", of: "iteration time", share: prefill / iteration, amount: seconds(prefill) });
  found.push({ name: "decode", of: "iteration time", share: decode / iteration, amount: seconds(decode) });
  return found;
}

export function data(found: Parts[], paper: Ink): Data {
  const tint: Record<string, string> = { weights: PARTS.weights, "KV cache": PARTS.cache, prefill: PARTS.prefill, decode: PARTS.decode };
  const at: Record<string, number> = {};
  const rows = found.map((p) => {
    const from = at[p.of] ?? 0;
    const to = (at[p.of] = from + p.share);
    return { of: p.of, from, to, middle: (from + to) / 2, label: `${p.name} ${p.amount}`, colour: tint[p.name], ink: p.name === "weights" ? "#ffffff" : "#111111" };
  });
  if (at["GPU memory"] !== undefined && at["GPU memory"] < 1) {
    const from = at["GPU memory"];
    rows.splice(rows.findIndex((r) => r.of !== "GPU memory"), 0, { of: "GPU memory", from, to: 1, middle: (from + 1) / 2, label: "free", colour: paper.rule, ink: paper.text });
  }
  return { parts: rows };
}

export function table(found: Parts[]): Table {
  return { columns: ["of", "part", "share", "amount"], rows: found.map((p) => [p.of, p.name, p.share, p.amount]) };
}
