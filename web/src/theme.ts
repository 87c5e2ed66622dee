// Light and dark: the browser's preference, or the reader's choice.

import { State } from "./state";
import { Look } from "./types";

export interface Ink {
  dark: boolean;
  background: string;
  text: string;
  faint: string;
  rule: string;
  frontier: string;
  accent: string;
}

const LIGHT: Ink = { dark: false, background: "#ffffff", text: "#222222", faint: "#6b6b6b", rule: "#e3e3e3", frontier: "#bdbdbd", accent: "#b34700" };
const DARK: Ink = { dark: true, background: "#1b1d21", text: "#e8e8e8", faint: "#a5a8ad", rule: "#34373d", frontier: "#5d6168", accent: "#ff8b3d" };

const preference = matchMedia("(prefers-color-scheme: dark)");

const KEPT = "moescale-theme"; // in the browser, for the next visit

function kept(): string {
  try {
    return localStorage.getItem(KEPT) ?? "";
  } catch {
    return ""; // a browser that keeps nothing
  }
}

/** The other theme, in the address and for the next visit. */
export function toggle(state: State): void {
  const theme = isDark(state) ? "light" : "dark";
  try {
    localStorage.setItem(KEPT, theme);
  } catch {
    // then it lasts as long as the address
  }
  state.set({ theme });
}

export function isDark(state: State): boolean {
  const chosen = state.get("theme") || kept();
  return chosen === "dark" || (chosen !== "light" && preference.matches);
}

export function ink(state: State): Ink {
  return isDark(state) ? DARK : LIGHT;
}

export function apply(state: State): void {
  document.documentElement.dataset.theme = isDark(state) ? "dark" : "light";
}

export function onPreference(listener: () => void): void {
  preference.addEventListener("change", listener);
}

export function colour(look: Look, paper: Ink): string {
  return paper.dark ? look.colour_on_dark : look.colour;
}

/** What all charts share: no border, faint axes, one font. */
export function config(paper: Ink): object {
  return {
    background: paper.background,
    font: "system-ui, sans-serif",
    aria: false, // the card around a chart describes it, and its table holds the numbers
    view: { stroke: null },
    axis: {
      labelColor: paper.text,
      titleColor: paper.text,
      domainColor: paper.faint,
      tickColor: paper.faint,
      gridColor: paper.rule,
      labelFontSize: 11,
      titleFontSize: 11,
      titleFontWeight: "normal",
      labelOverlap: "greedy",
      labelSeparation: 8,
      titlePadding: 6,
    },
    text: { color: paper.text, fontSize: 11 },
  };
}
