// The page: state -> draft (curves, at once) -> plan (the answer) -> bands (intervals) -> charts.

import { Refusal, get, latest } from "./api";
import { Chart, download } from "./chart";
import * as breakdown from "./charts/breakdown";
import * as planChart from "./charts/plan";
import * as scaling from "./charts/scaling";
import * as controls from "./controls";
import * as format from "./format";
import { State } from "./state";
import { term } from "./terms";
import * as theme from "./theme";
import { Around, Candidate, Catalogue, Decision, Draft, Failure, Figure, Plan, Scales, Served, Shown } from "./types";
import * as uploads from "./upload";

const REST_MS = 350; // after the last change, before the slower answers are asked for: longer than between two moves of a hand
const LIFE_REST_MS = 700; // where they take seconds
const MOST_PINS = 2;
const NARROW = 640; // pixels, as in app.css
const LETTERS = "AB"; // of the pinned answers
const UNANSWERED = "The server does not answer. Is `moescale web` still running?";
const STATED = ["unused", "build", "baseline", "base"]; // facts that no figure and no headline states

const $ = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
const make = controls.make;

/** A pinned question, with its answer once that is here, or why there is none. */
interface Pin {
  query: string;
  law?: string;
  decision?: Decision;
  failed?: string;
}

let early: { query: string; draft: Promise<Draft> } | undefined;

async function start(): Promise<void> {
  // The first curves are on their way while the controls and the charts are made.
  const first = State.asked(location.search);
  const catalogue = get<Catalogue>("catalogue");
  early = { query: first, draft: get<Draft>("draft", first) };
  early.draft.catch(() => undefined); // said where it is shown
  const state = new State((await catalogue).defaults);
  theme.apply(state);
  const page = new Page(state, await catalogue);
  await page.begin();
}

class Page {
  private charts = {
    plan: new Chart($("loss-cost"), planChart.spec, planChart.MARGINS),
    breakdown: new Chart($("breakdown"), breakdown.spec, breakdown.MARGINS),
    size: new Chart($("size-budget"), scaling.spec("n_params"), scaling.MARGINS),
    tokens: new Chart($("tokens-budget"), scaling.spec("tokens"), scaling.MARGINS),
  };
  private controls: controls.Controls;
  private draft?: Draft;
  private sketched = false; // whether its curves have few points
  private plan?: Plan;
  private around?: Around;
  private pins: Pin[] = [];
  private scales?: Scales;
  private shape?: string; // that the last plan chose
  private asked = { draft: "", scales: "" };
  private pick?: { experts: number; i: number };
  private resting = 0;
  private running?: AbortController;
  private drawn = 0;
  private refresh = latest(() => this.drawDraft());

  constructor(
    private state: State,
    private catalogue: Catalogue,
  ) {
    const upload = uploads.build(catalogue, (law) => this.useLaw(law), (failure) => this.controls.message(failure).join(" "));
    this.controls = controls.build($("question"), state, catalogue, upload);
  }

  async begin(): Promise<void> {
    this.state.onChange(() => {
      this.controls.show();
      void this.loadPins();
      clearTimeout(this.resting); // the slower answers to the old question are not asked for any more
      this.running?.abort();
      this.refresh();
    });
    theme.onPreference(() => void this.redraw());
    $("theme").addEventListener("click", () => {
      theme.toggle(this.state);
      void this.redraw();
    });
    $<HTMLInputElement>("bands").checked = this.state.get("bands") !== "0";
    $("bands").addEventListener("change", () => {
      this.state.set({ bands: $<HTMLInputElement>("bands").checked ? undefined : "0" });
      void this.drawPlanChart();
    });
    $("reset").addEventListener("click", () => this.state.ask(""));
    $("share").addEventListener("click", () => this.copy(location.origin + this.state.link(), $("share")));
    $("copy").addEventListener("click", () => this.copy($("command").textContent ?? "", $("copy")));
    $("pin").addEventListener("click", () => {
      this.pins.push({ query: this.asked.draft, law: this.plan!.law, decision: this.plan!.decision });
      this.state.pin(this.pins.map((pin) => pin.query));
    });
    $("scales-card").addEventListener("toggle", () => void this.drawScales(this.state.query()).catch((error) => this.fail(error)));
    this.charts.plan.resized = latest(() => this.drawPlanChart());
    this.charts.breakdown.resized = latest(() => this.drawBreakdown());
    $("law-file").addEventListener("click", () => void this.saveLaw());
    $("candidates-csv").addEventListener("click", () => this.saveCandidates());
    this.listenToChart();
    this.themeButton();
    void this.loadPins();
    $<HTMLDetailsElement>("choices").open = innerWidth > NARROW;
    // Controls that are taller than the window scroll with the page, and stay once their end is in sight.
    const form = $("question");
    // The answer in one line, where the answer itself is out of sight.
    new IntersectionObserver(([seen]) => ($("line").hidden = seen.isIntersecting)).observe($("headline"));
    const place = () => (form.style.top = `${Math.min(12, innerHeight - form.offsetHeight - 12)}px`);
    new ResizeObserver(place).observe(form);
    addEventListener("resize", place);
    this.refresh();
  }

