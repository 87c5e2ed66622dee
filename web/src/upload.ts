// The upload of a law file.

import * as api from "./api";
import { make } from "./controls";
import { Catalogue, Failure } from "./types";

/** The control of an upload; `found` is called with a law's name once there is one. */
export function build(catalogue: Catalogue, found: (law: string) => Promise<void>, message: (failure: Failure) => string): HTMLElement {
  const file = make("input", { type: "file", id: "file", accept: ".toml" });
  const bad = make("p", { className: "bad", id: "upload-error", role: "alert", hidden: true });
  const good = make("p", { className: "hint", id: "upload-done", role: "status" });
  file.addEventListener("change", async () => {
    const chosen = file.files?.[0];
    if (!chosen) return;
    bad.hidden = true;
    good.textContent = "";
    file.disabled = true;
    try {
      if (chosen.size > catalogue.upload_limit_bytes) {
        throw new Error(`${chosen.name} is larger than ${catalogue.upload_limit_bytes / 2 ** 20} MiB, the largest upload`);
      }
      const law = await api.upload<{ law: string; name: string }>("laws", chosen);
      await found(law.law);
      good.textContent = `Law ${law.name} is loaded.`;
    } catch (error) {
      bad.textContent = error instanceof api.Refusal ? message(error.failure) : (error as Error).message;
      bad.hidden = false;
    } finally {
      file.disabled = false;
      file.value = "";
    }
  });
  return make(
    "details",
    { className: "more", id: "upload" },
    make("summary", {}, "Upload a law"),
    make(
      "div",
      {},
      make("p", { className: "hint" }, "A law file that `moescale fit RUNS -o LAW.toml` wrote. It stays in this program's memory."),
      make("label", { htmlFor: "file", className: "hint" }, "File (TOML)"),
      file,
      bad,
      good,
    ),
  );
}
