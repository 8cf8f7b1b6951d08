// How a candidate stands among the others, in sentences; and which candidates nobody can tell apart by their outcome.

import { batching, deploymentName, number } from "./format.js";
import { MAIN_METRICS, median, objectivePhrase, objectiveUnit, sense } from "./metrics.js";
import { knobDifferences } from "./side_by_side.js";
import { count } from "./words.js";

const MOST_SAID = 3; // differences in a sentence; the table has all

/** Whether a goal asks for a front. */
export function isPareto(study) {
  return study.config.goal.target === "pareto";
}

function outcome({ rejected, used_gpus: gpus, objectives, metrics }) {
  return JSON.stringify([rejected, gpus, objectives, MAIN_METRICS.map((name) => metrics[name] ?? null)]);
}

/** Whether two candidates end alike: the main figures and the GPUs are the same. */
export function endAlike(one, other) {
  return outcome(one) === outcome(other);
}

/** The first candidate of each outcome, in order, and how many others end like it: [{ first, alike }]. */
export function outcomes(candidates) {
  const groups = new Map();
  for (const each of candidates) {
    const known = groups.get(outcome(each));
    if (known) known.alike += 1;
    else groups.set(outcome(each), { first: each, alike: 0 });
  }
  return [...groups.values()];
}

/**
 * The candidate to set beside: for the first one the next that ends otherwise, else the first one; null for the only one.
 * ranked: candidates, best first.
 */
export function rivalOf(candidate, ranked) {
  const others = ranked.filter((each) => each.id !== candidate.id);
  if (candidate.rank !== 1) return others[0] ?? null;
  return others.find((each) => !endAlike(each, candidate)) ?? others[0] ?? null;
}

/** What the rival is to a study. */
export function rivalName(study, rival) {
  if (rival.rank === 1) return isPareto(study) ? "the first of the front" : "the winner";
  return isPareto(study) ? `place ${rival.rank}` : "the next best";
}

/** A candidate in a few words, batching included. */
export function fullName({ deployment }) {
  return `${deploymentName(deployment)}, ${batching(deployment)}`;
}

/** Its objectives with their units. */
export function objectivesOf({ objectives }) {
  return Object.entries(objectives).map(([name, value]) => `${objectivePhrase(name)} ${number(value)} ${objectiveUnit(name)}`).join(", ");
}

/** Its place among all. */
export function placeOf(study, { rank }) {
  if (rank === null) return "Not ranked";
  return isPareto(study) ? `Place ${rank} of ${number(study.best?.front_size ?? rank)} on the front` : `Rank ${rank} of ${number(study.progress.feasible)}`;
}

/** Why it stands where it stands: what sets it apart from its rival, from the middle, and from those that end alike. */
export function reasons(study, candidate, { items: ranked, isCut }) {
  const rival = rivalOf(candidate, ranked);
  if (rival === null) return ["It is the only candidate."];
  const said = isPareto(study) ? onFront(candidate, ranked) : [...besideRival(study, candidate, rival), ...besideMiddle(candidate, ranked, isCut)];
  if (candidate.rejected !== rival.rejected) said.push(`It rejects ${number(candidate.rejected)} requests, ${rivalName(study, rival)} ${number(rival.rejected)}: fewer rejections come first.`);
  return [...said, ...besideTwins(candidate, ranked, isCut)];
}

function besideRival(study, candidate, rival) {
  const who = rivalName(study, rival);
  if (endAlike(candidate, rival)) return candidate.rank === 1 ? [] : [`Every main figure is that of ${who}: ${settled(rival, candidate)}.`];
  const [objective] = Object.keys(candidate.objectives);
  const gpus = candidate.objectives[objective] === rival.objectives[objective] && candidate.used_gpus < rival.used_gpus ? "; it comes first with fewer GPUs" : "";
  const set = `That is ${apart(candidate.objectives[objective], rival.objectives[objective], sense(objective))} ${who}, ${fullName(rival)}${gpus}.`;
  const differs = knobDifferences(candidate, rival);
  if (!differs.length || differs.length > MOST_SAID) return [set];
  return [set, `The two differ in ${differs.map(([name, mine, theirs]) => `${name} (${mine}, not ${theirs})`).join(", ")}.`];
}

function besideMiddle(candidate, ranked, isCut) {
  const [objective] = Object.keys(candidate.objectives);
  const middle = median(ranked.map((each) => each.objectives[objective]));
  if (ranked.length < 3 || !middle || middle === candidate.objectives[objective]) return [];
  return [`It is ${apart(candidate.objectives[objective], middle, sense(objective))} the median of ${isCut ? `the first ${number(ranked.length)}` : "all"}.`];
}

function besideTwins(candidate, ranked, isCut) {
  const twins = ranked.filter((each) => each.id !== candidate.id && endAlike(each, candidate));
  if (!twins.length || candidate.rank !== 1) return [];
  const others = `${isCut && twins.length === ranked.length - 1 ? "At least " : ""}${count(twins.length, "other candidate")}`;
  return [`${others} end${twins.length === 1 ? "s" : ""} with the same main figures; the one with the fewest moving parts comes first.`];
}

function settled(winner, candidate) {
  const more = [
    candidate.deployment.mode === "disagg" && winner.deployment.mode !== "disagg" && "a second pool",
    candidate.deployment.router.mode === "kv_router" && winner.deployment.router.mode !== "kv_router" && "a KV router",
    candidate.deployment.planner && !winner.deployment.planner && "a planner",
  ].filter(Boolean);
  return more.length ? `it needs ${more.join(" and ")} more, so it comes later` : "the order of the two has no meaning";
}

function onFront(candidate, ranked) {
  if (!candidate.on_front) return [];
  const names = Object.keys(candidate.objectives);
  const best = names.filter((name) => ranked.every((each) => (each.objectives[name] - candidate.objectives[name]) * sense(name) <= 0));
  return [best.length ? `Nothing has better ${best.map(objectivePhrase).join(" or ")}.` : "Whatever beats it in one objective is worse in another."];
}

function apart(value, base, way) {
  const part = base ? value / base - 1 : 0;
  if (value === base) return "the same as";
  const size = Math.abs(part) < 0.0005 ? "less than 0.1 %" : `${Math.abs(part * 100).toFixed(Math.abs(part) < 0.1 ? 1 : 0)} %`;
  return `${size} ${part * way > 0 ? "better" : "worse"} than`;
}

/** Whether its rank survives other loads and arrivals, in one sentence; empty where that was not tried. */
export function steadiness(study, { rank, stability }) {
  const tried = stability?.variations ?? [];
  if (!tried.length) return "";
  const moved = tried.filter((each) => (isPareto(study) ? each.on_front === false : each.rank !== rank));
  const kept = isPareto(study) ? "stays on the front" : `keeps rank ${rank} among the leaders`;
  if (!moved.length) return `Replayed under ${tried.map(({ variation }) => variation).join(" and ")}, it ${kept}.`;
  const lost = isPareto(study) ? "leaves the front" : "changes rank";
  return `Replayed again, it ${lost} in ${number(moved.length)} of ${number(tried.length)} variations: ${moved.map((each) => `${each.variation}${each.rank ? ` (rank ${each.rank})` : ""}`).join(", ")}. Take it for one of several.`;
}
