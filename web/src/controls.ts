// The controls: each writes one key of the state and shows what it holds, also when a link or another control set it.

import * as format from "./format";
import { State, gpu } from "./state";
import { Catalogue, Draft, Failure } from "./types";

interface Control {
  element: HTMLElement;
  show(): void;
}

export interface Slider {
  key: string;
  label: string;
  low: number;
  high: number;
  log: boolean;
  text: (value: number) => string;
  spoken?: (value: number) => string;
  steps?: number;
  whole?: boolean;
  fallback?: () => number;
  unset?: string; // shown where nothing is stated
  hint?: string;
}

let counter = 0;

export function make<K extends keyof HTMLElementTagNameMap>(tag: K, properties: Record<string, unknown> = {}, ...children: (Node | string)[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "for" || name === "role") element.setAttribute(name, String(value));
    else Object.assign(element, { [name]: value });
  }
  element.append(...children);
  return element;
}

export class Controls {
  private all: Control[] = [];
  private errors = new Map<string, { note: HTMLElement; field: HTMLElement; label: string }>();
  draft?: Draft;
  mfu?: number; // of the last plan's model
  private bounds: Record<string, { low: number; high: number }> = {};

  constructor(
    private state: State,
    private catalogue: Catalogue,
  ) {}

  show(): void {
    for (const control of this.all) control.show();
  }

  /** Show a refusal beside the control that it is about, which is returned; undefined where none is to be seen. */
  fail(failure: Failure | undefined): { field: HTMLElement; label: string } | undefined {
    for (const { note, field } of this.errors.values()) {
      note.hidden = true;
      field.removeAttribute("aria-invalid");
    }
    const found = failure?.where ? this.errors.get(failure.where.replace(/^--/, "")) : undefined;
    if (!failure || !found || found.field.closest("[hidden]")) return undefined;
    for (let folded = found.field.closest("details"); folded; folded = folded.parentElement!.closest("details")) folded.open = true;
    found.note.textContent = this.message(failure, false).join(" ");
    found.note.hidden = false;
    if (found.field.matches("input, select")) found.field.setAttribute("aria-invalid", "true");
    return found;
  }

  /** The label of an option's control. */
  private label(key: string): string | undefined {
    return this.errors.get(key)?.label;
  }

  /** A sentence of the command line in the page's words: its options by the labels of their controls. */
  words(text: string): string {
    return text.replace(/--([a-z][a-z-]*)/g, (option, key: string) => (this.label(key) ? `“${this.label(key)}”` : option));
  }

  /** A refusal in sentences; its place is left out where it is shown there. */
  message(failure: Failure, located = true): string[] {
    const where = located && failure.where ? `${this.words(this.label(failure.where) ? `--${failure.where}` : failure.where)}: ` : "";
    const lines = [where + (where ? failure.what : sentence(failure.what))];
    if (failure.nearest) lines.push(`Nearest: ${failure.nearest}`);
    if (failure.next_step) lines.push(sentence(failure.next_step));
    return lines.map((line) => this.words(/[.!?]$/.test(line) ? line : `${line}.`));
  }

  /** What a question states, by the labels of its controls. */
  asked(query: string): string {
    const stated = [...new URLSearchParams(query)].map(([key, value]) => `${this.label(key) ?? key} ${value.startsWith("upload:") ? (this.catalogue.laws.find((l) => l.name === value)?.title ?? "uploaded") : value}`);
    return stated.join(", ") || "the default question";
  }

  /** The sliders of the bounds follow what the curves can reach. */
  reach(draft: Draft): void {
    this.draft = draft;
    const optima = draft.curves.map((c) => ({ loss: c.loss[draft.optimum], usd: c.usd_per_mtok[draft.optimum] }));
    const losses = optima.flatMap((o) => (o.loss === null ? [] : [o.loss]));
    const usds = optima.flatMap((o) => (o.usd === null ? [] : [o.usd]));
    if (losses.length) this.bounds["max-loss"] = { low: Math.min(...losses), high: Math.max(...losses) * 1.06 };
    if (usds.length) this.bounds["max-usd-per-mtok"] = { low: Math.min(...usds) / 4, high: Math.max(...usds) * 2 };
    this.show();
  }

