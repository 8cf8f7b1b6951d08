// Following a study. Server-sent events are read with fetch, because EventSource cannot send the key; where a stream
// cannot be had, the study is polled with its entity tag instead.

import { getJson, request, studyPath } from "./api.js";

export const ENDED = new Set(["succeeded", "failed", "cancelled"]);
const SILENCE_MS = 45_000; // three missed signs of life
const POLL_MS = 2_000;
const POLLS_BEFORE_STREAM = 15;
const AGAIN_MS = 1_000;

/** Resolves after some time, or at once when the signal aborts. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}

/**
 * Call `onSnapshot` with each new state of a study until it has ended. `onMode` hears "live", "polling" or "waiting"
 * (nothing answers). version: the newest state already known. Raises: Problem for a refusal such as 401 or 404.
 */
export async function follow(studyId, version, { onSnapshot, onMode }, signal) {
  let known = version;
  const seen = (snapshot) => {
    if (snapshot.version > known) {
      known = snapshot.version;
      onSnapshot(snapshot);
    }
    return ENDED.has(snapshot.status);
  };
  while (!signal.aborted) {
    const outcome = await readStream(studyId, known, seen, onMode, signal);
    if (outcome === "ended") return;
    if (outcome === "unavailable" && (await poll(studyId, seen, onMode, signal))) return;
    await pause(AGAIN_MS, signal);
  }
}

async function readStream(studyId, known, seen, onMode, signal) {
  const watch = new AbortController();
  const stop = () => watch.abort();
  signal.addEventListener("abort", stop, { once: true });
  let timer = setTimeout(stop, SILENCE_MS);
  try {
    const headers = { Accept: "text/event-stream", "Last-Event-ID": String(known) };
    const response = await request(studyPath(studyId, "events"), { headers, signal: watch.signal });
    if (response.status === 204) return "ended";
    onMode("live");
    for await (const data of eventData(response.body)) {
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_MS);
      if (data !== null && seen(JSON.parse(data))) return "ended";
    }
    return "closed";
  } catch (error) {
    if ([401, 403, 404].includes(error.status)) throw error;
    return signal.aborted ? "ended" : "unavailable";
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    watch.abort();
  }
}

/** The data of each event, null for a comment. Source: WHATWG HTML, section 9.2.6, as far as this service uses it. */
export async function* eventData(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      yield lines.length ? lines.map((line) => line.slice(5).trimStart()).join("\n") : null;
    }
  }
}

async function poll(studyId, seen, onMode, signal) {
  for (let turn = 0; turn < POLLS_BEFORE_STREAM && !signal.aborted; turn += 1) {
    try {
      const study = await getJson(studyPath(studyId), signal);
      onMode("polling");
      if (seen(study)) return true;
    } catch (error) {
      if ([401, 403, 404].includes(error.status)) throw error;
      if (!signal.aborted) onMode("waiting");
    }
    await pause(POLL_MS, signal);
  }
  return false;
}

/** At most one run of `work` at a time and one per `everyMs`; calls meanwhile lead to one more run. */
export function throttled(work, everyMs, signal) {
  let running = false;
  let wanted = false;
  return async function run() {
    wanted = true;
    if (running) return;
    running = true;
    while (wanted && !signal.aborted) {
      wanted = false;
      await work();
      await pause(everyMs, signal);
    }
    running = false;
  };
}