  // -- answers ------------------------------------------------------------------------------------------------------

  /** The curves of the newest question, drawn as soon as they are here. */
  private async drawDraft(): Promise<void> {
    const query = this.state.query();
    if (query !== this.asked.draft || !this.draft) {
      try {
        const moves = performance.getEntriesByName("slid").length > 0; // then fewer points will do
        this.draft = await (early?.query === query ? early.draft : this.curves(query, undefined, moves ? "sketch" : "draft"));
        this.sketched = moves;
        delete document.body.dataset.refused;
      } catch (error) {
        const first = early?.query === query;
        early = undefined;
        if (first && error instanceof Refusal && (await this.leaveOut(query))) return this.drawDraft();
        if (this.state.query() !== query) return; // another question is asked, whose answer is on its way
        this.asked.draft = query;
        document.body.dataset.refused = "1";
        this.fail(error);
        return;
      }
      early = undefined;
      this.asked.draft = query;
      this.controls.reach(this.draft);
      $("command").textContent = this.draft.command;
      $("answer").classList.add("stale");
      $<HTMLButtonElement>("pin").disabled = true;
    }
    await this.drawPlanChart();
    requestAnimationFrame(() => {
      // The frame that shows it: what benchmarks/page.py reads.
      if (!performance.getEntriesByName("slid").length) return;
      performance.measure("redraw", "slid");
      performance.clearMarks("slid");
    });
    this.drawn += 1;
    document.body.dataset.drawn = String(this.drawn);
    clearTimeout(this.resting);
    if (this.state.query() !== query || (this.plan && document.body.dataset.settled === query)) return;
    this.resting = window.setTimeout(() => void this.rest(query), this.state.has("lifetime-tokens") ? LIFE_REST_MS : REST_MS);
  }

  /** Name each bad part of the address that the page was opened with, and go on without; false where there is none. */
  private async leaveOut(query: string): Promise<boolean> {
    const faults = await get<Record<string, Failure>>("faults", query).catch(() => ({}) as Record<string, Failure>);
    const keys = Object.keys(faults);
    if (!keys.length) return false;
    const lines = keys.map((key) => {
      const { what, nearest } = faults[key];
      return make("li", {}, `${key}=${this.state.get(key)}: ${what}${nearest ? `; perhaps ${nearest}` : ""}`);
    });
    $("dropped").replaceChildren(make("p", {}, "Left out of the address, whose other parts hold:"), make("ul", {}, ...lines));
    $("dropped").hidden = false;
    this.state.set(Object.fromEntries(keys.map((key) => [key, undefined])));
    return true;
  }

  /** A query with the shape that the last plan chose, where none is stated: the curves are drawn in it. */
  private inShape(query: string): string {
    return !this.shape || new URLSearchParams(query).has("shape") ? query : `${query}${query ? "&" : ""}shape=${this.shape}`;
  }

  private async curves(query: string, signal?: AbortSignal, name = "draft"): Promise<Draft> {
    const own = this.inShape(query);
    const draft = await get<Draft>(name, own, signal);
    return own === query ? draft : { ...draft, command: draft.command.replace(` --shape ${this.shape}`, "") };
  }

