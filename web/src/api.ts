// Requests to the server: answers or refusals, and a loop that never has more than one draft under way.

import { Failure } from "./types";

export class Refusal extends Error {
  constructor(readonly failure: Failure) {
    super(failure.message);
  }
}

async function answer<T>(response: Response): Promise<T> {
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const record = await response.json();
  if (record.error) throw new Refusal(record.error);
  return record as T;
}

const MOST_TRIES = 10; // where the server has too much to do and asks to come again

export async function get<T>(name: string, query = "", signal?: AbortSignal): Promise<T> {
  for (let tries = 1; ; tries++) {
    const response = await fetch(`/api/${name}${query ? `?${query}` : ""}`, { signal });
    if (response.status !== 503 || tries === MOST_TRIES) return answer<T>(response);
    await new Promise((wait) => setTimeout(wait, 1000 * Number(response.headers.get("retry-after") ?? 1)));
  }
}

export async function upload<T>(name: string, file: File, query: Record<string, string>): Promise<T> {
  const text = new URLSearchParams({ name: file.name, ...query });
  return answer<T>(
    await fetch(`/api/${name}?${text}`, {
      method: "POST",
      headers: { "Content-Type": "application/octet-stream" },
      body: file,
    }),
  );
}

export async function remove(name: string): Promise<void> {
  await fetch(`/api/${name}`, { method: "DELETE" });
}

/** Runs `work` for the newest request only: at most one at a time, and what came in between is skipped. */
export function latest(work: () => Promise<void>): () => void {
  let busy = false;
  let again = false;
  const run = async () => {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      do {
        again = false;
        await work();
      } while (again);
    } finally {
      busy = false;
    }
  };
  return () => void run();
}