  private add(control: Control): HTMLElement {
    this.all.push(control);
    control.show();
    return control.element;
  }

  private note(key: string, field: HTMLElement, label: string): HTMLElement {
    const note = make("p", { className: "bad", id: `bad-${key}`, hidden: true });
    field.setAttribute("aria-describedby", note.id);
    this.errors.set(key, { note, field, label });
    return note;
  }

  slider(s: Slider): HTMLElement {
    const id = `c${counter++}`;
    const steps = s.steps ?? 200;
    const range = make("input", { type: "range", id, min: "0", max: String(steps), step: "1", name: s.key });
    const field = make("input", { type: "text", id: `${id}t`, inputMode: "decimal", "aria-label": `${s.label}, exact` });
    const element = make("div", { className: "control" }, make("label", { htmlFor: id }, s.label, ...(s.hint ? [make("small", {}, ` ${s.hint}`)] : [])), field, range, this.note(s.key, field, s.label));
    const limits = () => this.bounds[s.key] ?? { low: s.low, high: s.high };
    const number = () => (this.state.get(s.key) ? format.parse(this.state.get(s.key)) : (s.fallback?.() ?? s.low));
    range.addEventListener("input", () => {
      const { low, high } = limits();
      const share = Number(range.value) / steps;
      let value = s.log ? low * (high / low) ** share : low + (high - low) * share;
      value = s.whole ? Math.round(value) : Number(value.toPrecision(s.key === "max-loss" ? 5 : 3));
      if (!performance.getEntriesByName("slid").length) performance.mark("slid"); // the oldest change not yet drawn
      this.state.set({ [s.key]: s.key.endsWith("tokens") ? format.count(value) : plain(value) });
    });
    field.addEventListener("change", () => this.state.set({ [s.key]: field.value.trim() || undefined }));
    return this.add({
      element,
      show: () => {
        const { low, high } = limits();
        const value = number();
        const stated = this.state.get(s.key);
        if (document.activeElement !== field) field.value = stated && Number.isFinite(value) ? s.text(value) : stated;
        if (!Number.isFinite(value)) return;
        field.placeholder = s.unset ?? s.text(value);
        const share = s.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
        range.value = String(Math.round(Math.min(Math.max(share, 0), 1) * steps));
        range.setAttribute("aria-valuetext", !stated && s.unset ? s.unset : (s.spoken ?? s.text)(value));
      },
    });
  }

  select(key: string, label: string, options: () => [string, string][], wide = false, note?: () => string, also: Record<string, undefined> = {}): HTMLElement {
    const id = `c${counter++}`;
    const field = make("select", { id, name: key });
    const hint = make("p", { className: "hint" });
    const element = make("div", { className: wide ? "control wide" : "control" }, make("label", { htmlFor: id }, label), field, this.note(key, field, label));
    field.addEventListener("change", () => this.state.set({ [key]: field.value, ...also }));
    const whole = note ? make("div", {}, element, hint) : element;
    let shown = "";
    return this.add({
      element: whole,
      show: () => {
        const listed = options();
        const chosen = this.state.get(key);
        if (!listed.some(([value]) => value === chosen)) listed.push([chosen, chosen.startsWith("upload:") ? "an upload of another session" : chosen]);
        const wanted = listed.join("\n");
        if (wanted !== shown) field.replaceChildren(...listed.map(([value, text]) => make("option", { value }, text)));
        shown = wanted;
        field.value = chosen;
        if (note) hint.textContent = note();
      },
    });
  }

  text(key: string, label: string, placeholder: string | (() => string | undefined)): HTMLElement {
    const id = `c${counter++}`;
    const field = make("input", { type: "text", id, name: key });
    field.addEventListener("change", () => this.state.set({ [key]: field.value.trim() || undefined }));
    const element = make("div", { className: "control" }, make("label", { htmlFor: id }, label), field, this.note(key, field, label));
    return this.add({
      element,
      show: () => {
        field.placeholder = (typeof placeholder === "string" ? placeholder : placeholder()) ?? "";
        if (document.activeElement !== field) field.value = this.state.get(key);
      },
    });
  }