  /** The slower answers: what lies around the curves, the plan, then the other charts. */
  private async rest(query: string): Promise<void> {
    if (this.state.query() !== query) return;
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    let around = get<Around>("bands", this.inShape(query), signal);
    around.catch(() => undefined); // said where it is drawn
    try {
      const plan = await get<Plan>("plan", query, signal);
      this.controls.mfu = plan.training?.mfu;
      this.shape = plan.shape;
      if (this.draft && (this.sketched || plan.budget_flops !== this.draft.budget_flops || plan.shape !== this.draft.shape)) {
        // What days and dollars buy, and which shape is the better one, is known with the model: the curves are its own.
        const bought = new URLSearchParams(query);
        if (plan.budget_flops !== this.draft.budget_flops) {
          for (const key of ["days", "max-days", "budget-usd"]) bought.delete(key);
          bought.set("budget", String(plan.budget_flops));
        }
        this.draft = { ...(await this.curves(bought.toString(), signal)), command: this.draft.command };
        this.sketched = false;
        this.controls.reach(this.draft);
        around = get<Around>("bands", this.inShape(bought.toString()), signal);
        around.catch(() => undefined);
      }
      await this.show(plan);
      document.body.dataset.answered = query;
      this.around = await around;
      await this.drawPlanChart();
      await this.drawScales(query, signal);
      document.body.dataset.settled = query;
    } catch (error) {
      if (signal.aborted) return;
      this.around = await around.catch(() => undefined);
      if (!signal.aborted) this.fail(error);
    }
  }

  private async show(plan: Plan): Promise<void> {
    this.plan = plan;
    delete document.body.dataset.failed;
    this.controls.fail(undefined);
    $("error").hidden = true;
    $("answer").classList.remove("stale");
    this.showAnswer(plan);
    this.showCandidates(plan);
    await this.drawPlanChart();
    await this.drawScalesNow();
  }

  private fail(error: unknown): void {
    const failure: Failure | undefined = error instanceof Refusal ? error.failure : undefined;
    const place = this.controls.fail(failure);
    this.plan = undefined;
    document.body.dataset.failed = "1";
    $("headline").textContent = failure?.infeasible ? "Infeasible: no model meets these bounds" : place ? "The question has an error" : "No answer";
    $("error").hidden = false;
    if (place) {
      // The message stands beside its control, once.
      const go = make("button", { type: "button" }, `Go to “${place.label}”`);
      go.addEventListener("click", () => place.field.focus());
      $("error").replaceChildren(go);
    } else {
      const lines = failure ? this.controls.message(failure) : [UNANSWERED];
      $("error").replaceChildren(...lines.map((text) => make("p", {}, text)));
    }
    for (const id of ["strip", "facts", "rivals", "caveats", "warnings", "plans"]) $(id).replaceChildren();
    for (const id of ["why", "caveat", "accuracy", "line"]) $(id).textContent = "";
    this.showPins();
    $("answer").classList.remove("stale");
    document.body.dataset.answered = document.body.dataset.settled = this.state.query();
    if (this.draft && failure?.infeasible) void this.drawPlanChart();
  }

  private async useLaw(law: string): Promise<void> {
    const fresh = await get<Catalogue>("catalogue");
    this.catalogue.laws = fresh.laws;
    this.state.set({ law });
  }

  // -- words --------------------------------------------------------------------------------------------------------

  private showAnswer(plan: Plan): void {
    const { benefit, label, figures, facts, tables, why, caveats, accuracy } = plan.decision;
    const [what, rest] = benefit ? [benefit, label.replace("Train ", ": ").replace("experts: ", "experts, ")] : (/^(Train .*? parameters)(.*)$/.exec(label)?.slice(1) ?? [label, ""]);
    const words = (text: string) => this.controls.words(text);
    $("headline").replaceChildren(make("strong", {}, what), rest);
    $("strip").replaceChildren(
      ...figures
        .filter((figure) => figure.key)
        .map((figure) => make("div", {}, make("dt", {}, term(figure.name)), make("dd", {}, figure.text, ...figure.notes.map(noted)))),
    );
    $("caveat").textContent = caveats.length ? words(caveats[0]) : "";
    $("facts").replaceChildren(...facts.filter(([name]) => STATED.includes(name)).map(([name, text]) => make("div", {}, make("dt", {}, term(name)), make("dd", {}, words(text)))));
    $("rivals").replaceChildren(...tables.map(shownTable));
    $("why").textContent = words(why);
    $("caveats").replaceChildren(...caveats.slice(1).map((text) => make("li", {}, words(text))));
    $("warnings").replaceChildren(...plan.warnings.map((text) => make("p", {}, `Note: ${words(text)}.`)));
    $("accuracy").textContent = `Accuracy of serving cost: ${accuracy}.`;
    $("command").textContent = plan.command;
    const serve = figures.find((figure) => figure.key);
    $("line").textContent = [benefit.replace(/ at (the same|a) loss.*$/, ""), label.replace(/^Train (a )?/, ""), serve?.text].filter(Boolean).join(" · ");
    $("live").textContent = benefit ? `${benefit}. ${label}` : label;
    this.showPins();
  }

