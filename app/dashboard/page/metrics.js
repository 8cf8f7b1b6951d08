// What the names of objectives and metrics mean, and which way is better.

const OBJECTIVES = {
  throughput: ["Throughput", "tok/s", 1],
  throughput_per_gpu: ["Throughput per GPU", "tok/s per GPU", 1],
  throughput_per_user: ["Speed per user", "tok/s per user", 1],
  goodput: ["Goodput", "tok/s within the SLA", 1],
  goodput_per_gpu: ["Goodput per GPU", "tok/s per GPU within the SLA", 1],
  e2e_latency: ["End-to-end latency", "ms", -1],
  ttft: ["Time to first token", "ms", -1],
  min_gpus: ["GPUs needed", "GPUs", -1],
};
const SUFFIXES = [
  ["_throughput_per_user", "tok/s per user"], ["_tok_s", "tok/s"], ["_rps", "requests/s"], ["_ms", "ms"],
];
const SHORT = { ttft: "TTFT", tpot: "TPOT", itl: "ITL", ttst: "TTST", e2e: "end-to-end", kv: "KV", gpu: "GPU", gpus: "GPUs", num: "number of" };
const DISTRIBUTION = /^(min|max|median|p75|p90|p95|p99|std|num)_/;
export const MAIN_METRICS = [
  "output_throughput_tok_s", "request_throughput_rps", "mean_output_token_throughput_per_user", "mean_ttft_ms", "p99_ttft_ms",
  "mean_tpot_ms", "p99_tpot_ms", "mean_e2e_latency_ms", "p99_e2e_latency_ms", "goodput_request_throughput_rps",
  "prefix_cache_reused_ratio", "completed_requests", "num_requests", "duration_ms",
];
export const PERCENTILES = ["median", "p75", "p90", "p95", "p99"];
export const LATENCIES = [
  ["ttft_ms", "Time to first token"], ["tpot_ms", "Time per output token"], ["itl_ms", "Gap between tokens"],
  ["e2e_latency_ms", "End-to-end"],
];

/** Which way an objective is better: 1 up, -1 down. */
export function sense(objective) {
  return OBJECTIVES[objective]?.[2] ?? 1;
}

/** An objective's name for people. */
export function objectiveLabel(objective) {
  return OBJECTIVES[objective]?.[0] ?? objective;
}

/** The same within a sentence. */
export function objectivePhrase(objective) {
  const label = objectiveLabel(objective);
  return label.startsWith("GPU") ? label : label.charAt(0).toLowerCase() + label.slice(1);
}

/** An objective's unit. */
export function objectiveUnit(objective) {
  return OBJECTIVES[objective]?.[1] ?? "";
}

/** A metric's name for people, unit at the end: "Mean TTFT, ms". */
export function metricLabel(name) {
  const [suffix, unit] = SUFFIXES.find(([ending]) => name.endsWith(ending)) ?? ["", ""];
  const stem = name.slice(0, name.length - suffix.length) + (suffix === "_throughput_per_user" ? "_speed" : "");
  const words = stem.split("_").map((word) => SHORT[word] ?? word).join(" ");
  return (/^p\d/.test(words) ? words : words.charAt(0).toUpperCase() + words.slice(1)) + (unit && `, ${unit}`);
}

/** 1 if more of a metric is better, -1 if less is, 0 if neither can be said. The same rule as the API's comparison. */
export function direction(metric) {
  if (["num_rejected", "rejected", "gpu_hours"].includes(metric)) return -1;
  if (["_tok_s", "_rps", "_per_user", "_per_gpu", "_reused_ratio"].some((end) => metric.endsWith(end)) || metric.includes("throughput")) return 1;
  return ["_ms", "_gpus", "_s"].some((end) => metric.endsWith(end)) ? -1 : 0;
}

/** "better", "worse", "same", or "" where the direction is unknown. */
export function verdict(metric, value, base, way = direction(metric)) {
  if (value === null || base === null || value === undefined || base === undefined) return "";
  if (value === base) return "same";
  if (!way) return "";
  return (value - base) * way > 0 ? "better" : "worse";
}

/** Names of the metrics that matter most. */
export function mainMetrics(metrics) {
  return MAIN_METRICS.filter((name) => name in metrics);
}

/** The other means and totals; spread and counts of samples are left out. */
export function otherMetrics(metrics) {
  return Object.keys(metrics).filter((name) => !MAIN_METRICS.includes(name) && !DISTRIBUTION.test(name));
}

/** Median of the numbers among values; null without any. */
export function median(values) {
  const known = values.filter((value) => typeof value === "number").sort((a, b) => a - b);
  if (!known.length) return null;
  const middle = known.length >> 1;
  return known.length % 2 ? known[middle] : (known[middle - 1] + known[middle]) / 2;
}

/** Order of candidates under a scalar goal, best first: fewest rejected, then score, then fewer GPUs. */
export function byRank(a, b) {
  return a.rejected - b.rejected || b.score - a.score || a.used_gpus - b.used_gpus || 0;
}