  radio(label: string, choices: [string, string][], chosen: () => string, choose: (value: string) => void, heading = false): HTMLElement {
    const name = `r${counter++}`;
    const fields = choices.map(([value]) => make("input", { type: "radio", name, value }));
    const element = make("div", { className: "radio", role: "radiogroup", "aria-label": label }, ...(heading ? [make("span", { className: "hint" }, label)] : []), ...choices.map(([, text], i) => make("label", {}, fields[i], text)));
    fields.forEach((field) => field.addEventListener("change", () => choose(field.value)));
    return this.add({ element, show: () => fields.forEach((field) => (field.checked = field.value === chosen())) });
  }

  experts(counts: number[]): HTMLElement {
    const group = make("div", { className: "checks", role: "group", "aria-label": "Experts to consider", tabIndex: -1 });
    const note = this.note("experts", group, "Experts to consider");
    // Where none is stated, those that the law's family has.
    const experts = () => (this.state.get("experts") ? this.state.get("experts").split(",").map(Number).filter((e) => e >= 1) : (this.draft?.curves.map((c) => c.experts) ?? []));
    const element = make("div", {}, make("p", { className: "hint" }, "Experts to consider"), group, note);
    return this.add({
      element,
      show: () => {
        const chosen = experts();
        const shown = [...new Set([...counts, ...chosen])].sort((a, b) => a - b);
        if (group.children.length !== shown.length) {
          group.replaceChildren(
            ...shown.map((count) => {
              const box = make("input", { type: "checkbox", value: String(count) });
              box.addEventListener("change", () => {
                const now = new Set(experts());
                if (box.checked) now.add(count);
                else now.delete(count);
                if (!now.size) now.add(count);
                this.state.set({ experts: [...now].sort((a, b) => a - b).join(",") });
                this.show();
              });
              const swatch = make("i", { "aria-hidden": "true" });
              const look = this.catalogue.looks.find((l) => l.experts === count);
              swatch.style.setProperty("--on-light", look?.colour ?? "gray");
              swatch.style.setProperty("--on-dark", look?.colour_on_dark ?? "gray");
              return make("label", {}, box, swatch, count === 1 ? "dense" : String(count));
            }),
          );
        }
        for (const box of group.querySelectorAll("input")) {
          box.checked = chosen.includes(Number(box.value));
          box.disabled = !chosen.length; // until the law's own counts are known
        }
      },
    });
  }

  /** A part that is there only at times. */
  part(when: () => boolean, ...children: HTMLElement[]): HTMLElement {
    const element = make("div", {}, ...children);
    element.style.display = "grid";
    element.style.gap = "9px";
    return this.add({ element, show: () => (element.hidden = !when()) });
  }
}