  /** Ask for the answers to the pinned questions of the address that are not here yet. */
  private async loadPins(): Promise<void> {
    const wanted = this.state.pins().slice(0, MOST_PINS);
    if (wanted.join("|") === this.pins.map((pin) => pin.query).join("|") && wanted.length === this.pins.length) return this.showPins();
    this.pins = wanted.map((query) => this.pins.find((pin) => pin.query === query) ?? { query });
    this.showPins();
    for (const pin of this.pins) {
      if (pin.decision || pin.failed) continue;
      try {
        const { law, decision } = await get<Plan>("plan", pin.query);
        Object.assign(pin, { law, decision });
      } catch (error) {
        pin.failed = error instanceof Refusal ? this.controls.message(error.failure).join(" ") : "no answer";
      }
      this.showPins();
      await this.drawPlanChart();
    }
  }

  /** The present answer beside the pinned ones, figure by figure. */
  private showPins(): void {
    const now = this.plan?.decision;
    $<HTMLButtonElement>("pin").disabled = !now || this.pins.length >= MOST_PINS || $("answer").classList.contains("stale") || this.pins.some((pin) => pin.query === this.asked.draft);
    const [place, focused] = [$("pins"), document.activeElement?.getAttribute("aria-label")];
    if (!this.pins.length) return place.replaceChildren();
    const of = (decision: Decision | undefined, name: string) => decision?.figures.find((figure) => figure.name === name);
    const names = [...new Set([now, ...this.pins.map((pin) => pin.decision)].flatMap((d) => d?.figures.map((figure) => figure.name) ?? []))];
    const columns = ["", "this answer", ...this.pins.map((_, i) => `pinned ${LETTERS[i]}`)];
    const rows: (string | Node)[][] = names.map((name) => [
      name,
      of(now, name)?.text ?? "–",
      ...this.pins.map((pin) => {
        const [own, other] = [of(now, name), of(pin.decision, name)];
        if (!other) return pin.failed ? "–" : pin.decision ? "–" : "..";
        return own && own.text !== other.text ? make("span", {}, other.text, make("small", {}, ` (${change(own, other)})`)) : other.text;
      }),
    ]);
    rows.unshift(["question", this.controls.asked(this.asked.draft), ...this.pins.map((pin) => pin.failed ?? this.controls.asked(pin.query))]);
    rows.push([
      "",
      "",
      ...this.pins.map((pin, i) => {
        const open = make("button", { type: "button", "aria-label": `Open pinned ${LETTERS[i]}` }, "Open");
        const drop = make("button", { type: "button", "aria-label": `Unpin ${LETTERS[i]}` }, "Unpin");
        open.addEventListener("click", () => this.state.ask(pin.query));
        drop.addEventListener("click", () => {
          this.state.pin(this.state.pins().filter((query) => query !== pin.query));
          $("pin").focus();
        });
        return make("span", { className: "save" }, open, drop);
      }),
    ]);
    const caption = "This answer beside the pinned ones; in brackets, this answer over the pinned one (pts: percentage points)";
    place.replaceChildren(grid(caption, columns, rows, { className: "pinned" }));
    if (focused) place.querySelector<HTMLElement>(`[aria-label="${focused}"]`)?.focus();
  }

