// Teaching: the model learns from the labels in the background; what that changed; and back.

import { $, announce, count, h, percent, show } from "./dom.js";
import { post } from "./server.js";
import { changed, known, refresh, unsent } from "./state.js";

let problem = "";
let seen = sessionStorage.getItem("bayescal-seen") ?? ""; // the job whose result was closed
let print = "";
let told = "";

/** A job by its number, which begins anew with the server. */
const nameOf = (job) => `${known.session} ${job.number}`;

async function act(what) {
  problem = "";
  try {
    await refresh(); // labels that are still here go first
    if (unsent()) throw new Error("The server does not have all labels yet. Try again in a moment.");
    await post(`/page/${what}`);
  } catch (error) {
    problem = error.message;
  }
  await refresh();
  changed();
}

export function drawTeach() {
  const { job, model, newLabels } = known;
  const bar = $("teach");
  if (!model) { show(bar, false); return; }
  const now = JSON.stringify([known.session, job, model.number, model.can_undo, newLabels, problem, seen]);
  if (now === print) return;
  print = now;
  const parts = contents(job, model, newLabels);
  show(bar, parts.length > 0);
  const focused = document.activeElement?.closest("#teach button")?.textContent;
  bar.replaceChildren(...parts);
  if (focused) [...bar.querySelectorAll("button")].find((b) => b.textContent === focused)?.focus();
}

function contents(job, model, newLabels) {
  if (job?.state === "running") return running(job);
  const parts = [];
  if (job && job.kind === "teach" && nameOf(job) !== seen) parts.push(outcome(job, model));
  if (problem) parts.push(h("p", { class: "means unsure", role: "alert" }, problem));
  if (newLabels && !model.cannot_learn) {
    parts.push(h("div", { class: "row" },
      h("span", {}, h("strong", {}, count(newLabels, "label")), " the model has not learned from.",
        newLabels < 10 && h("span", { class: "quiet hint" }, " A handful per class is a good start.")),
      h("button", { type: "button", class: "main", onclick: () => act("teach") }, "Teach the model")));
  } else if (newLabels) {
    parts.push(h("div", { class: "row" }, h("span", {}, h("strong", {}, count(newLabels, "label")), ` kept. ${model.cannot_learn}`)));
  } else if (model.number && !parts.length) {
    parts.push(h("div", { class: "row" }, h("span", {}, `In use: the model taught with ${count(model.about.labels ?? 0, "label")}.`),
      undoButton()));
  }
  return parts;
}

const undoButton = () =>
  h("button", { type: "button", onclick: () => act("undo").then(() => announce("The model before is in use again")) }, "Undo teaching");

export function progressOf(job) {
  const share = job.total ? job.done / job.total : null;
  const bar = h("progress", { "aria-label": job.title, max: 1 });
  if (share !== null) bar.value = share;
  return [bar, h("span", { class: "quiet" }, `${job.title}${share === null ? "" : ` · ${percent(share)}`}`)];
}

function running(job) {
  return [h("div", { class: "row" }, h("strong", {}, job.kind === "teach" ? "Learning from your labels" : "Learning"),
    ...progressOf(job), h("button", { type: "button", onclick: () => act("stop") }, "Stop"))];
}

function outcome(job, model) {
  const close = h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => {
    seen = nameOf(job);
    sessionStorage.setItem("bayescal-seen", seen);
    changed();
  } }, "✕");
  if (job.state !== "done") return h("div", { class: "row" }, h("p", {}, `Not taught: ${job.message}`), close);
  const found = job.result;
  if (model.number !== found.number) {
    return h("div", { class: "row outcome" },
      h("p", {}, "Undone: the model before answers again. Your labels are kept."), close);
  }
  const compared = found.before === null || found.after === null
    ? "There were too few labels to compare before and after."
    : h("span", {}, h("strong", {}, `${percent(found.before)} → ${percent(found.after)}`),
      ` right on your ${count(found.compared, "labelled image")}, each answered by a model that had not learned from it. `);
  const others = found.others ? `${found.changed} of ${count(found.others, "other answer")} changed.` : "";
  if (told !== nameOf(job)) {
    told = nameOf(job);
    announce(`Taught. ${found.before === null ? "" : `Before ${percent(found.before)}, after ${percent(found.after)}.`} ${others}`);
  }
  return h("div", { class: "row outcome" },
    h("div", {}, h("p", {}, "Taught. ", compared, others), figure(found)),
    model.can_undo && undoButton(), close);
}

/** Before and after as two bars. */
function figure(found) {
  if (found.before === null || found.after === null) return null;
  const bar = (name, share) => h("li", {}, h("span", { class: "name" }, name),
    h("span", { class: "track", "aria-hidden": "true" }, h("span", { css: { width: `${100 * share}%` } })),
    h("span", { class: "number" }, percent(share)));
  return h("ul", { class: "compare" }, bar("before", found.before), bar("after", found.after));
}
