// What the words of an answer mean, shown where they are pointed at, tapped or focused.

import { make } from "./controls";

const TERMS: Record<string, string> = {
  serve: "Dollars of rented GPUs for a million output tokens (Mtok), with the server always full.",
  train: "Dollars of rented GPUs for one training run, without restarts or failed runs.",
  chance: "How often the model reaches the loss of the baseline, over many laboratories like those whose training runs were fitted. Loss measures quality: lower is better.",
  life: "Dollars of one training run and of serving all tokens that the question states.",
  saving: "Dollars of the baseline's own life, less those of this model's.",
  "lower loss": "Loss measures quality: lower is better.",
  baseline: "The model that the answer is compared with: unless another is chosen, the dense model of the lowest loss for the same training budget.",
  build: "The model in whole layers and heads. Top-8: each token passes through 8 of the experts.",
  unused: "Training FLOPs of the budget that this model has no use for.",
  batch: "Requests that a server answers at the same time.",
  TTFT: "Seconds from a request to its first output token.",
  TPOT: "Seconds from one output token to the next, as a user sees them.",
  "KV cache": "Memory that a server keeps for each token of a request under way.",
};

addEventListener("scroll", () => (tip().hidden = true), { passive: true });

const tip = () => document.getElementById("tip")!;

/** A word with its meaning on tap, if it has one. */
export function term(name: string): Node | string {
  const meaning = TERMS[name];
  if (!meaning) return name;
  const button = make("button", { type: "button", className: "term", "aria-description": meaning }, name);
  const show = () => {
    const box = button.getBoundingClientRect();
    tip().textContent = meaning;
    tip().hidden = false;
    tip().style.left = `${Math.max(4, Math.min(box.left, innerWidth - 270))}px`;
    tip().style.top = `${box.bottom + 4}px`;
  };
  const hide = () => (tip().hidden = true);
  for (const event of ["pointerenter", "focus", "click"]) button.addEventListener(event, show);
  for (const event of ["pointerleave", "blur"]) button.addEventListener(event, hide);
  button.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  return button;
}