  private showCandidates(plan: Plan): void {
    const at = (list: Candidate[], e: number) => list.find((c) => c.experts === e);
    const number = (value: number | undefined, show: (v: number) => string) => (value === undefined ? "–" : show(value));
    const chosen = plan.loss_optimal.findIndex((c) => c.experts === plan.decision.model.experts);
    const optima = plan.loss_optimal.map((c) => [
      format.expertsName(c.experts),
      number(c.n_params_active, format.count),
      number(c.n_params_total, format.count),
      number(c.tokens, format.count),
      number(c.loss, (v) => v.toFixed(4)),
      number(c.usd_per_mtok, format.usd),
    ]);
    const base = (plan.base_as_built ?? plan.base)?.usd_per_mtok;
    const matching = plan.loss_optimal.map((c) => {
      const [small, best, built] = [at(plan.bounded_loss.plans, c.experts), at(plan.bounded_cost.plans, c.experts), at(plan.built ?? [], c.experts)];
      const spread = small?.intervals?.cost_ratio;
      const usd = built?.usd_per_mtok;
      const share = number(usd && base ? usd / base : undefined, format.percent) + (usd && spread ? ` (${format.percent(spread[0])} to ${format.percent(spread[1])})` : "");
      return [
        format.expertsName(c.experts),
        number(built?.n_params_active, format.count),
        number(built?.tokens, format.count),
        number(usd, format.usd),
        small?.infeasible ? `infeasible: ${small.infeasible}` : share,
        number(best?.loss, (v) => v.toFixed(4)),
      ];
    });
    const sure = plan.decision.model.probability_at_least_base === undefined ? "Cheapest at the baseline's loss" : "Cheapest that matches the baseline's loss";
    const cost = plan.loss_optimal.some((c) => at(plan.bounded_loss.plans, c.experts)?.intervals?.cost_ratio) ? "of the baseline's (90% of draws)" : "of the baseline's";
    $("plans").replaceChildren(
      grid("Loss-optimal, before rounding to whole layers", ["experts", "active", "total", "tokens", "loss", "$/Mtok"], optima),
      grid(`${sure}, as built; last column: the lowest loss at the baseline's $/Mtok`, ["experts", "active", "tokens", "$/Mtok", cost, "lowest loss"], matching, { chosen }),
    );
  }

  private saveCandidates(): void {
    if (!this.plan) return;
    const names = ["question", "experts", "n_params", "n_params_active", "n_params_total", "tokens", "loss", "usd_per_mtok", "gpus", "batch", "size_ratio", "cost_ratio"];
    const parts: [string, Candidate[]][] = [["loss_optimal", this.plan.loss_optimal], ["bounded_loss", this.plan.bounded_loss.plans], ["bounded_cost", this.plan.bounded_cost.plans]];
    const lines = parts.flatMap(([question, list]) => list.map((c) => [question, ...names.slice(1).map((n) => (c as unknown as Record<string, unknown>)[n] ?? "")].join(",")));
    download("plan.csv", new Blob([[names.join(","), ...lines].join("\n") + "\n"], { type: "text/csv" }));
  }

  // -- charts -------------------------------------------------------------------------------------------------------

  private async drawPlanChart(): Promise<void> {
    if (!this.draft) return;
    const paper = theme.ink(this.state);
    const stale = $("answer").classList.contains("stale");
    const shown = { draft: this.draft, plan: stale ? undefined : this.plan, last: this.plan, around: this.around, pinned: stale ? [] : this.ringed(), bands: $<HTMLInputElement>("bands").checked };
    const { data, signals, numbered } = planChart.view(shown, paper, this.charts.plan.width());
    $("numbered").textContent = numbered.join("; ");
    this.charts.plan.table = planChart.table(this.draft, this.around?.models ?? []);
    const model = this.picked();
    if (model && this.pick) {
      data.pick = [{ usd: model.curve.usd_per_mtok[model.i], loss: model.curve.loss[model.i] }];
      data.pointed = planChart.pointed(this.draft, model.curve.experts, paper);
    }
    await this.charts.plan.draw(paper, data, signals);
    await this.drawBreakdown();
  }

