// One image: large, with every class's probability, why, what the model has seen that is like it, and keys to label it.

import { $, explain, h, percent, show } from "./dom.js";
import { badges, clearSelection, currentImage, describeSelection, selection, setCurrent, shownIds } from "./grid.js";
import { give, keyed, openClasses, place, setPlace } from "./labelling.js";
import { get, pictureOf, pictureOfTraining, post } from "./server.js";
import { changed, known, refresh } from "./state.js";
import { classes } from "./view.js";

const SHOWN = 8; // classes before "all"
const SHORT = 14; // letters of a name beside which there is room

let shown = null; // the id in the panel
let print = ""; // of what is drawn
let details = null;
let loading = null;

export function openPanel(id) {
  if (id !== shown) {
    shown = id;
    details = null;
    loading?.abort();
    if (id !== null) load(id);
  }
  drawPanel();
}

async function load(id) {
  loading = new AbortController();
  const model = known.model?.number;
  try {
    const found = await get(`/page/images/${id}`, loading.signal);
    if (id === shown) details = { ...found, model };
  } catch (error) {
    if (error.name === "AbortError" || id !== shown) return;
    details = { problem: error.message, model };
  }
  drawPanel();
}

/** After every change of what is known. */
export function drawPanel() {
  const entry = known.images.get(shown);
  const panel = $("panel");
  show(panel, Boolean(entry));
  document.body.classList.toggle("with-panel", Boolean(entry));
  if (!entry) { print = ""; return; }
  if (details && details.model !== known.model?.number) { // another model says something else
    details = null;
    load(shown);
  }
  const now = JSON.stringify([entry, details, selection(), known.model?.number, classes(), place()]);
  if (now === print) return;
  print = now;
  const focused = document.activeElement?.closest?.("#panel [data-focus]")?.dataset.focus;
  panel.replaceChildren(
    top(entry), h("img", { class: "large", src: pictureOf(shown, 1280), alt: entry.name }),
    verdict(entry), labelling(entry), probabilities(entry), why(entry), neighbours(), foot(entry));
  if (focused) panel.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

function top(entry) {
  const ids = shownIds();
  const i = ids.indexOf(entry.id);
  const step = (by, text, sign) =>
    h("button", { type: "button", class: "plain", "data-focus": text, "aria-label": text, disabled: !ids[i + by],
      onclick: () => setCurrent(ids[i + by]) }, sign);
  return h("div", { class: "panel-top" },
    h("h2", {}, selection() ? describeSelection() : entry.name),
    step(-1, "Previous image", "‹"), step(1, "Next image", "›"),
    h("button", { type: "button", class: "plain", "aria-label": "Close", "data-focus": "close", onclick: close }, "✕"));
}

function close() {
  const id = currentImage();
  clearSelection();
  openPanel(null);
  setTimeout(() => document.querySelector(`.tile[data-id="${id}"]`)?.focus({ preventScroll: true }));
}

function verdict(entry) {
  const { answer, label } = entry;
  return h("div", { class: "verdict" },
    h("p", { class: "answer" }, h("strong", {}, answer.class), " ", h("span", {}, percent(answer.confidence)), " ",
      ...badges(entry)),
    label && h("p", { class: "yours" }, `✓ Your label: ${label.class}`, h("span", { class: "quiet" }, ` · ${label.environment}`)),
    answer.unfamiliar
      ? h("p", { class: "means unfamiliar" }, "Unlike all images the model has learned from: the answer means little, however confident it is.")
      : answer.unsure &&
        h("p", { class: "means unsure" }, known.model.unsure_below < 1
          ? `Of the answers that were right on images left out of training, 95 % were more confident than ${percent(known.model.unsure_below)}; this one is not. Take it as a suggestion.`
          : "No answer was right on images left out of training, so all of this model's answers are unsure. Take this one as a guess."));
}

/** A class of elements in which names get a line of their own, where one of them is long. */
const withRoom = (name, names) => (names.some((one) => one.length > SHORT) ? `${name} long` : name);

function labelling(entry) {
  const own = keyed(entry);
  const buttons = own.map((name, i) =>
    h("button", { type: "button", class: "give", "aria-pressed": String(entry.label?.class === name),
      "data-focus": `give ${i}`, onclick: () => give(name) }, h("kbd", {}, String(i + 1)), h("span", {}, name)));
  const known_ = [...new Set(["here", ...(known.model?.environments ?? [])])];
  return h("section", { class: "label", "aria-label": "Label" },
    h("h3", {}, selection() ? `What do these ${selection()} show?` : "What does it show?"),
    h("div", { class: withRoom("give-all", own) }, buttons,
      h("button", { type: "button", class: "give other", "data-focus": "other", onclick: () => openClasses() },
        h("kbd", {}, "A–Z"), h("span", {}, classes().length > 9 ? "type a class" : "another class")),
      entry.label && h("button", { type: "button", class: "give other", "data-focus": "back", onclick: () => give(null) },
        h("kbd", {}, "⌫"), h("span", {}, "no label"))),
    explain(h("label", { class: "place" }, "Taken in ",
      h("input", { type: "text", value: place(), list: "places", maxlength: 300, "data-focus": "place",
        onchange: (event) => { setPlace(event.target.value); changed(); } }),
      h("datalist", { id: "places" }, known_.map((name) => h("option", { value: name })))),
    "The environment of the images you label: a place, a camera, a season. Images of one new place belong under one name; the model then learns how places differ."));
}

function probabilities(entry) {
  const all = details?.probabilities ?? entry.answer.top;
  const row = ({ class: name, probability }) =>
    h("li", {}, h("span", { class: "name" }, name),
      h("span", { class: "track", "aria-hidden": "true" }, h("span", { css: { width: `${100 * probability}%` } })),
      h("span", { class: "number" }, percent(probability)));
  return h("section", { class: withRoom("probabilities", all.map((one) => one.class)), "aria-label": "Probabilities" },
    h("ol", {}, all.slice(0, SHOWN).map(row)),
    all.length > SHOWN && h("details", {}, h("summary", {}, `All ${all.length} classes`),
      h("ol", { start: SHOWN + 1 }, all.slice(SHOWN).map(row))));
}

function why(entry) {
  const { answer } = entry;
  const facts = [h("li", {}, "Looks most like ", h("strong", {}, answer.environment),
    " among the places the model has learned from.")];
  if (answer.familiarity !== null) {
    const far = answer.familiarity;
    const words = far < -2 ? "far less like them than usual" : far < -1 ? "less like them than usual" : "as usual";
    facts.push(explain(h("li", { tabindex: "0" }, `Familiar: ${words} (${far.toFixed(1).replace("-", "−")}).`),
      "How much it is like the training images and the class names, in standard deviations; 0 is usual."));
  }
  if (details?.entropy > 0.05) {
    const parts = [[details.disagreement, "because its methods disagree"], [details.mutual_information, "because it has seen too little"]]
      .map(([part, reason]) => [Math.min(1, Math.max(0, part) / details.entropy), reason])
      .filter(([share]) => share >= 0.005)
      .map(([share, reason]) => `${percent(share)} ${reason}, `);
    const made = parts.length ? `: ${parts.join("")}the rest lies in the image` : "";
    facts.push(explain(h("li", { tabindex: "0" }, `Uncertainty ${details.entropy.toFixed(2)}${made}.`),
      "Entropy in nats: 0 is sure. What comes from having seen too little goes away with more labels."));
  }
  return h("section", { class: "why" }, h("h3", {}, "Why"), h("ul", {}, facts));
}

function neighbours() {
  if (!details) return h("p", { class: "quiet" }, "Looking for similar training images …");
  if (details.problem) return h("p", { class: "means" }, details.problem);
  if (!details.neighbours.length) {
    return h("p", { class: "quiet" }, "The model keeps none of the images it has learned from, so none can be shown beside this one.");
  }
  return h("section", { class: "near" }, h("h3", {}, "Most similar images it has learned from"),
    h("ul", {}, details.neighbours.map((one) => {
      const image = h("img", { alt: "", loading: "lazy",
        src: pictureOfTraining(known.session, known.model.number, one.number) });
      image.addEventListener("error", () => image.replaceWith(
        explain(h("span", { class: "gone", tabindex: "0" }, "gone"), "The file is not where it was, or has changed. The model keeps what it learned from it.")), { once: true });
      return h("li", {}, image, h("span", { class: "name" }, one.class),
        h("span", { class: "quiet" }, `${one.environment} · ${one.similarity.toFixed(2)}`));
    })));
}

function foot(entry) {
  const remove = async () => {
    const ids = shownIds();
    const next = ids[ids.indexOf(entry.id) + 1] ?? ids[ids.indexOf(entry.id) - 1] ?? null;
    await post("/page/removed", { images: [entry.id] });
    known.images.delete(entry.id);
    setCurrent(next, true);
    await refresh();
  };
  return h("p", { class: "panel-foot" },
    h("button", { type: "button", class: "plain", "data-focus": "remove", onclick: remove }, "Remove this image"));
}

