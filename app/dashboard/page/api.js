// Talking to the API: the viewer's key, entity tags, problem documents. Addresses are relative to the page.

const KEY_PLACE = "spica-key";
const KEPT_ANSWERS = 60;
const answers = new Map(); // path -> { tag, body }; the oldest goes first

/** A refusal of the API, or `status` 0 when nothing answered. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }
}

/** The key of this tab, or null. It is kept in sessionStorage and nowhere else. */
export function key() {
  return sessionStorage.getItem(KEY_PLACE);
}

/** Use another key from now on; null forgets it. Answers got with the old one are dropped. */
export function useKey(text) {
  if (text) sessionStorage.setItem(KEY_PLACE, text);
  else sessionStorage.removeItem(KEY_PLACE);
  answers.clear();
}

/** A response with an ok status, or 304. Raises: Problem; AbortError. */
export async function request(path, { headers = {}, signal } = {}) {
  const sent = { ...headers };
  if (key()) sent.Authorization = `Bearer ${key()}`;
  let response;
  try {
    response = await fetch(path, { headers: sent, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No answer", "The service does not answer.");
  }
  if (response.ok || response.status === 304) return response;
  throw await problemOf(response);
}

async function problemOf(response) {
  try {
    const { title, detail } = await response.json();
    return new Problem(response.status, title ?? "Refused", detail ?? "");
  } catch {
    return new Problem(response.status, "Refused", `The service answered with status ${response.status}.`);
  }
}

/** A JSON document; the very same object as before while its entity tag holds, so callers can see that it is old. */
export async function getJson(path, signal) {
  const kept = answers.get(path);
  const response = await request(path, { headers: kept ? { "If-None-Match": kept.tag } : {}, signal });
  if (response.status === 304) return kept.body;
  const body = await response.json();
  const tag = response.headers.get("ETag");
  answers.delete(path);
  if (tag) answers.set(path, { tag, body });
  if (answers.size > KEPT_ANSWERS) answers.delete(answers.keys().next().value);
  return body;
}

/** The text of a response. */
export async function getText(path, signal) {
  return (await request(path, { signal })).text();
}

/** Up to `most` items of a paged list, and whether there are more. */
export async function getItems(path, signal, most = 2000) {
  const items = [];
  let cursor = null;
  do {
    const more = cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
    const page = await getJson(`${path}${path.includes("?") ? "&" : "?"}limit=500${more}`, signal);
    items.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && items.length < most);
  return { items, isCut: cursor !== null };
}

/** The address of something of a study. */
export function studyPath(studyId, ...parts) {
  return ["studies", studyId, ...parts].map(encodeURIComponent).join("/");
}
