// The controls: each writes one key of the state and shows what it holds, also when a link or another control set it.

import * as format from "./format";
import { State, experts, gpu } from "./state";
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
  private errors = new Map<string, { note: HTMLElement; field: HTMLElement }>();
  private bounds: Record<string, { low: number; high: number }> = {};

  constructor(
    private state: State,
    private catalogue: Catalogue,
  ) {}

  show(): void {
    for (const control of this.all) control.show();
  }

  /** Show a refusal beside the control that it is about; false where there is none. */
  fail(failure: Failure | undefined): boolean {
    for (const { note, field } of this.errors.values()) {
      note.hidden = true;
      field.removeAttribute("aria-invalid");
    }
    const found = failure?.where ? this.errors.get(failure.where.replace(/^--/, "")) : undefined;
    if (!failure || !found) return false;
    found.note.textContent = failure.message;
    found.note.hidden = false;
    found.field.setAttribute("aria-invalid", "true");
    return true;
  }

  /** The sliders of the bounds follow what the curves can reach. */
  reach(draft: Draft): void {
    const optima = draft.curves.map((c) => ({ loss: c.loss[draft.optimum], usd: c.usd_per_mtok[draft.optimum] }));
    const losses = optima.flatMap((o) => (o.loss === null ? [] : [o.loss]));
    const usds = optima.flatMap((o) => (o.usd === null ? [] : [o.usd]));
    if (losses.length) this.bounds["max-loss"] = { low: Math.min(...losses), high: Math.max(...losses) * 1.06 };
    if (usds.length) this.bounds["max-usd-per-mtok"] = { low: Math.min(...usds) / 4, high: Math.max(...usds) * 2 };
    for (const control of this.all) if (control.element.dataset.follows) control.show();
  }

  private add(control: Control): HTMLElement {
    this.all.push(control);
    control.show();
    return control.element;
  }

  private note(key: string, field: HTMLElement): HTMLElement {
    const note = make("p", { className: "bad", id: `bad-${key}`, hidden: true, role: "alert" });
    field.setAttribute("aria-describedby", note.id);
    this.errors.set(key, { note, field });
    return note;
  }

  slider(s: Slider): HTMLElement {
    const id = `c${counter++}`;
    const steps = s.steps ?? 200;
    const range = make("input", { type: "range", id, min: "0", max: String(steps), step: "1", name: s.key });
    const field = make("input", { type: "text", id: `${id}t`, inputMode: "decimal", "aria-label": `${s.label}, exact` });
    const element = make("div", { className: "control" }, make("label", { htmlFor: id }, s.label), field, range, this.note(s.key, field));
    const limits = () => this.bounds[s.key] ?? { low: s.low, high: s.high };
    if (s.key.startsWith("max-")) element.dataset.follows = "1";
    const number = () => (this.state.get(s.key) ? format.parse(this.state.get(s.key)) : (s.fallback?.() ?? s.low));
    range.addEventListener("input", () => {
      const { low, high } = limits();
      const share = Number(range.value) / steps;
      let value = s.log ? low * (high / low) ** share : low + (high - low) * share;
      value = s.whole ? Math.round(value) : Number(value.toPrecision(s.key === "max-loss" ? 5 : 3));
      if (!performance.getEntriesByName("slid").length) performance.mark("slid"); // the oldest change not yet drawn
      this.state.set({ [s.key]: plain(value) });
    });
    field.addEventListener("change", () => this.state.set({ [s.key]: field.value.trim() || undefined }));
    return this.add({
      element,
      show: () => {
        const { low, high } = limits();
        const value = number();
        if (document.activeElement !== field) field.value = Number.isFinite(value) ? s.text(value) : this.state.get(s.key);
        if (!Number.isFinite(value)) return;
        const share = s.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
        range.value = String(Math.round(Math.min(Math.max(share, 0), 1) * steps));
        range.setAttribute("aria-valuetext", (s.spoken ?? s.text)(value));
      },
    });
  }

  select(key: string, label: string, options: () => [string, string][], wide = false, note?: () => string): HTMLElement {
    const id = `c${counter++}`;
    const field = make("select", { id, name: key });
    const hint = make("p", { className: "hint" });
    const element = make("div", { className: wide ? "control wide" : "control" }, make("label", { htmlFor: id }, label), field, this.note(key, field));
    field.addEventListener("change", () => this.state.set({ [key]: field.value }));
    const whole = note ? make("div", {}, element, hint) : element;
    return this.add({
      element: whole,
      show: () => {
        const listed = options();
        const chosen = this.state.get(key);
        if (!listed.some(([value]) => value === chosen)) listed.push([chosen, chosen.startsWith("upload:") ? "an upload of another session" : chosen]);
        field.replaceChildren(...listed.map(([value, text]) => make("option", { value }, text)));
        field.value = chosen;
        if (note) hint.textContent = note();
      },
    });
  }

  text(key: string, label: string, placeholder: string): HTMLElement {
    const id = `c${counter++}`;
    const field = make("input", { type: "text", id, placeholder, name: key });
    field.addEventListener("change", () => this.state.set({ [key]: field.value.trim() || undefined }));
    const element = make("div", { className: "control" }, make("label", { htmlFor: id }, label), field, this.note(key, field));
    return this.add({
      element,
      show: () => {
        if (document.activeElement !== field) field.value = this.state.get(key);
      },
    });
  }

  radio(label: string, choices: [string, string][], chosen: () => string, choose: (value: string) => void): HTMLElement {
    const name = `r${counter++}`;
    const fields = choices.map(([value]) => make("input", { type: "radio", name, value }));
    const element = make("div", { className: "radio", role: "radiogroup", "aria-label": label }, ...choices.map(([, text], i) => make("label", {}, fields[i], text)));
    fields.forEach((field) => field.addEventListener("change", () => choose(field.value)));
    return this.add({ element, show: () => fields.forEach((field) => (field.checked = field.value === chosen())) });
  }

  experts(counts: number[]): HTMLElement {
    const group = make("div", { className: "checks", role: "group", "aria-label": "Expert counts to consider" });
    const note = this.note("experts", group);
    const element = make("div", {}, make("p", { className: "hint" }, "Experts to consider"), group, note);
    return this.add({
      element,
      show: () => {
        const chosen = experts(this.state);
        const shown = [...new Set([...counts, ...chosen])].sort((a, b) => a - b);
        if (group.children.length !== shown.length) {
          group.replaceChildren(
            ...shown.map((count) => {
              const box = make("input", { type: "checkbox", value: String(count) });
              box.addEventListener("change", () => {
                const now = new Set(experts(this.state));
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
        for (const box of group.querySelectorAll("input")) box.checked = chosen.includes(Number(box.value));
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

/** A number as text without exponents below 1e21 and without digits that nobody set. */
export function plain(value: number): string {
  return Math.abs(value) >= 1e7 ? value.toExponential().replace("e+", "e") : String(value);
}

export function build(form: HTMLElement, state: State, catalogue: Catalogue, uploads: HTMLElement): Controls {
  const c = new Controls(state, catalogue);
  const law = () => catalogue.laws.find((l) => l.name === state.get("law"));
  const served = () => gpu(catalogue, state.get("gpu"));
  const trains = () => gpu(catalogue, state.get("train-gpu") || state.get("gpu"));
  const byHours = () => state.has("gpu-hours");
  const hoursFlops = () => {
    const card = trains();
    return card ? format.parse(state.get("gpu-hours")) * 3600 * card.bf16_flops_per_s * format.parse(state.get("mfu")) : NaN;
  };
  const goal = () => (state.has("max-loss") ? "loss" : state.has("max-usd-per-mtok") ? "cost" : "match");
  const gpus = () => catalogue.gpus.map((g) => [g.name, g.name] as [string, string]);
  const set = (name: string, ...children: HTMLElement[]) => make("fieldset", {}, make("legend", {}, name), ...children);
  const further = (key: string, label: string) => c.part(() => law()?.further.includes(key.replace("-", "_")) ?? false, c.text(key, label, "needed by this law"));

  form.replaceChildren(
    set(
      "Training",
      c.radio("Budget in", [["flops", "Budget in FLOPs"], ["hours", "in GPU hours"]], () => (byHours() ? "hours" : "flops"), (value) => {
        const card = trains();
        const rate = card ? 3600 * card.bf16_flops_per_s * format.parse(state.get("mfu")) : NaN;
        if (value === "hours") state.set({ "gpu-hours": plain(Number((format.parse(state.get("budget")) / rate).toPrecision(4))), budget: undefined });
        else state.set({ budget: plain(Number(hoursFlops().toPrecision(4))), "gpu-hours": undefined, "train-gpu": undefined, mfu: undefined });
        c.show();
      }),
      c.part(() => !byHours(), c.slider({ key: "budget", label: "Budget (FLOPs)", low: 1e18, high: 1e26, log: true, steps: 800, text: format.flops, spoken: (v) => `${format.flops(v)} FLOPs` })),
      c.part(
        byHours,
        c.slider({ key: "gpu-hours", label: "GPU hours", low: 10, high: 1e8, log: true, steps: 700, text: format.count, spoken: (v) => `${format.count(v)} GPU hours` }),
        c.select("train-gpu", "Trained on", () => [["", "the serving GPU"], ...gpus()]),
        c.slider({ key: "mfu", label: "MFU (share of peak)", low: 0.01, high: 1, log: false, steps: 99, text: (v) => format.significant(v) }),
      ),
      c.select("law", "Scaling law", () => catalogue.laws.map((l) => [l.name, l.title]), true, () => law()?.source ?? ""),
      further("unique-tokens", "Distinct tokens"),
      further("granularity", "Granularity"),
      further("sparsity", "Sparsity"),
      uploads,
      c.experts([1, 2, 4, 8, 16, 32, 64, 128]),
      make("details", { className: "more" }, make("summary", {}, "More"), make("div", {}, c.text("max-tokens", "Training tokens at most", "no limit"))),
    ),
    set(
      "Goal",
      c.select("match-experts", "Base: optimum of E =", () => [1, 2, 4, 8, 16, 32, 64].map((e) => [String(e), e === 1 ? "1 (dense)" : String(e)])),
      c.radio("Goal", [["match", "cheapest at the base's loss"], ["loss", "cheapest at a loss of at most .."], ["cost", "best within a cost of .."]], goal, (value) => {
        const d = latestDraft;
        state.set({
          "max-loss": value === "loss" ? plain(Number((d?.base_loss ?? 2).toPrecision(4))) : undefined,
          "max-usd-per-mtok": value === "cost" ? plain(Number((d?.base_usd_per_mtok ?? 0.1).toPrecision(3))) : undefined,
        });
        c.show();
      }),
      c.part(() => goal() === "loss", c.slider({ key: "max-loss", label: "Loss at most", low: 1.7, high: 3, log: false, text: (v) => format.significant(v, 5), steps: 400 })),
      c.part(() => state.has("max-usd-per-mtok"), c.slider({ key: "max-usd-per-mtok", label: "US$ per Mtok at most", low: 0.01, high: 10, log: true, text: (v) => format.significant(v) })),
    ),
    set(
      "Serving",
      c.select("gpu", "GPU", gpus),
      c.select("max-gpus", "GPUs at most", () => [1, 2, 4, 8, 16, 32, 64].map((n) => [String(n), String(n)])),
      c.slider({ key: "usd-per-gpu-hour", label: "US$ per GPU hour", low: 0.1, high: 20, log: true, text: (v) => format.significant(v), spoken: (v) => `${format.usd(v)} an hour`, fallback: () => served()?.usd_per_gpu_hour ?? 1 }),
      c.slider({ key: "prompt", label: "Prompt tokens", low: 16, high: 131072, log: true, text: (v) => String(Math.round(v * 1e3) / 1e3), spoken: (v) => `${v} tokens`, whole: true }),
      c.slider({ key: "output", label: "Output tokens", low: 16, high: 16384, log: true, text: (v) => String(Math.round(v * 1e3) / 1e3), spoken: (v) => `${v} tokens`, whole: true }),
      c.slider({ key: "utilization", label: "Utilization", low: 0.05, high: 1, log: false, steps: 95, text: (v) => format.significant(v), spoken: format.percent }),
      make(
        "details",
        { className: "more" },
        make("summary", {}, "More"),
        make(
          "div",
          {},
          c.select("weights", "Weights", () => catalogue.weights.map((w) => [w, w])),
          c.select("kv-cache", "KV cache", () => catalogue.kv_cache.map((w) => [w, w])),
          c.select("latency", "Latency from", () => [["auto", "measured kernels, else roofline"], ["silicon", "measured kernels"], ["roofline", "roofline"]]),
          c.text("max-num-seqs", "Requests at once at most", "none"),
          c.slider({ key: "memory-fraction", label: "Memory fraction", low: 0.3, high: 1, log: false, steps: 70, text: (v) => format.significant(v) }),
          c.text("kv-heads", "KV heads", "one a query head"),
        ),
      ),
    ),
  );
  for (const details of form.querySelectorAll("details.more")) {
    const used = [...details.querySelectorAll<HTMLInputElement>("[name]")].some((field) => state.has(field.name));
    (details as HTMLDetailsElement).open = used;
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  return c;
}

export let latestDraft: Draft | undefined;
export function remember(draft: Draft): void {
  latestDraft = draft;
}
