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

function send(name: string, file: File, query: Record<string, string>, signal?: AbortSignal): Promise<Response> {
  const headers = { "Content-Type": "application/octet-stream" };
  return fetch(`/api/${name}?${new URLSearchParams({ name: file.name, ...query })}`, { method: "POST", headers, body: file, signal });
}

export async function upload<T>(name: string, file: File): Promise<T> {
  return answer<T>(await send(name, file, {}));
}

/** Fits a table: `progress` is called with each step and its share until the law is there; `signal` ends the fit. */
export async function fit<T>(
  file: File,
  query: Record<string, string>,
  signal: AbortSignal,
  progress: (step: string, share: number) => void,
): Promise<T> {
  const response = await send("fits", file, query, signal);
  if (!response.ok || response.headers.get("content-type") === "application/json") return answer<T>(response);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("The server does not answer any more.");
    text += value;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n")) {
      const event = JSON.parse(text.slice(0, end));
      text = text.slice(end + 1);
      if (event.error) throw new Refusal(event.error);
      if (event.done) return event.done as T;
      if (event.progress) progress(event.progress[0], event.progress[1]);
    }
  }
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
