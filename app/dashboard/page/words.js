// Statuses, reasons and coverage in sentences.

import { number, percent } from "./format.js";

export const REASONS = {
  no_kv_budget: "no memory left for the KV cache",
  kv_capacity_below_one_request: "KV cache smaller than one request",
  over_gpu_budget: "needs more GPUs than the budget",
  backend_cannot_run_shape: "the engine cannot run this shape",
  no_perf_data: "no measured step times",
  context_too_long: "requests longer than the context",
  exceeded_runtime: "the replay took too long",
  objective_undefined: "the objective has no sample",
  sla_not_met: "misses the SLA",
  replay_error: "the replay failed",
  replay_stuck: "the engine came to a standstill",
  worker_lost: "the worker died",
  cancelled: "cancelled",
};

/** A reason code for people; the code itself where there is none. */
export function reason(code) {
  return REASONS[code] ?? code;
}

/** How many of a thing, with the right ending. */
export function count(amount, one, many = `${one}s`) {
  return `${number(amount)} ${amount === 1 ? one : many}`;
}

/** What the coverage of an ended study certifies. */
export function coverage({ evaluated, bounded_out: bounded, skipped, total, exhaustive }) {
  const whole = total === null ? "a space without an end" : count(total, "combination");
  const parts = [`${number(evaluated)} replayed`];
  if (bounded) parts.push(`${number(bounded)} needed no replay, as a bound proves that they are no better, or they cannot end otherwise than one that was replayed`);
  if (skipped) parts.push(`${number(skipped)} left out`);
  const said = `Of ${whole}: ${parts.join(", ")}.`;
  if (exhaustive) return `The whole space is settled: no combination is better than those shown. ${said}`;
  return `Part of the space only: something better may exist. ${said}`;
}

/** A study's progress in one sentence. */
export function progress(study) {
  const { done, trials_total: total, fraction } = study.progress;
  switch (study.status) {
    case "queued": return "Waiting for a worker.";
    case "planning": return "Planning: which deployments fit, and what their traffic is.";
    case "running": return `${number(done)} of ${number(total)} trials asked for so far are done${fraction === null ? "" : `; ${percent(fraction)} of the work`}.`;
    case "succeeded": return `Finished: ${count(done, "trial")}.`;
    case "failed": return `Failed after ${count(done, "trial")}.`;
    default: return `Cancelled after ${count(done, "trial")}.`;
  }
}

/** What stands where candidates would be. */
export function noCandidate(study) {
  return study.finished_at ? "No candidate." : "No candidate yet.";
}

/** What kind of problem a person faces, and what helps. */
export function failure(problem) {
  switch (problem.status) {
    case 0: return "The service does not answer. Is it running? The page tries again by itself.";
    case 401: return "An API key is needed. Enter it with the button “API key” above.";
    case 403: return `${problem.message} Enter another key with the button “API key” above.`;
    case 404: return "There is no such study or candidate, or this key may not see it.";
    default: return problem.message;
  }
}

/** What is settled while a study runs; empty while nothing can be said. */
export function coverageSoFar({ bounded_out: bounded, total }) {
  if (total === null) return "";
  const proven = bounded ? `; ${number(bounded)} of them need no replay: a bound proves that they are no better, or they cannot end otherwise than one that was replayed` : "";
  return `The space has ${count(total, "combination")}${proven}.`;
}

/** The change that would let something fit, if the service knows one. */
export function nearest(problem) {
  const { smallest_gpus: gpus, longest_context_tokens: context, other_hardware: others } = problem.nearest ?? {};
  const ways = [];
  if (gpus) ways.push(`at least ${count(gpus, "GPU")}`);
  if (context) ways.push(`requests of at most ${number(context)} tokens`);
  if (others?.length) ways.push(`other hardware (${others.join(", ")})`);
  return ways.length ? `What would fit: ${ways.join(", or ")}.` : "";
}

/** Who met the SLA. */
export function sla({ met_by: met, least_violating: least }) {
  if (met > 0) return `${count(met, "candidate")} met every bound.`;
  if (!least.length) return "No candidate met every bound.";
  const { trial, sla: { worst_ratio: ratio } } = least[0];
  return `No candidate met every bound. Trial ${trial} comes closest${ratio === null ? "" : `, at ${number(ratio)} times the bound it misses most`}.`;
}
