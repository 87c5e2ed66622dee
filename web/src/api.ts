// Requests to the server: answers or refusals, and a loop that never has more than one draft under way.

import { Failure } from "./types";

export class Refusal extends Error {
  constructor(readonly failure: Failure) {
    super(failure.message);
  }
}

async function answer<T>(response: Response): Promise<T> {
  if (response.status === 403) {
    const message = await response.text(); // as of a page without its token
    throw new Refusal({ message, what: message, where: null, nearest: null, next_step: null, infeasible: false });
  }
  if (!response.ok) throw new Error(`${response.status}: ${await response.text()}`);
  const record = await response.json();
  if (record.error) throw new Refusal(record.error);
  return record as T;
}

/** The answer to a question, until it is there or `signal` ends it. */
export async function get<T>(name: string, query = "", signal?: AbortSignal): Promise<T> {
  return answer<T>(await fetch(`/api/${name}${query ? `?${query}` : ""}`, { signal }));
}

export async function upload<T>(name: string, file: File): Promise<T> {
  const headers = { "Content-Type": "application/octet-stream" };
  return answer<T>(await fetch(`/api/${name}?${new URLSearchParams({ name: file.name })}`, { method: "POST", headers, body: file }));
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