  /** The pinned models that lie on the chart: losses of other laws are in other units. */
  private ringed(): planChart.Pinned[] {
    return this.pins.flatMap((pin, i) => {
      const { usd_per_mtok: usd, loss } = pin.decision?.model ?? {};
      const same = pin.law === this.plan?.law && pin.query !== this.asked.draft;
      return same && usd !== undefined && loss !== undefined ? [{ letter: LETTERS[i], usd, loss }] : [];
    });
  }

  private async drawScales(query: string, signal?: AbortSignal): Promise<void> {
    if (!$<HTMLDetailsElement>("scales-card").open) return;
    // The chart depends on neither the budget nor on how the model is served.
    const key = ["law", "shape", "experts", "match", "match-experts", "max-tokens", "unique-tokens", "granularity", "sparsity"].map((k) => this.state.get(k)).join("|") + this.shape;
    if (key !== this.asked.scales) {
      this.scales = await get<Scales>("scales", this.inShape(query), signal);
      this.asked.scales = key;
    }
    await this.drawScalesNow();
  }

  private async drawScalesNow(): Promise<void> {
    if (!this.scales || !$<HTMLDetailsElement>("scales-card").open) return;
    const paper = theme.ink(this.state);
    for (const [field, chart] of [["n_params", this.charts.size], ["tokens", this.charts.tokens]] as const) {
      chart.table = scaling.table(this.scales, field);
      const { data, signals } = scaling.data(this.scales, this.plan, field, paper);
      await chart.draw(paper, data, signals);
    }
  }

  /** Every chart again, in the colours of the theme. */
  private async redraw(): Promise<void> {
    theme.apply(this.state);
    this.themeButton();
    await this.drawPlanChart();
    await this.drawScalesNow();
  }

  /** The button says what it does. */
  private themeButton(): void {
    $("theme").textContent = theme.isDark(this.state) ? "Light theme" : "Dark theme";
  }

  // -- the model under the pointer ----------------------------------------------------------------------------------

  /** The curve and place of the picked model; without a pick, nearest the recommended one or else the baseline. */
  private picked(): { curve: Draft["curves"][number]; i: number } | undefined {
    const draft = this.draft;
    if (!draft) return undefined;
    if (this.pick) {
      const curve = draft.curves.find((c) => c.experts === this.pick!.experts);
      if (curve && curve.usd_per_mtok[this.pick.i] !== null && curve.usd_per_mtok[this.pick.i] !== undefined) return { curve, i: this.pick.i };
    }
    const r = this.plan?.decision.model;
    const curve = draft.curves.find((c) => c.experts === (r?.experts ?? draft.base_experts));
    // A baseline of another count has no curve: then the largest count that the law was fitted on.
    if (!curve) return { curve: draft.curves.findLast((c) => !c.beyond_law) ?? draft.curves[0], i: draft.optimum };
    if (!r?.n_params) return { curve, i: draft.optimum };
    const distance = curve.n_params.map((n) => Math.abs(Math.log((n ?? 1) / r.n_params!)));
    return { curve, i: distance.indexOf(Math.min(...distance)) };
  }

