// Numbers, times and deployments as a person reads them.

const DASH = "–";

/** Up to four significant digits, thousands apart; a dash for a value that does not exist. */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return DASH;
  const size = Math.abs(value);
  const digits = Number.isInteger(value) || size >= 1000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: Number.isInteger(value) ? 0 : digits });
}

/** A part of one as percent. */
export function percent(part, digits = 0) {
  return part === null || part === undefined ? DASH : `${(part * 100).toFixed(digits)} %`;
}

/** How far a value lies from another: "+4.1 %"; a dash where that says nothing. */
export function change(value, base) {
  if (value === null || value === undefined || !base) return DASH;
  const part = value / base - 1;
  if (Math.abs(part) < 0.0005) return "same";
  return `${part > 0 ? "+" : "−"}${Math.abs(part * 100).toFixed(Math.abs(part) < 0.1 ? 1 : 0)} %`;
}

/** Seconds in the two largest units. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  if (seconds < 1) return "under 1 s";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

/** How long ago a moment was. */
export function age(moment) {
  const seconds = (Date.now() - Date.parse(moment)) / 1000;
  if (seconds < 5) return "just now";
  return seconds < 60 || seconds >= 3600 ? `${duration(seconds)} ago` : `${Math.floor(seconds / 60)} min ago`;
}

/** A moment in the viewer's zone. */
export function time(moment) {
  return moment ? new Date(moment).toLocaleString() : DASH;
}

/** What a study is called: its name, or its model. */
export function studyName(study) {
  return study.name || study.model_name;
}

/** Parallel widths, those of one left out: "tp2 · ep4". */
export function shape(widths) {
  const short = { tp: "tp", pp: "pp", attention_dp: "dp", moe_tp: "moe-tp", moe_ep: "ep" };
  const named = Object.entries(short).filter(([name]) => (widths[name] ?? 1) > 1).map(([name, text]) => text + widths[name]);
  return named.join(" · ") || "tp1";
}

/** The pools of a deployment by role. */
export function pools(deployment) {
  return ["agg", "prefill", "decode"].filter((role) => deployment[role]).map((role) => [role, deployment[role]]);
}

/** A deployment in a few words: "vllm 4 × tp2", "vllm prefill 2 × tp1 + decode 1 × tp4". */
export function deploymentName(deployment) {
  const parts = pools(deployment).map(([role, pool]) => `${role === "agg" ? "" : `${role} `}${pool.replicas} × ${shape(pool.shape)}`);
  return `${deployment.backend} ${parts.join(" + ")}`;
}

/** Batching limits of each pool, tokens and sequences: "8192 / 1024". */
export function batching(deployment) {
  return pools(deployment).map(([, pool]) => `${pool.max_num_batched_tokens} / ${pool.max_num_seqs}`).join(" + ");
}

/** The same in words. */
export function batchingWords(deployment) {
  const said = pools(deployment).map(([role, pool]) => `${role === "agg" ? "" : `${role} `}${number(pool.max_num_batched_tokens)} tokens and ${number(pool.max_num_seqs)} sequences`);
  return `${said.join(", ")} in a step`;
}

/** Every knob of a deployment with its value, flat: "agg replicas" -> "4". Values that are not set are left out. */
export function knobs(deployment) {
  const found = new Map();
  const walk = (value, path) => {
    if (value === null || value === undefined) return;
    if (typeof value === "object" && !Array.isArray(value)) {
      for (const [name, each] of Object.entries(value)) walk(each, [...path, name]);
    } else {
      found.set(path.filter((name) => name !== "shape").join(" "), String(value));
    }
  };
  walk(deployment, []);
  return found;
}
