// Talks to the server, as an administrator.

const KEPT = "spry-admin-token";
const SILENCE = 40_000; // the server speaks at least every 15 seconds
const LONGEST_PAUSE = 15_000;

/** The server refused; the message is its own. */
export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEPT),
  set: (value) => sessionStorage.setItem(KEPT, value),
  forget: () => sessionStorage.removeItem(KEPT),
};

/** The answer as JSON, null where there is none, or a Refused with what the server said. */
export async function call(method, path, body) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await send(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  return response.status === 204 ? null : response.json();
}

/** The answer as a file. */
export const fetched = async (path) => (await send(path, { method: "GET" })).blob();

/** Leaves a file's bytes at the server, under their own hash; gives it back. */
export async function upload(path, file) {
  const body = await file.arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", body));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  await send(`${path}/${sha256}`, { method: "PUT", headers: { "Content-Type": "application/octet-stream" }, body });
  return sha256;
}

async function send(path, { headers = {}, ...options }) {
  let response;
  try {
    response = await fetch(path, {
      ...options,
      cache: "no-store",
      headers: { ...headers, Authorization: `Bearer ${token.get()}` },
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is it running?", 0);
  }
  if (!response.ok) throw new Refused(await reason(response), response.status);
  return response;
}

async function reason(response) {
  try {
    const problem = await response.json();
    if (problem.detail) return problem.detail;
  } catch {
    // not a problem document: a proxy's page, say
  }
  return `The server answered ${response.status} ${response.statusText}.`;
}

/**
 * The stream of events, connected again whenever it ends.
 *
 * `on.event(name, value)`, `on.state("connecting" | "live" | "lost")`, `on.refused(error)` for what no retry mends,
 * `on.clock(milliseconds)` with how far the server's clock is ahead of this one's.
 */
export class Stream {
  constructor(path, on) {
    this.path = path;
    this.on = on;
    this.closed = false;
    this.wake = () => {};
    this.hurry = () => this.wake();
    addEventListener("online", this.hurry);
    document.addEventListener("visibilitychange", this.hurry);
    this.run();
  }

  close() {
    this.closed = true;
    removeEventListener("online", this.hurry);
    document.removeEventListener("visibilitychange", this.hurry);
    this.abort?.abort();
    this.wake();
  }

  async run() {
    this.on.state("connecting");
    for (let failures = 0; !this.closed; failures += 1) {
      try {
        await this.listen(() => {
          failures = 0;
          this.on.state("live");
        });
      } catch (error) {
        if (!this.closed && error instanceof Refused && error.status >= 400 && error.status < 500) {
          this.close();
          this.on.refused(error);
        }
      }
      if (this.closed) return;
      this.on.state("lost");
      await this.pause(Math.min(1000 * 2 ** failures, LONGEST_PAUSE) * (0.75 + Math.random() / 2));
    }
  }

  async listen(alive) {
    this.abort = new AbortController();
    let watch = setTimeout(() => this.abort.abort(), SILENCE);
    try {
      const response = await send(this.path, { signal: this.abort.signal });
      const date = Date.parse(response.headers.get("Date"));
      if (date) this.on.clock(date - Date.now());
      alive();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { done, value } = await reader.read();
        if (done || this.closed) return;
        clearTimeout(watch);
        watch = setTimeout(() => this.abort.abort(), SILENCE);
        const messages = (rest + value).split("\n\n");
        rest = messages.pop();
        for (const message of messages) this.tell(message);
      }
    } finally {
      clearTimeout(watch);
    }
  }

  tell(message) {
    const found = message.match(/^event: (\w+)\ndata: (.*)$/);
    if (found) this.on.event(found[1], JSON.parse(found[2])); // else a comment that keeps the connection
  }

  pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