  /** What the picked model costs to serve; without a pick, the recommended one as it is built. */
  private async drawBreakdown(): Promise<void> {
    const draft = this.draft;
    const picked = this.picked();
    if (!picked || !draft) return;
    const { curve, i } = picked;
    const paper = theme.ink(this.state);
    const stale = $("answer").classList.contains("stale");
    const decision = this.pick || stale || this.plan?.decision.serving.usd_per_mtok === null ? undefined : this.plan?.decision;
    const point = Object.fromEntries(Object.entries(curve).map(([name, values]) => [name, Array.isArray(values) ? values[i] : values])) as unknown as Served & Candidate;
    const model: Candidate = decision?.model ?? point;
    const serving: Served = decision?.serving ?? point;
    const usd = serving.usd_per_mtok;
    const own = (model.n_params ?? 0) / (curve.n_params[draft.optimum] ?? NaN);
    const sizes = model.experts === 1 ? `${format.count(model.n_params_active ?? 0)} parameters` : `${format.count(model.n_params_active ?? 0)} active of ${format.count(model.n_params_total ?? 0)} parameters`;
    $("picked").textContent =
      `${decision ? "The recommended model: " : this.pick || this.plan ? "" : "No model is recommended. Shown: "}${curve.label}, ${sizes}, ${format.count(model.tokens ?? 0)} tokens; N is ${format.percent(own)} of the loss-optimal N; loss ${(model.loss ?? 0).toFixed(4)}` +
      (usd === null ? `; infeasible: ${draft.reasons[serving.infeasible ?? 0]}` : `; ${format.usd(usd)} per million output tokens`);
    const shown = (name: string, text: string, note = "") => make("div", {}, make("dt", {}, term(name)), make("dd", {}, text, ...(note ? [make("small", {}, note)] : [])));
    $("serving").replaceChildren(
      ...(usd === null
        ? []
        : [
            shown("GPUs", String(serving.gpus)),
            shown("batch", Math.round(serving.batch ?? 0).toLocaleString("en-US"), `limited by ${draft.limits[serving.limited_by ?? 0]}`),
            shown("TTFT", format.seconds(serving.ttft_s ?? 0), "time to first token"),
            shown("TPOT", format.seconds(serving.tpot_s ?? 0), "time per output token"),
            shown("output tokens/s", format.count(serving.throughput_tok_s ?? 0)),
            shown("KV cache", `${format.significant((serving.kv_bytes_per_token ?? 0) / 1e3)} kB`, "per token"),
            shown("latency", draft.latency_source === "silicon" ? "measured kernels" : draft.latency_source),
          ]),
    );
    const parts = breakdown.parts(draft, serving);
    this.charts.breakdown.table = breakdown.table(parts);
    await this.charts.breakdown.draw(paper, breakdown.data(parts, paper, this.charts.breakdown.width()));
  }

