// Builds the page into src/moescale/web/static: the script and the drawing library, one style sheet, one HTML file, and their hashes.
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = here("../src/moescale/web/static/");
mkdirSync(out, { recursive: true });

const shared = {
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "eof", // the libraries' licences stay with their code
  write: false,
};
const bundles = {
  "app.js": await build({ ...shared, entryPoints: [here("src/main.ts")], external: ["./vega.js"] }),
  "vega.js": await build({ ...shared, entryPoints: [here("src/vega.ts")] }),
};
const files = { "index.html": readFileSync(here("index.html")), "app.css": readFileSync(here("app.css")) };
for (const [name, bundle] of Object.entries(bundles)) files[name] = Buffer.from(bundle.outputFiles[0].contents);
const manifest = {};
for (const [name, data] of Object.entries(files)) {
  writeFileSync(out + name, data);
  manifest[name] = createHash("sha256").update(data).digest("hex");
}
writeFileSync(out + "manifest.json", JSON.stringify(manifest, null, 2) + "\n");
for (const [name, data] of Object.entries(files)) console.log(`${name} ${(data.length / 1024).toFixed(0)} KiB`);
