// The page: state -> draft (curves, at once) -> plan (the answer) -> bands (intervals) -> charts.

import { Refusal, get, latest } from "./api";
import { Chart, download } from "./chart";
import * as breakdown from "./charts/breakdown";
import * as evidence from "./charts/evidence";
import * as planChart from "./charts/plan";
import * as scaling from "./charts/scaling";
import * as controls from "./controls";
import * as format from "./format";
import { State } from "./state";
import * as theme from "./theme";
import { Around, Candidate, Catalogue, Decision, Draft, Evidence, Failure, Figure, Plan, Scales, Told } from "./types";
import * as uploads from "./upload";

const REST_MS = 180; // after the last change, before the slower answers are asked for
const LIFE_REST_MS = 700; // where they take seconds
const MOST_PINS = 2;

const $ = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
const make = controls.make;

let early: { query: string; draft: Promise<Draft> } | undefined;

async function start(): Promise<void> {
  // The first curves are on their way while the controls and the charts are made.
  const first = State.asked(location.search);
  const catalogue = get<Catalogue>("catalogue");
  early = { query: first, draft: get<Draft>("draft", first) };
  early.draft.catch(() => undefined); // told where it is shown
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
    fit: new Chart($("fit"), evidence.spec, evidence.MARGINS),
    residuals: new Chart($("residuals"), evidence.residualSpec, evidence.MARGINS),
  };
  private controls: controls.Controls;
  private draft?: Draft;
  private plan?: Plan;
  private around?: Around;
  private pins: { query: string; decision: Decision }[] = [];
  private scales?: Scales;
  private evidence?: Evidence;
  private asked = { draft: "", scales: "", evidence: "" };
  private pick?: { experts: number; i: number };
  private resting = 0;
  private running?: AbortController;
  private drawn = 0;
  private refresh = latest(() => this.drawDraft());

  constructor(
    private state: State,
    private catalogue: Catalogue,
  ) {
    const upload = uploads.build(catalogue, (law) => this.useLaw(law));
    this.controls = controls.build($("question"), state, catalogue, upload);
  }

  async begin(): Promise<void> {
    this.state.onChange(() => {
      this.controls.show();
      clearTimeout(this.resting); // the slower answers to the old question are not asked for any more
      this.running?.abort();
      this.refresh();
    });
    theme.onPreference(() => void this.redraw());
    $("theme").addEventListener("click", () => {
      this.state.set({ theme: theme.isDark(this.state) ? "light" : "dark" });
      void this.redraw();
    });
    $<HTMLInputElement>("bands").checked = this.state.get("bands") !== "0";
    $("bands").addEventListener("change", () => {
      this.state.set({ bands: $<HTMLInputElement>("bands").checked ? undefined : "0" });
      void this.drawPlanChart();
    });
    $("reset").addEventListener("click", () => (location.href = location.pathname));
    $("share").addEventListener("click", () => this.copy(location.origin + this.state.link(), $("share")));
    $("copy").addEventListener("click", () => this.copy($("command").textContent ?? "", $("copy")));
    $("fit-size").addEventListener("change", () => {
      this.state.set({ size: $<HTMLSelectElement>("fit-size").value });
      void this.drawEvidenceNow();
    });
    $("pin").addEventListener("click", () => {
      this.pins.push({ query: this.asked.draft, decision: this.plan!.decision });
      this.showPins();
    });
    $("law-card").addEventListener("toggle", () => void this.drawEvidence(this.state.query()).catch((error) => this.fail(error)));
    $("law-file").addEventListener("click", () => void this.saveLaw());
    $("candidates-csv").addEventListener("click", () => this.saveCandidates());
    this.listenToChart();
    this.themeButton();
    // Controls that are taller than the window scroll with the page, and stay once their end is in sight.
    const form = $("question");
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
        this.draft = await (early?.query === query ? early.draft : get<Draft>("draft", query));
      delete document.body.dataset.refused;
      } catch (error) {
        early = undefined;
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
    if (this.state.query() !== query) return;
    this.resting = window.setTimeout(() => void this.rest(query), this.state.has("lifetime-tokens") ? LIFE_REST_MS : REST_MS);
  }

  /** The slower answers: what lies around the curves, the plan, then the other charts. */
  private async rest(query: string): Promise<void> {
    if (this.state.query() !== query) return;
    this.running?.abort();
    const { signal } = (this.running = new AbortController());
    const around = get<Around>("bands", query, signal);
    around.catch(() => undefined); // told where it is drawn
    try {
      await this.show(await get<Plan>("plan", query, signal));
      document.body.dataset.answered = query;
      this.around = await around;
      await this.drawPlanChart();
      await this.drawScales(query, signal);
      await this.drawEvidence(query, signal);
      document.body.dataset.settled = query;
    } catch (error) {
      if (signal.aborted) return;
      this.around = await around.catch(() => undefined);
      this.fail(error);
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
    const message = failure?.message ?? "The server does not answer. Is `moescale web` still running?";
    const place = this.controls.fail(failure);
    this.plan = undefined;
    document.body.dataset.failed = "1";
    $("error").textContent = place ? "" : message;
    $("error").hidden = Boolean(place);
    $("headline").textContent = failure?.infeasible ? "No model answers this question." : `This question cannot be asked${place ? `: see “${place}”` : ""}.`;
    for (const id of ["strip", "facts", "rivals", "caveats", "warnings", "plans"]) $(id).replaceChildren();
    for (const id of ["why", "caveat"]) $(id).textContent = "";
    $("more").hidden = $("candidates").hidden = true;
    $<HTMLButtonElement>("pin").disabled = true;
    $("answer").classList.remove("stale");
    document.body.dataset.answered = document.body.dataset.settled = this.state.query();
    if (this.draft && failure?.infeasible) void this.drawPlanChart();
  }

  private async useLaw(law: string): Promise<void> {
    const fresh = await get<Catalogue>("catalogue");
    this.catalogue.laws = fresh.laws;
    this.asked.evidence = "";
    $<HTMLDetailsElement>("law-card").open = true;
    this.state.set({ law });
  }

  // -- words --------------------------------------------------------------------------------------------------------

  private showAnswer(plan: Plan): void {
    const { label, facts, tables, why, caveats } = plan.decision;
    const [what, rest] = /^(Train .*?)( on .*)$/.exec(label)?.slice(1) ?? [label, ""];
    $("headline").replaceChildren(make("strong", {}, what), rest);
    $("caveat").textContent = caveats[0] ?? "";
    $("facts").replaceChildren(...facts.filter(([name]) => name !== "regret").map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text))));
    $("rivals").replaceChildren(...tables.map(told));
    $("why").textContent = why;
    $("caveats").replaceChildren(...caveats.slice(1).map((text) => make("li", {}, text)));
    $("warnings").replaceChildren(...plan.warnings.map((text) => make("p", {}, `Note: ${text}.`)));
    $("more").hidden = $("candidates").hidden = false;
    $("command").textContent = plan.command;
    $("live").textContent = label;
    this.showPins();
  }

  /** The figures of the answer, each with those of the pinned ones below it, and what is pinned. */
  private showPins(): void {
    const now = this.plan?.decision;
    const line = (figure: Figure, letter: string, other?: Figure) => make("small", { className: "pinned" }, `${letter} ${other ? `${other.text}, ${change(figure, other)}` : "none"}`);
    $("strip").replaceChildren(
      ...(now?.strip ?? []).map((figure) =>
        make(
          "div",
          {},
          make("dt", {}, figure.name),
          make("dd", {}, figure.text, make("small", {}, figure.note), ...this.pins.map((pin, i) => line(figure, "AB"[i], pin.decision.strip.find((f) => f.name === figure.name)))),
        ),
      ),
    );
    $("pins").replaceChildren(
      ...this.pins.map((pin, i) => {
        const open = make("button", { type: "button" }, "Open");
        const drop = make("button", { type: "button", "aria-label": `Unpin ${"AB"[i]}` }, "Unpin");
        open.addEventListener("click", () => this.state.ask(pin.query));
        drop.addEventListener("click", () => {
          this.pins.splice(i, 1);
          this.showPins();
        });
        return make("li", {}, make("span", {}, make("b", {}, "AB"[i]), ` ${pin.decision.label}`), open, drop);
      }),
      ...(this.pins.length ? [make("li", { className: "hint" }, "Multiples (×) and points (pts): this answer over the pinned one.")] : []),
    );
    $<HTMLButtonElement>("pin").disabled = !now || this.pins.length >= MOST_PINS || $("answer").classList.contains("stale");
  }

  private candidateRows(plan: Plan): { columns: string[]; rows: (string | number)[][]; chosen: number } {
    const at = (list: Candidate[], e: number) => list.find((c) => c.experts === e);
    const number = (value: number | undefined, show: (v: number) => string) => (value === undefined ? "–" : show(value));
    const columns = ["experts", "optimal size", "its loss", "its cost", "size at base loss", "its tokens", "its cost", "of base cost", "loss at base cost"];
    const rows = plan.loss_optimal.map((own) => {
      const [small, best] = [at(plan.bounded_loss.plans, own.experts), at(plan.bounded_cost.plans, own.experts)];
      const spread = small?.intervals?.cost_ratio;
      return [
        format.expertsName(own.experts),
        number(own.n_params, format.count),
        number(own.loss, (v) => v.toFixed(4)),
        number(own.usd_per_mtok, format.usd),
        small?.infeasible ?? number(small?.n_params, format.count),
        number(small?.tokens, format.count),
        number(small?.usd_per_mtok, format.usd),
        number(small?.cost_ratio, format.percent) + (spread ? ` (${format.percent(spread[0])} to ${format.percent(spread[1])})` : ""),
        number(best?.loss, (v) => v.toFixed(4)),
      ];
    });
    return { columns, rows, chosen: plan.loss_optimal.findIndex((c) => c.experts === plan.decision.model.experts) };
  }

  private showCandidates(plan: Plan): void {
    const { columns, rows, chosen } = this.candidateRows(plan);
    const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
    const body = rows.map((row, i) => {
      const line = make("tr", { className: i === chosen ? "chosen" : "" });
      row.forEach((value, k) => line.append(k ? make("td", {}, String(value)) : make("th", { scope: "row" }, i === chosen ? `${value}, recommended` : String(value))));
      return line;
    });
    $("plans").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
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
    const current = this.plan && this.plan.budget_flops === this.draft.budget_flops ? this.plan : undefined;
    const { data, signals } = planChart.view(this.draft, current, this.around, paper, $<HTMLInputElement>("bands").checked, this.charts.plan.width());
    this.charts.plan.table = planChart.table(this.draft, this.around?.models ?? []);
    const model = this.picked();
    if (model && this.pick) data.pick = [{ usd: model.curve.usd_per_mtok[model.i], loss: model.curve.loss[model.i] }];
    await this.charts.plan.draw(paper, data, signals);
    await this.drawBreakdown();
  }

  private async drawScales(query: string, signal: AbortSignal): Promise<void> {
    // The chart depends on neither the budget nor on how the model is served.
    const key = ["law", "shape", "experts", "match", "match-experts", "max-tokens", "unique-tokens", "granularity", "sparsity"].map((k) => this.state.get(k)).join("|");
    if (key !== this.asked.scales) {
      this.scales = await get<Scales>("scales", query, signal);
      this.asked.scales = key;
    }
    await this.drawScalesNow();
  }

  private async drawScalesNow(): Promise<void> {
    if (!this.scales) return;
    const paper = theme.ink(this.state);
    for (const [field, chart] of [["n_params", this.charts.size], ["tokens", this.charts.tokens]] as const) {
      chart.table = scaling.table(this.scales, field);
      const { data, signals } = scaling.data(this.scales, this.plan, field, paper);
      await chart.draw(paper, data, signals);
    }
  }

  private async drawEvidence(query: string, signal?: AbortSignal): Promise<void> {
    if (!$<HTMLDetailsElement>("law-card").open) return;
    const key = ["law", "shape", "experts", "unique-tokens", "granularity", "sparsity"].map((k) => this.state.get(k)).join("|");
    if (key !== this.asked.evidence) {
      this.evidence = await get<Evidence>("evidence", query, signal);
      this.asked.evidence = key;
    }
    await this.drawEvidenceNow();
  }

  private async drawEvidenceNow(): Promise<void> {
    const found = this.evidence;
    if (!found) return;
    const paper = theme.ink(this.state);
    const { law, fit } = found;
    const about = fit
      ? `${fit.chosen ? "An average by hold-outs (lines), led by " : ""}${fit.law} fitted to ${fit.n_runs} runs: RMSLE ${format.significant(1e3 * fit.rmsle)}×10⁻³; ${fit.starts_at_optimum} of the searches ended at this optimum. Points: runs, lines: the law.`
      : `${law.title}: ${law.source}, ${law.date}. Lines: the law over the range it was fitted on; its runs are not part of this program.`;
    $("law-note").textContent = found.missing ?? `${about} ${law.equation}`;
    const ranges = fit?.intervals ?? {};
    $("parameters").replaceChildren(
      ...Object.entries(fit?.parameters ?? law.parameters).map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, format.significant(value, 4), make("small", {}, ranges[name] ? ` ${format.significant(ranges[name][0])} to ${format.significant(ranges[name][1])}` : ""))),
      ),
    );
    this.charts.fit.table = evidence.table(found);
    const all = evidence.sizes(found);
    const wanted = format.parse(this.state.get("size"));
    const size = all.includes(wanted) ? wanted : all[all.length >> 1];
    $("fit-size").replaceChildren(...all.map((n) => make("option", { value: String(n), selected: n === size }, `N = ${format.count(n)}`)));
    const lines = evidence.data(found, size, paper);
    await this.charts.fit.draw(paper, lines.data, lines.signals);
    $("residuals").hidden = !found.runs;
    if (found.runs) {
      this.charts.residuals.table = evidence.table(found);
      const errors = evidence.residualData(found, paper);
      await this.charts.residuals.draw(paper, errors.data, errors.signals);
    }
  }

  /** Every chart again, in the colours of the theme. */
  private async redraw(): Promise<void> {
    theme.apply(this.state);
    this.themeButton();
    await this.drawPlanChart();
    await this.drawScalesNow();
    await this.drawEvidenceNow();
  }

  private themeButton(): void {
    $("theme").setAttribute("aria-pressed", String(theme.isDark(this.state)));
  }

  // -- the model under the pointer ----------------------------------------------------------------------------------

  /** The curve and place of the picked model; without a pick, of the recommended one or else of the base. */
  private picked(): { curve: Draft["curves"][number]; i: number } | undefined {
    const draft = this.draft;
    if (!draft) return undefined;
    if (this.pick) {
      const curve = draft.curves.find((c) => c.experts === this.pick!.experts);
      if (curve && curve.usd_per_mtok[this.pick.i] !== null && curve.usd_per_mtok[this.pick.i] !== undefined) return { curve, i: this.pick.i };
    }
    const r = this.plan?.decision.model;
    const curve = draft.curves.find((c) => c.experts === (r?.experts ?? draft.base_experts));
    // A base of another count has no curve: then the largest model that the law may speak of.
    if (!curve) return { curve: draft.curves.findLast((c) => !c.beyond_law) ?? draft.curves[0], i: draft.optimum };
    if (!r?.n_params) return { curve, i: draft.optimum };
    const distance = curve.n_params.map((n) => Math.abs(Math.log((n ?? 1) / r.n_params!)));
    return { curve, i: distance.indexOf(Math.min(...distance)) };
  }

  private async drawBreakdown(): Promise<void> {
    const model = this.picked();
    if (!model || !this.draft) return;
    const { curve, i } = model;
    const paper = theme.ink(this.state);
    const at = (name: keyof typeof curve) => (curve[name] as (number | null)[])[i];
    const own = (at("n_params") ?? 0) / (curve.n_params[this.draft.optimum] ?? NaN);
    const usd = at("usd_per_mtok");
    const lead = this.pick ? "" : this.plan ? "Nearest the recommendation: " : "";
    $("picked").textContent =
      `${lead}${curve.label} at ${format.count(at("n_params") ?? 0)} (${format.percent(own)} of its optimum's size), ${format.count(at("tokens") ?? 0)} tokens, loss ${(at("loss") ?? 0).toFixed(4)}` +
      (usd === null ? `: ${this.draft.reasons[at("infeasible") ?? 0]}` : `, ${format.usd(usd)} per million output tokens`);
    const shown = (name: string, text: string) => make("div", {}, make("dt", {}, name), make("dd", {}, text));
    $("serving").replaceChildren(
      ...(usd === null
        ? []
        : [
            shown("GPUs", String(at("gpus"))),
            shown("batch", `${format.significant(at("batch") ?? 0)}, limited by ${this.draft.limits[at("limited_by") ?? 0]}`),
            shown("weights a GPU", format.gigabytes(at("weight_bytes_per_gpu") ?? 0)),
            shown("KV cache a token", `${format.significant((at("kv_bytes_per_token") ?? 0) / 1e3)} kB`),
            shown("time per output token", format.seconds(at("tpot_s") ?? 0)),
            shown("time to first token", format.seconds(at("ttft_s") ?? 0)),
            shown("throughput", `${format.count(at("throughput_tok_s") ?? 0)} tokens/s`),
            shown("latency from", this.draft.latency_source),
          ]),
    );
    const parts = breakdown.parts(this.draft, curve, i);
    this.charts.breakdown.table = breakdown.table(parts);
    await this.charts.breakdown.draw(paper, breakdown.data(parts, paper));
  }

  private listenToChart(): void {
    const place = $("loss-cost").querySelector<HTMLElement>(".plot")!;
    const show = latest(async () => {
      const model = this.picked();
      const data = this.pick && model ? [{ usd: model.curve.usd_per_mtok[model.i], loss: model.curve.loss[model.i] }] : [];
      await this.charts.plan.update({ pick: data });
      await this.drawBreakdown();
    });
    const tip = $("tip");
    place.addEventListener("pointermove", (event) => {
      const model = this.known(event, place);
      tip.hidden = !model;
      if (model) {
        tip.textContent = planChart.about(model);
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
      const i = Math.min(Math.max(now.i + along, 0), curve.loss.length - 1);
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
    const name = this.evidence?.law.title.replace(/ \(uploaded\)$/, "") ?? "law";
    download(`${name}.toml`, await response.blob());
  }
}

/** How a figure differs from a pinned one: shares in points, others as a multiple. */
function change(now: Figure, pinned: Figure): string {
  if (now.text.endsWith("%")) return `${now.value >= pinned.value ? "+" : "−"}${Math.round(100 * Math.abs(now.value - pinned.value))} pts`;
  return `×${format.significant(now.value / pinned.value)}`;
}

/** A table in the command line's words; ">" marks the recommended row. */
function told(table: Told): HTMLElement {
  const text = (value: string) => (value.startsWith("> ") ? `${value.slice(2)}, recommended` : value.trim());
  const align = (i: number) => (table.columns[i].text ? "left" : "");
  const head = table.columns.map((column, i) => make("th", { scope: "col", className: align(i) }, column.head));
  const body = table.rows.map((row) => {
    const cells = row.map((value, i) => make(i ? "td" : "th", i ? { className: align(i) } : { scope: "row" }, text(value)));
    return make("tr", { className: row[0].startsWith("> ") ? "chosen" : "" }, ...cells);
  });
  const whole = make("table", {}, make("caption", {}, table.title), make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": table.title }, whole);
}

void start();
