// One study, live: progress, charts, candidates, trials that found nothing, warnings, and what the plan left out.

import { getItems, getJson, studyPath } from "./api.js";
import { candidateTable } from "./candidate_table.js";
import { announce, el, refill } from "./dom.js";
import { age, duration, number, percent, studyName, time } from "./format.js";
import { ENDED, follow, throttled } from "./live.js";
import { objectivePhrase } from "./metrics.js";
import { crumbs, fact, section, statusMark } from "./parts.js";
import { getRanking } from "./ranking.js";
import { studyCharts } from "./study_charts.js";
import { excludedShapes, fruitlessTrials, settings, warnings } from "./study_sections.js";
import { winnerCard } from "./winner.js";
import * as words from "./words.js";

const RELOAD_MS = 1_500;
const MOST_POINTS = 2_000;
const MODES = { live: "live", polling: "asked every 2 s", waiting: "the service does not answer; trying again" };
const POINT_FIELDS = "id,trial,rank,on_front,score,objectives,used_gpus,rejected,created_at,deployment";

/** Fill the place; following the study goes on until the signal. */
export async function showStudy(place, signal, studyId) {
  const study = await getJson(studyPath(studyId), signal);
  const view = makeView(study, signal);
  const lists = await loadLists(study, signal);
  place.replaceChildren(...view.nodes);
  view.drawHead(study);
  view.drawLists(study, lists);
  if (!ENDED.has(study.status)) followStudy(study, view, signal);
}

async function loadLists(study, signal) {
  const path = (...parts) => studyPath(study.id, ...parts);
  const { progress } = study;
  const fruitless = ["infeasible", "unsupported", "failed", "timed_out", "cancelled"].filter((status) => progress[status] > 0);
  const [ranked, points, plan, ...trials] = await Promise.all([
    getRanking(study, signal),
    getItems(`${path("candidates")}?view=all&fields=${POINT_FIELDS}`, signal, MOST_POINTS),
    planOf(study, signal),
    ...fruitless.map((status) => getItems(`${path("trials")}?status=${status}`, signal, MOST_POINTS)),
  ]);
  return { ranked, points, plan, trials: trials.flatMap((each) => each.items) };
}

async function planOf(study, signal) {
  if (study.status === "queued" || study.status === "planning") return null;
  try {
    return await getJson(studyPath(study.id, "plan"), signal);
  } catch (error) {
    if (error.status === 409) return null; // It ended before there was one.
    throw error;
  }
}

function followStudy(study, view, signal) {
  const reload = throttled(async () => {
    try {
      const fresh = await getJson(studyPath(study.id), signal);
      const lists = await loadLists(fresh, signal);
      if (signal.aborted) return;
      view.drawHead(fresh);
      view.drawLists(fresh, lists);
    } catch (error) {
      if (!signal.aborted) view.say(words.failure(error));
    }
  }, RELOAD_MS, signal);
  let status = study.status;
  const onSnapshot = (snapshot) => {
    view.drawHead({ ...study, ...snapshot });
    if (snapshot.status !== status) announce(`The study is ${snapshot.status}.`);
    status = snapshot.status;
    reload();
  };
  const onMode = (mode) => view.say(MODES[mode]);
  follow(study.id, study.version, { onSnapshot, onMode }, signal)
    .then(() => view.say(""), (error) => signal.aborted || view.say(words.failure(error)));
}

function makeView(study, signal) {
  const goal = study.config.goal;
  const isPareto = goal.target === "pareto";
  const part = () => el("div", {});
  const [head, answer, facts, problem, advice, fruitless, excluded, rest] = Array.from({ length: 8 }, part);
  const mode = el("span", { class: "mode", role: "status" });
  const charts = studyCharts(study, (id) => { location.hash = `#/studies/${study.id}/candidates/${id}`; });
  const table = candidateTable(study, isPareto);
  const nodes = [
    crumbs(["Studies", "#/"], [studyName(study)]),
    el("h1", {}, studyName(study)),
    el("p", { class: "lead" }, lead(study), " ", mode),
    head, answer, facts, problem, advice,
    section(isPareto ? "The front" : "The ranking", charts.node),
    section("Candidates", table.node),
    section("Trials without a result", fruitless),
    section("Shapes not searched", excluded),
    section("What it rests on", rest),
  ];
  return {
    nodes,
    say: (text) => refill(mode, text),
    drawHead(now) {
      refill(head, progressLine(now));
      refill(facts, headFacts(now));
      refill(problem, problemOf(now));
    },
    drawLists(now, { ranked, points, plan, trials }) {
      if (signal.aborted) return;
      refill(answer, winnerCard(now, ranked));
      refill(advice, warnings(now, plan));
      charts.draw(now, ranked.items, points);
      table.draw(now, ranked);
      refill(fruitless, fruitlessTrials(now, trials));
      refill(excluded, excludedShapes(plan));
      refill(rest, settings(now));
    },
  };
}

function lead({ config }) {
  const { search_space: space, goal } = config;
  const target = goal.target === "pareto"
    ? `front of ${(goal.pareto_objectives ?? ["throughput_per_gpu", "throughput_per_user"]).map(objectivePhrase).join(" and ")}`
    : `best ${objectivePhrase(goal.target)}`;
  return `${space.model_name} on at most ${words.count(space.gpu_budget, "GPU")} of type ${space.hardware_sku}; looking for the ${target}.`;
}

function progressLine(study) {
  const { fraction } = study.progress;
  return el("div", { class: "progress-line" },
    fraction === null ? !ENDED.has(study.status) && el("progress", { "aria-label": "progress" }) : el("progress", { max: 1, value: fraction, "aria-label": "progress" }),
    el("span", {}, words.progress(study)));
}

function headFacts(study) {
  const { progress } = study;
  const isOver = ENDED.has(study.status);
  return [
    el("dl", { class: "facts" },
      fact("Status", statusMark(study.status), study.cancel_requested && !isOver ? "being cancelled" : null),
      fact("Done", progress.fraction === null ? "–" : percent(progress.fraction), progress.per_second ? `${number(progress.per_second)} trials/s` : null),
      isOver
        ? fact("Took", study.started_at ? duration((Date.parse(study.finished_at) - Date.parse(study.started_at)) / 1000) : "–", `ended ${age(study.finished_at)}`)
        : fact("Time left", progress.eta_s === null ? "unknown yet" : duration(progress.eta_s), progress.eta_s === null ? null : "about, at this pace"),
      fact("Candidates", number(progress.feasible), progress.done > progress.feasible ? `${number(progress.done - progress.feasible)} trials gave none` : null),
      fact("Submitted", age(study.created_at), time(study.created_at))),
    coverageOf(study, isOver),
    study.sla && el("p", {}, el("strong", {}, "SLA. "), words.sla(study.sla)),
  ];
}

function coverageOf({ coverage }, isOver) {
  if (!coverage) return null;
  const said = isOver ? words.coverage(coverage) : words.coverageSoFar(coverage);
  return said && el("p", { class: "coverage" }, el("strong", {}, "Coverage. "), said);
}

function problemOf({ problem }) {
  if (problem === null) return null;
  const reasons = problem.reasons ?? [];
  return el("div", { class: "notice bad", role: "alert" },
    el("strong", {}, problem.title), ". ", problem.detail, " ", words.nearest(problem),
    reasons.length > 0 && el("ul", {}, reasons.map(({ code, count, example }) => el("li", {},
      `${words.reason(code)} (${number(count)} times)`, example?.detail && `, for example: ${example.detail}`))));
}
