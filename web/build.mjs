// Builds the page into build/page: the script and the drawing library, one style sheet, one HTML file, and the licences of what
// the scripts contain. scripts/store_page.py stores them in the package.
import { existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const out = here("../build/page/");
mkdirSync(out, { recursive: true });

const shared = {
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "eof", // the libraries' licences stay with their code
  metafile: true,
  write: false,
};
const bundles = {
  "app.js": await build({ ...shared, entryPoints: [here("src/main.ts")], external: ["./vega.js"] }),
  "vega.js": await build({ ...shared, entryPoints: [here("src/vega.ts")] }),
};
const files = { "index.html": readFileSync(here("index.html")), "app.css": readFileSync(here("app.css")) };
for (const [name, bundle] of Object.entries(bundles)) files[name] = Buffer.from(bundle.outputFiles[0].contents);
files["licenses.txt"] = Buffer.from(licences(Object.values(bundles)));
for (const [name, data] of Object.entries(files)) writeFileSync(out + name, data);
for (const [name, data] of Object.entries(files)) console.log(`${name} ${(data.length / 1024).toFixed(0)} KiB`);

/**
 * The licences of the packages with a module in a bundle and of what they depend on, which some of them contain ready built, and
 * the notices within their modules. A package without a licence stops the build.
 */
function licences(bundles) {
  const modules = [...new Set(bundles.flatMap((bundle) => Object.keys(bundle.metafile.inputs)))].filter((path) => path.includes("node_modules/"));
  const folders = new Set(modules.map((path) => /.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)[0]));
  const headings = new Map(); // of packages, by the text that they share
  for (const folder of folders) {
    const place = here(folder);
    const { name, version, license, dependencies = {} } = JSON.parse(readFileSync(`${place}/package.json`, "utf8"));
    for (const needed of Object.keys(dependencies)) folders.add(installed(needed, folder)); // and visited later in this loop
    const texts = readdirSync(place).filter((file) => /^(licen[cs]e|notice|copying)/i.test(file)).sort();
    if (!texts.length || !license) throw new Error(`${name} ${version} ships no licence: find it and state it here`);
    const said = texts.map((file) => readFileSync(`${place}/${file}`, "utf8").trim()).join("\n\n");
    headings.set(said, (headings.get(said) ?? new Set()).add(`${name} ${version} (${license})`));
  }
  const notices = [...headings].map(([said, names]) => `${[...names].sort().join("\n")}\n\n${said}`).sort();
  const comments = modules.flatMap((path) => readFileSync(here(path), "utf8").match(/\/\*[^]*?\*\/|(?:^[ \t]*\/\/.*\n)+/gm) ?? []);
  const within = [...new Set(comments.filter((text) => /copyright|\(c\) \d/i.test(text)).map((text) => text.trim()))].sort();
  const first = "The page of `moescale web` is built from these packages and from what they depend on, each under its licence.";
  const last = `Notices within their modules:\n\n${within.join("\n\n")}`;
  return [first, ...notices, last].join(`\n\n${"-".repeat(80)}\n\n`) + "\n";
}

/** The folder of a package as `from`, a folder of node_modules, finds it. */
function installed(name, from) {
  for (let folder = from; folder.includes("node_modules"); folder = folder.slice(0, folder.lastIndexOf("/node_modules"))) {
    if (existsSync(here(`${folder}/node_modules/${name}`))) return `${folder}/node_modules/${name}`;
  }
  if (existsSync(here(`node_modules/${name}`))) return `node_modules/${name}`;
  throw new Error(`${name}, which ${from} needs, is not installed`);
}
