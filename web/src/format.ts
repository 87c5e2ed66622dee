// Numbers as the command line prints them: three significant digits, K M B T, dollars with the digits that matter.

export function significant(value: number, digits = 3): string {
  if (value === 0) return "0";
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  const text = value.toFixed(Math.min(decimals, 20));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

function scaled(value: number, steps: [number, string][]): string {
  let [size, unit] = steps[0];
  for (const [candidate, name] of steps.slice(1)) if (Math.abs(Number(value.toPrecision(3))) >= candidate) [size, unit] = [candidate, name];
  return significant(value / size) + unit;
}

export function count(value: number): string {
  if (value !== 0 && !(Math.abs(value) >= 1e-3 && Math.abs(value) < 9.995e14)) return flops(value);
  return scaled(value, [[1, ""], [1e3, "K"], [1e6, "M"], [1e9, "B"], [1e12, "T"]]);
}

export function flops(value: number): string {
  if (value === 0 || (Math.abs(value) >= 1 && Math.abs(value) < 999.5)) return significant(value);
  const [mantissa, exponent] = value.toExponential(2).split("e");
  return `${mantissa.replace(/\.?0+$/, "")}e${Number(exponent)}`;
}

export function usd(value: number): string {
  const size = Math.abs(value);
  if (Number(size.toPrecision(3)) >= 1e4) return (value < 0 ? "-$" : "$") + count(size);
  if (Number(size.toPrecision(3)) >= 100) return "$" + Math.round(value).toLocaleString("en-US");
  if (size === 0 || Number(size.toPrecision(3)) >= 1) return "$" + value.toFixed(2);
  return "$" + value.toFixed(Math.min(2 - Math.floor(Math.log10(Number(size.toPrecision(3)))), 20));
}

export function seconds(value: number): string {
  if (value < 1e-3) return significant(value * 1e6) + " µs";
  if (value < 1) return significant(value * 1e3) + " ms";
  return significant(value) + " s";
}

export function gigabytes(value: number): string {
  return significant(value / 1e9) + " GB";
}

export function percent(value: number): string {
  return `${Math.round(value * 100)}%`;
}

/** How much cheaper: a multiple of two and more, else a share. */
export function cheaper(ratio: number): string {
  return ratio >= 2 ? `${significant(ratio, 2)}x cheaper` : `${percent(1 - 1 / ratio)} cheaper`;
}

export function expertsName(experts: number): string {
  return experts === 1 ? "dense" : `E = ${experts}`;
}

const SUFFIX: Record<string, number> = { "": 1, K: 1e3, M: 1e6, B: 1e9, G: 1e9, T: 1e12 };

/** The number that a text such as 5e21, 7B or 1_000 states; NaN for any other (the server has the last word). */
export function parse(text: string): number {
  const found = /^\s*\+?([0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?)\s*([a-zA-Z]?)\s*$/.exec(text);
  if (!found || found[1] === "") return NaN;
  return Number(found[1].replaceAll("_", "")) * (SUFFIX[found[2].toUpperCase()] ?? NaN);
}
