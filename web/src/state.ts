// The state of the page is the query of its address: a link reproduces the view, and the server reads the same keys.

import { Catalogue } from "./types";

const VIEW_KEYS = ["theme", "bands", "pins"];

export class State {
  private values: Map<string, string>;
  private listeners: (() => void)[] = [];
  private saving = 0;

  constructor(private defaults: Record<string, string>) {
    this.values = new Map(new URLSearchParams(location.search));
    addEventListener("popstate", () => {
      this.values = new Map(new URLSearchParams(location.search));
      this.notify();
    });
  }

  get(key: string): string {
    return this.values.get(key) ?? this.defaults[key] ?? "";
  }

  has(key: string): boolean {
    return this.values.has(key);
  }

  /** Set or remove (undefined, or the default) keys; the address follows, the listeners hear of it at once. */
  set(changes: Record<string, string | undefined>): void {
    for (const [key, value] of Object.entries(changes)) {
      if (value === undefined || value === "" || value === this.defaults[key]) this.values.delete(key);
      else this.values.set(key, value);
    }
    // Browsers limit how often an address may change, and a slider changes faster.
    clearTimeout(this.saving);
    this.saving = window.setTimeout(() => history.replaceState(null, "", this.link()), 150);
    this.notify();
  }

  /** Ask another question, as `query` has it. */
  ask(query: string): void {
    const shown = VIEW_KEYS.flatMap((key) => (this.values.has(key) ? [[key, this.get(key)] as [string, string]] : []));
    this.values = new Map([...new URLSearchParams(query), ...shown]);
    this.set({});
  }

  /** The pinned questions, each as its query. */
  pins(): string[] {
    return this.values.has("pins") ? this.get("pins").split("|") : [];
  }

  /** Pin these questions; the empty query is the default question, so that none at all is no key. */
  pin(queries: string[]): void {
    if (queries.length) this.values.set("pins", queries.join("|"));
    else this.values.delete("pins");
    this.set({});
  }

  onChange(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** The query of the question: everything but how it is shown. */
  query(): string {
    return State.asked([...this.values]);
  }

  /** The part of an address's query that is the question. */
  static asked(query: string | [string, string][]): string {
    const kept = [...new URLSearchParams(query)].filter(([key]) => !VIEW_KEYS.includes(key));
    return new URLSearchParams(kept).toString();
  }

  link(): string {
    const text = new URLSearchParams([...this.values]).toString();
    return location.pathname + (text ? `?${text}` : "");
  }

  private notify(): void {
    for (const listener of this.listeners) listener();
  }
}

export function gpu(catalogue: Catalogue, name: string) {
  return catalogue.gpus.find((g) => g.name === name);
}
