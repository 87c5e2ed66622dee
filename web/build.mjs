// Builds the page into src/moescale/web/static: one script, one style sheet, one HTML file, and their hashes.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = here("../src/moescale/web/static/");
mkdirSync(out, { recursive: true });

const result = await build({
  entryPoints: [here("src/main.ts")],
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "eof", // the libraries' licences stay with their code
  write: false,
});
const files = {
  "index.html": readFileSync(here("index.html")),
  "app.css": readFileSync(here("app.css")),
  "app.js": Buffer.from(result.outputFiles[0].contents),
};
const manifest = {};
for (const [name, data] of Object.entries(files)) {
  writeFileSync(out + name, data);
  manifest[name] = createHash("sha256").update(data).digest("hex");
}
writeFileSync(out + "manifest.json", JSON.stringify(manifest, null, 2) + "\n");
for (const [name, data] of Object.entries(files)) console.log(`${name} ${(data.length / 1024).toFixed(0)} KiB`);
