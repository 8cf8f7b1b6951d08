// The ranked candidates of a study, each with its main figures only, so that thousands can be had.

import { getItems, studyPath } from "./api.js";
import { MAIN_METRICS } from "./metrics.js";

const MOST = 2_000;
const PREFIX = "metrics.";
const MEMBERS = ["id", "trial", "rank", "on_front", "score", "objectives", "used_gpus", "rejected", "deployment", "stability"];

/** { items, isCut }: candidates, best first, and whether there are more. */
export async function getRanking(study, signal) {
  const names = MAIN_METRICS.filter((name) => study.config.goal.sla || !name.startsWith("goodput")); // The API refuses what no row has.
  const fields = [...MEMBERS, ...names.map((name) => PREFIX + name)].join(",");
  const { items, isCut } = await getItems(`${studyPath(study.id, "candidates")}?fields=${fields}`, signal, MOST);
  return { items: items.map((row) => ({ ...row, metrics: Object.fromEntries(names.map((name) => [name, row[PREFIX + name]])) })), isCut };
}
