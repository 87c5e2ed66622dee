// Uploads: a law file, or a table of runs that is fitted with its progress shown and can be cancelled.

import * as api from "./api";
import { UPLOAD_LABELS, make } from "./controls";
import * as format from "./format";
import { Catalogue, Failure, FitRecord } from "./types";

interface Done {
  law: string;
  name: string;
  fit: FitRecord;
}

/** The controls of uploads; `found` is called with a law's name once there is one. */
export function build(catalogue: Catalogue, found: (law: string) => Promise<void>, message: (failure: Failure) => string): HTMLElement {
  const file = make("input", { type: "file", id: "file", accept: ".csv,.tsv,.parquet,.jsonl,.json,.toml" });
  const form = make("select", { id: "form" }, ...["auto", ...catalogue.forms.map((f) => f.name)].map((name) => make("option", { value: name }, name)));
  const where = make("input", { type: "text", id: "where", placeholder: "tokens >= 5e9" });
  const draws = make("select", { id: "draws" }, ...[0, 100, 200, 500].map((n) => make("option", { value: String(n) }, n ? `${n} replicates` : "none")));
  const bar = make("progress", { max: 1, value: 0, id: "fit-progress", "aria-label": "Progress of the fit" });
  const step = make("p", { className: "hint", id: "fit-step", role: "status" });
  const cancel = make("button", { type: "button", id: "fit-cancel" }, "Cancel");
  const running = make("div", { hidden: true }, bar, step, cancel);
  const bad = make("p", { className: "bad", id: "upload-error", role: "alert", hidden: true });
  const good = make("p", { className: "hint", id: "upload-done", role: "status" });
  let cancelled = new AbortController();

  const columns = ["size-column", "tokens-column", "experts-column", "loss-column"].map((id) => make("input", { type: "text", id, placeholder: "by name" }));
  const fit = async (table: File) => {
    running.hidden = false;
    bar.removeAttribute("value");
    step.textContent = `sending ${table.name}`;
    const query: Record<string, string> = { law: form.value, bootstrap: draws.value };
    for (const column of columns) if (column.value.trim()) query[column.id] = column.value.trim();
    if (where.value.trim()) query.where = where.value.trim();
    const done = await api.fit<Done>(table, query, cancelled.signal, (name, share) => {
      bar.value = share;
      step.textContent = `${name} (${format.percent(share)})`;
    });
    running.hidden = true;
    await found(done.law);
    good.textContent = `${done.name}: ${done.fit.law} fitted to ${done.fit.n_runs} runs, RMSLE ${format.significant(1e3 * done.fit.rmsle)}×10⁻³. ${done.fit.warnings.join(" ")}`;
  };
  file.addEventListener("change", async () => {
    const chosen = file.files?.[0];
    if (!chosen) return;
    bad.hidden = true;
    good.textContent = "";
    cancelled = new AbortController();
    file.disabled = true;
    try {
      if (chosen.size > catalogue.upload_limit_bytes) {
        throw new Error(`${chosen.name} is larger than ${catalogue.upload_limit_bytes / 2 ** 20} MiB, the largest upload`);
      }
      if (chosen.name.toLowerCase().endsWith(".toml")) {
        const law = await api.upload<{ law: string; name: string }>("laws", chosen);
        await found(law.law);
        good.textContent = `Law ${law.name} is loaded.`;
      } else await fit(chosen);
    } catch (error) {
      if (cancelled.signal.aborted) good.textContent = "Cancelled. Nothing was kept.";
      else {
        bad.textContent = error instanceof api.Refusal ? message(error.failure) : (error as Error).message;
        bad.hidden = false;
      }
    } finally {
      running.hidden = true;
      file.disabled = false;
      file.value = "";
    }
  });
  cancel.addEventListener("click", () => cancelled.abort());
  const field = (label: string, control: HTMLElement) => make("div", { className: "control" }, make("label", { htmlFor: control.id }, label), control);
  return make(
    "details",
    { className: "more", id: "upload" },
    make("summary", {}, "Upload a law or runs to fit"),
    make(
      "div",
      {},
      make("p", { className: "hint" }, "A law file of `moescale fit -o`, or a table of runs with columns for size, experts, tokens and loss. It stays in this program's memory."),
      field("Form to fit", form),
      field(UPLOAD_LABELS.where, where),
      field(UPLOAD_LABELS.bootstrap, draws),
      ...columns.map((column) => field(UPLOAD_LABELS[column.id], column)),
      make("label", { htmlFor: "file", className: "hint" }, "File (runs: CSV, TSV, Parquet, JSON lines; law: TOML)"),
      file,
      running,
      bad,
      good,
    ),
  );
}