  private listenToChart(): void {
    const place = $("loss-cost").querySelector<HTMLElement>(".plot")!;
    const show = latest(async () => {
      const model = this.picked();
      const data = this.pick && model ? [{ usd: model.curve.usd_per_mtok[model.i], loss: model.curve.loss[model.i] }] : [];
      const pointed = this.pick && model ? planChart.pointed(this.draft!, model.curve.experts, theme.ink(this.state)) : [];
      await this.charts.plan.update({ pick: data, pointed });
      await this.drawBreakdown();
    });
    const tip = $("tip");
    place.addEventListener("pointermove", (event) => {
      const model = this.known(event, place);
      tip.hidden = !model;
      if (model) {
        tip.textContent = planChart.about(model, this.draft!.budget_flops);
        tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - 270))}px`;
        tip.style.top = `${event.clientY + 14}px`;
      }
      const found = this.nearest(event, place);
      if (!found || (found.experts === this.pick?.experts && found.i === this.pick.i)) return;
      this.pick = found;
      show();
    });
    place.addEventListener("pointerleave", () => {
      tip.hidden = true;
      if (document.activeElement === place) return;
      this.pick = undefined;
      show();
    });
    place.addEventListener("keydown", (event) => {
      const now = this.picked();
      const draft = this.draft;
      if (!now || !draft || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Escape"].includes(event.key)) return;
      event.preventDefault();
      const row = draft.curves.indexOf(now.curve);
      const other = { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
      const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key] ?? 0;
      const curve = draft.curves[Math.min(Math.max(row + other, 0), draft.curves.length - 1)];
      const i = Math.min(Math.max(now.i + along, 0), draft.optimum);
      this.pick = event.key === "Escape" ? undefined : { experts: curve.experts, i };
      show();
      $("live").textContent = "";
      setTimeout(() => ($("live").textContent = $("picked").textContent), 60);
    });
  }

  private nearest(event: PointerEvent, place: HTMLElement): { experts: number; i: number } | undefined {
    const found = this.draft && this.closest(planChart.points(this.draft), event, place, 40);
    return found && { experts: found.curve.experts, i: found.i };
  }

  private known(event: PointerEvent, place: HTMLElement): Around["models"][number] | undefined {
    const models = (this.around?.models ?? []).map((model) => ({ model, usd: model.usd_per_mtok, loss: model.loss }));
    return this.closest(models, event, place, 9)?.model;
  }

  /** The point of the chart that is closest to the pointer, within so many pixels. */
  private closest<P extends { usd: number; loss: number }>(points: P[], event: PointerEvent, place: HTMLElement, reach: number): P | undefined {
    const view = this.charts.plan.view;
    const canvas = place.querySelector("canvas");
    if (!view || !canvas) return undefined;
    const box = canvas.getBoundingClientRect();
    const [left, top] = view.origin();
    const [x, y] = [event.clientX - box.left - left, event.clientY - box.top - top];
    const [scaleX, scaleY] = [view.scale("x"), view.scale("y")];
    let best: P | undefined;
    let least = reach ** 2;
    for (const point of points) {
      const distance = (scaleX(point.usd) - x) ** 2 + (scaleY(point.loss) - y) ** 2;
      if (distance < least) [least, best] = [distance, point];
    }
    return best;
  }

  // -- small things -------------------------------------------------------------------------------------------------

  private async copy(text: string, button: HTMLElement): Promise<void> {
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
      if (button.id === "copy") getSelection()?.selectAllChildren($("command"));
    }
    setTimeout(() => (button.textContent = label), 1500);
  }

  private async saveLaw(): Promise<void> {
    const response = await fetch(`/api/law?${new URLSearchParams({ law: this.state.get("law") })}`);
    const name = this.catalogue.laws.find((law) => law.name === this.state.get("law"))?.title.replace(/ \(uploaded\)$/, "") ?? "law";
    download(`${name}.toml`, await response.blob());
  }
}

/** This figure over the pinned one: shares in points, others as a multiple, losses as a difference. */
function change(now: Figure, pinned: Figure): string {
  const sign = now.value >= pinned.value ? "+" : "−";
  if (now.text.endsWith("%")) return `${sign}${Math.round(100 * Math.abs(now.value - pinned.value))} pts`;
  if (now.name === "loss") return `${sign}${Math.abs(now.value - pinned.value).toFixed(4)}`;
  return `×${format.significant(now.value / pinned.value)}`;
}

/** What belongs to a figure; what limits the trust in it is as dark as the figure. */
function noted(note: string): HTMLElement {
  return make("small", { className: note.startsWith("(trust") ? "doubt" : "" }, note);
}

/** A table in the command line's words; ">" marks the recommended row. */
function shownTable(table: Shown): HTMLElement {
  const rows = table.rows.map((row) => row.map((value) => (value.startsWith("> ") ? value.slice(2) : value.trim())));
  const chosen = table.rows.findIndex((row) => row[0].startsWith("> "));
  return grid(table.title, table.columns.map((column) => column.head), rows, { chosen, left: table.columns.map((column) => column.text) });
}

interface Grid {
  chosen?: number; // the recommended row
  left?: boolean[]; // columns of text
  className?: string;
}

/** A table whose first cells name its rows. On a narrow screen its rows become blocks, so that roles and names are stated. */
function grid(caption: string, columns: string[], rows: (string | Node)[][], options: Grid = {}): HTMLElement {
  const { chosen = -1, left = [], className = "" } = options;
  const align = (i: number) => (left[i] ? "left" : "");
  const head = make("tr", { role: "row" }, ...columns.map((name, i) => make(name ? "th" : "td", { ...(name ? { scope: "col", role: "columnheader" } : { role: "cell" }), className: align(i) }, name)));
  const body = rows.map((row, k) => {
    const cells = row.map((value, i) => {
      if (!i && value) return make("th", { scope: "row", role: "rowheader" }, value, ...(k === chosen && !String(value).includes("recommended") ? [make("em", {}, "recommended")] : []));
      return make("td", { role: "cell", className: align(i), "data-label": columns[i] }, value);
    });
    return make("tr", { role: "row", className: k === chosen ? "chosen" : "" }, ...cells);
  });
  const thead = make("thead", { role: "rowgroup" }, head);
  return make("table", { role: "table", className: className || "blocks" }, ...(caption ? [make("caption", {}, caption)] : []), thead, make("tbody", { role: "rowgroup" }, ...body));
}

void start().catch((error: Error) => {
  document.body.dataset.failed = document.body.dataset.refused = "1";
  $("headline").textContent = "No answer";
  $("question").replaceChildren();
  $("error").replaceChildren(make("p", {}, error instanceof Refusal ? error.message : UNANSWERED));
  $("error").hidden = false;
});