/** A sentence's first letter large, unless it begins with a name or a number. */
function sentence(text: string): string {
  return /^[a-z]+[ ,]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

/** A number as text without digits that nobody set. */
export function plain(value: number): string {
  return Math.abs(value) >= 1e6 ? value.toExponential().replace("e+", "e") : String(value);
}

const USUAL_MFU = 0.4; // of a first guess of days or dollars: mfu.default of catalogue/training.toml
const DAYS = 30; // of a training run, where GPUs and days are first asked for

export function build(form: HTMLElement, state: State, catalogue: Catalogue, uploads: HTMLElement): Controls {
  const c = new Controls(state, catalogue);
  const law = () => catalogue.laws.find((l) => l.name === state.get("law"));
  const served = () => gpu(catalogue, state.get("gpu"));
  const trains = () => gpu(catalogue, state.get("train-gpu") || state.get("gpu"));
  const budget = () => (state.has("budget-usd") ? "usd" : state.has("days") ? "days" : "flops");
  const goal = () => state.get("objective") || (state.has("lifetime-tokens") ? "lifetime" : state.has("max-usd-per-mtok") && !state.has("max-loss") ? "quality" : "serve");
  const short = (value: number) => plain(Number(value.toPrecision(3)));
  const gpus = () => catalogue.gpus.map((g) => [g.name, g.name] as [string, string]);
  const set = (name: string, ...children: HTMLElement[]) => make("fieldset", {}, make("legend", {}, name), ...children);
  const more = (name: string, ...children: HTMLElement[]) => make("details", { className: "more" }, make("summary", {}, `More ${name} settings`), make("div", {}, ...children));
  const optimum = (e: number) => `loss-optimal, ${format.expertsName(e)}`;
  const baselines = () => {
    const stated = state.get("match-experts"); // of a link
    const listed: [string, string][] = [["", stated ? optimum(Number(stated)) : state.has("match") || !c.draft ? "the default of the shape" : `${optimum(c.draft.base_experts)} (default)`]];
    for (const e of [1, 2, 4, 8, 16, 32, 64]) listed.push([String(e), optimum(e)]);
    return [...listed, ...catalogue.models.map((m) => [m.name, `${m.name} (${format.flops(m.flops)} FLOPs)`] as [string, string])];
  };
  const further = (key: string, label: string) => {
    const usual = () => law()?.further[key.replace("-", "_")];
    return c.part(() => usual() !== undefined, c.text(key, label, usual));
  };

  form.replaceChildren(
    set(
      "Question",
      c.radio("Budget in", [["flops", "FLOPs"], ["days", "GPUs, days"], ["usd", "dollars"]], budget, (value) => {
        const [card, flops] = [trains(), c.draft?.budget_flops ?? format.parse(state.get("budget"))];
        const hours = card ? flops / (3600 * card.bf16_flops_per_s * format.parse(state.get("mfu") || String(c.mfu ?? USUAL_MFU))) : NaN;
        const price = card === served() && state.has("usd-per-gpu-hour") ? format.parse(state.get("usd-per-gpu-hour")) : (card?.usd_per_gpu_hour ?? 1);
        const cards = Math.max(1, 2 ** Math.round(Math.log2(hours / 24 / DAYS))); // which splits divide
        state.set({
          budget: value === "flops" ? short(flops) : undefined,
          "train-gpus": value === "days" ? String(cards) : undefined,
          days: value === "days" ? short(hours / 24 / cards) : undefined,
          "budget-usd": value === "usd" ? short(hours * price) : undefined,
        });
        c.show();
      }, true),
      c.part(() => budget() === "flops", c.slider({ key: "budget", label: "Budget (FLOPs)", low: 1e18, high: 1e26, log: true, steps: 800, text: format.flops, spoken: (v) => `${format.flops(v)} FLOPs` })),
      c.part(
        () => budget() === "days",
        c.slider({ key: "train-gpus", label: "Training GPUs", low: 1, high: 1e5, log: true, whole: true, steps: 500, text: plain }),
        c.slider({ key: "days", label: "Days", low: 1, high: 365, log: true, text: format.significant, spoken: (v) => `${format.significant(v)} days` }),
      ),
      c.part(() => budget() === "usd", c.slider({ key: "budget-usd", label: "Training dollars", low: 1e3, high: 1e9, log: true, steps: 600, text: format.count, spoken: format.usd })),
      c.select("gpu", "GPU", gpus),
      c.slider({ key: "usd-per-gpu-hour", label: "$ per GPU hour", low: 0.1, high: 20, log: true, text: (v) => format.significant(v), spoken: (v) => `${format.usd(v)} an hour`, fallback: () => served()?.usd_per_gpu_hour ?? 1 }),
      c.slider({ key: "prompt", label: "Prompt tokens", low: 16, high: 131072, log: true, text: (v) => String(Math.round(v * 1e3) / 1e3), spoken: (v) => `${v} tokens`, whole: true }),
      c.slider({ key: "output", label: "Output tokens", low: 16, high: 16384, log: true, text: (v) => String(Math.round(v * 1e3) / 1e3), spoken: (v) => `${v} tokens`, whole: true }),
    ),
    make("details", { className: "more", id: "rest" }, make("summary", {}, "All other inputs: goal, law, experts, server"), make("div", {},
    set(
      "Goal",
      c.radio("Goal", [["serve", "cheapest to serve at the baseline's loss"], ["quality", "lowest loss at a serving cost"], ["lifetime", "cheapest to train and serve"], ["loss", "lowest loss"]], goal, (value) => {
        state.set({
          objective: value === "quality" || value === "loss" ? value : undefined,
          "lifetime-tokens": value === "lifetime" ? "5T" : undefined,
          "max-loss": undefined,
          "max-usd-per-mtok": undefined,
          "max-total-usd": undefined,
        });
        c.show();
      }),
      c.part(() => state.has("lifetime-tokens"), c.slider({ key: "lifetime-tokens", label: "Lifetime: tokens to serve", low: 1e9, high: 1e16, log: true, steps: 700, text: format.count, spoken: (v) => `${format.count(v)} tokens` }), c.text("max-total-usd", "Lifetime dollars at most", "no limit")),
      c.select("match", "Baseline", baselines, true, undefined, { "match-experts": undefined }),
      c.part(() => goal() === "serve" || goal() === "lifetime", c.slider({ key: "max-loss", label: "Loss at most", low: 1.7, high: 3, log: false, text: (v) => format.significant(v, 5), steps: 400, fallback: () => c.draft?.base_loss ?? NaN })),
      c.part(() => goal() === "quality" || state.has("max-usd-per-mtok"), c.slider({ key: "max-usd-per-mtok", label: "$/Mtok at most", low: 0.01, high: 10, log: true, text: format.significant, fallback: () => c.draft?.base_usd_per_mtok ?? NaN })),
      c.part(() => goal() !== "loss" && goal() !== "quality" && (state.has("confidence") || c.draft?.confidence !== null), c.slider({ key: "confidence", label: "Confidence", hint: "P(loss <= baseline)", low: 0.5, high: 0.99, log: false, steps: 49, text: format.significant, spoken: format.percent, fallback: () => c.draft?.confidence ?? NaN })),
    ),
    set(
      "Law and training",
      c.select("law", "Scaling law", () => catalogue.laws.map((l) => [l.name, l.title]), true, () => law()?.source ?? ""),
      further("unique-tokens", "Distinct tokens"),
      further("granularity", "Granularity"),
      further("sparsity", "Sparsity"),
      uploads,
      c.select("shape", "Shape", () => [["", law()?.name === "pooled2026" ? "mixtral or deepseek" : "the law's own"], ...catalogue.shapes.map((name) => [name, name] as [string, string])]),
      c.experts([1, 2, 4, 8, 16, 32, 64, 128]),
      more(
        "training",
        c.select("train-gpu", "Training GPU", () => [["", "the serving GPU"], ...gpus()]),
        c.slider({ key: "mfu", label: "MFU: share of peak FLOP/s", low: 0.01, high: 1, log: false, steps: 99, text: format.significant, fallback: () => USUAL_MFU, unset: "predicted" }),
        c.text("max-tokens", "Training tokens at most", "no limit"),
        c.text("max-active-params", "Active parameters at most", "no limit"),
        c.text("max-total-params", "Total parameters at most", "no limit"),
      ),
    ),
    set(
      "Serving",
      c.select("max-gpus", "GPUs at most", () => [1, 2, 4, 8, 16, 32, 64].map((n) => [String(n), String(n)])),
      c.slider({ key: "utilization", label: "Utilization", low: 0.05, high: 1, log: false, steps: 95, text: (v) => format.significant(v), spoken: format.percent }),
      more(
        "serving",
        c.select("weights", "Weights", () => [["", "bf16; known models as released"], ...catalogue.weights.map((w): [string, string] => [w, w])]),
        c.select("kv-cache", "KV cache", () => catalogue.kv_cache.map((w) => [w, w])),
        c.select("latency", "Latency from", () => [["auto", "measured kernels, else roofline"], ["silicon", "measured kernels"], ["roofline", "roofline"]], true),
        c.text("max-num-seqs", "Batch at most", "vLLM's cap"),
        c.slider({ key: "memory-fraction", label: "Memory fraction", low: 0.3, high: 1, log: false, steps: 70, text: (v) => format.significant(v) }),
        c.text("kv-heads", "KV heads", "by shape"),
      ),
    ),
    )),
  );
  for (const details of form.querySelectorAll("details.more")) {
    const used = [...details.querySelectorAll<HTMLInputElement>("[name]")].some((field) => state.has(field.name));
    (details as HTMLDetailsElement).open = used;
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  return c;
}
