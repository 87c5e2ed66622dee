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

const PLACE_MS = 1500; // between questions for the place in the queue

/** Where the page says what a question waits for; an empty text once it waits no more. */
export const queue = { tell: (_: string): void => undefined };

/** The answer to a question, which is asked again when the server says so until it is there or `signal` ends it. */
export async function get<T>(name: string, query = "", signal?: AbortSignal): Promise<T> {
  const ask = (path: string) => fetch(`/api/${path}${query ? `?${query}` : ""}`, { signal });
  let waits = true;
  const place = async () => {
    const { ahead, seconds } = await (await ask(`place/${name}`)).json();
    if (waits) queue.tell(ahead === null ? "" : `Waiting: ${ahead} ${ahead === 1 ? "question is" : "questions are"} before this one, about ${Math.ceil(seconds)} s.`);
  };
  const asking = setInterval(() => void place().catch(() => undefined), PLACE_MS);
  try {
    for (;;) {
      const response = await ask(name);
      if (response.status !== 503) return await answer<T>(response);
      const again = Number(response.headers.get("retry-after") ?? 1);
      queue.tell(`Waiting: the server has too many questions, and is asked again in ${again} s.`);
      await new Promise((wait) => setTimeout(wait, 1000 * again));
      signal?.throwIfAborted();
    }
  } finally {
    waits = false;
    clearInterval(asking);
    queue.tell("");
  }
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
