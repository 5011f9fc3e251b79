// How good is it: what to expect elsewhere, where it is right and where not, and whether its confidence can be trusted.

import { $, count, explain, h, percent, svg } from "./dom.js";
import { get } from "./server.js";
import { known } from "./state.js";

const ON = {
  environments: "Every environment was left out in turn, and answered by models that had never seen it.",
  folds: "All images come from one environment, so a fifth of them was left out in turn. Another place may be harder.",
  validation: "Measured on validation images, from the same environments as those it learned from. Another place may be harder.",
};

let print = "";

export async function drawQuality() {
  const section = $("quality");
  const labelled = [...known.images.values()].filter((entry) => entry.label).map((entry) => [entry.id, entry.label.class]);
  const now = JSON.stringify([known.session, known.model?.number, labelled]);
  if (now === print) return;
  print = now;
  let found;
  try {
    found = await get("/page/quality");
  } catch (error) {
    print = "";
    section.replaceChildren(h("p", { class: "means" }, error.message));
    return;
  }
  section.replaceChildren(
    h("h2", {}, "How good is it?"), ...headline(found),
    ...(found.checked ? measured(found.checked, "Where it is right", ON[found.checked.on]) : [unchecked()]),
    ...(found.yours
      ? measured(found.yours, "On the images you labelled here",
        `${count(found.yours.images, "image")} that the model in use has not learned from. If you labelled mostly what it got wrong, this is worse than it is.`)
      : [h("p", { class: "quiet" }, found.taught
        ? "The model has learned from the images you labelled here. Label others, and this page also says how it does on them."
        : "Label some images, and this page also says how the model does on them.")]));
}

const unchecked = () =>
  h("p", { class: "means" }, "This model has no record of how it was checked: it was made by an older version, or had no images to check on. Fit it again to see more here.");

function headline({ expected, checked }) {
  if (!expected) {
    return checked?.accuracy === null || !checked ? [] : [h("p", { class: "sentence" },
      `It was right on ${percent(checked.accuracy)} of ${count(checked.images, "image")} kept apart.`)];
  }
  const numbers = [
    ["in a place it has not seen", expected.unseen],
    ["in the places it has seen", expected.seen],
    expected.worst && [`in “${expected.worst}”, the hardest when left out`, expected.worst_accuracy],
  ].filter((one) => one && one[1] !== null);
  return [
    h("p", { class: "sentence" }, expected.sentence),
    h("ul", { class: "cards" }, numbers.map(([what, share]) =>
      h("li", {}, h("strong", {}, percent(share)), h("span", {}, what)))),
    expected.unseen !== null && interval(expected),
  ].filter(Boolean);
}

/** The interval for a new environment, on a line from 0 to 100 %. */
function interval({ unseen, low, high, level, worst, worst_accuracy: hardest }) {
  const x = (share) => 20 + 560 * share;
  const text = `Expected accuracy in a new environment: ${percent(unseen)}, between ${percent(low)} and ${percent(high)} in ${percent(level)} of them`;
  return h("figure", {},
    svg("svg", { viewBox: "0 0 600 64", role: "img", "aria-label": text, class: "interval" },
      svg("line", { x1: x(0), x2: x(1), y1: 26, y2: 26, class: "axis" }),
      [0, 0.25, 0.5, 0.75, 1].map((t) => svg("text", { x: x(t), y: 54, class: "tick", "text-anchor": "middle" }, percent(t))),
      svg("rect", { x: x(low), width: Math.max(2, x(high) - x(low)), y: 16, height: 20, rx: 10, class: "range" }),
      worst ? svg("circle", { cx: x(hardest), cy: 26, r: 5, class: "hard" }) : null,
      svg("circle", { cx: x(unseen), cy: 26, r: 8, class: "dot" })),
    h("figcaption", { class: "quiet" }, 
      `${text}.${worst ? ` The ring: “${worst}”, ${percent(hardest)}.` : ""}`));
}

function measured(found, title, about) {
  return [h("section", { class: "measured", "aria-label": title }, h("h3", {}, title),
    h("p", { class: "quiet" }, about),
    h("div", { class: "columns" },
      h("div", {},
        found.environments.length > 1 || found.environments[0]?.name !== "all"
          ? [h("h4", {}, "Each environment"), bars(found.environments)] : [],
        h("h4", {}, "Each class, the hardest first"),
        bars([...found.classes].sort((a, b) => (a.accuracy ?? 2) - (b.accuracy ?? 2)))),
      h("div", {}, h("h4", {}, "Can its confidence be trusted?"), calibration(found), ...selective(found))))];
}

function selective(found) {
  if (found.coverage === null || found.selective_accuracy === null) return [];
  return [h("p", {}, `It says “unsure” to ${percent(1 - found.coverage)} of the images. Of the others it gets `,
    h("strong", {}, percent(found.selective_accuracy)), ` right; of all, ${percent(found.accuracy)}.`)];
}

/** Accuracy per name, as a table that looks like bars. */
function bars(rows) {
  return h("table", { class: "bars" },
    h("thead", {}, h("tr", {}, ["name", "accuracy", "images"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, h("th", { scope: "row" }, row.name),
      h("td", {}, h("div", {}, h("span", { class: "track", "aria-hidden": "true" },
        h("span", { css: { width: `${100 * (row.accuracy ?? 0)}%` } })), h("span", { class: "number" }, percent(row.accuracy)))),
      h("td", { class: "quiet" }, row.images.toLocaleString("en"))))));
}

/** Confidence against accuracy: on the line, the one can be read as the other. */
function calibration(found) {
  const { count: counts, confidence, accuracy } = found.reliability;
  const bins = counts.map((n, i) => ({ n, x: confidence[i], y: accuracy[i] })).filter((bin) => bin.n);
  const most = Math.max(...bins.map((bin) => bin.n));
  const [left, side] = [66, 300];
  const x = (share) => left + side * share;
  const y = (share) => 12 + side * (1 - share);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const text = `Calibration: ${bins.map((bin) => `of answers with ${percent(bin.x)} confidence ${percent(bin.y)} were right (${bin.n})`).join("; ")}`;
  const points = bins.map((bin) => explain(
    svg("circle", { cx: x(bin.x), cy: y(bin.y), r: 4 + 9 * Math.sqrt(bin.n / most), class: "bin", tabindex: "0" }),
    `Of ${count(bin.n, "answer")} with about ${percent(bin.x)} confidence, ${percent(bin.y)} were right.`));
  return h("figure", {},
    svg("svg", { viewBox: `0 0 ${left + side + 30} ${side + 60}`, class: "calibration", role: "group", "aria-label": text },
      ticks.map((t) => [
        svg("line", { x1: x(0), x2: x(1), y1: y(t), y2: y(t), class: "gridline" }),
        svg("line", { x1: x(t), x2: x(t), y1: y(0), y2: y(1), class: "gridline" }),
        svg("text", { x: x(0) - 8, y: y(t) + 4, "text-anchor": "end", class: "tick" }, percent(t)),
        svg("text", { x: x(t), y: y(0) + 18, "text-anchor": "middle", class: "tick" }, percent(t)),
      ]).flat(),
      svg("line", { x1: x(0), y1: y(0), x2: x(1), y2: y(1), class: "ideal" }),
      bins.map((bin) => svg("line", { x1: x(bin.x), x2: x(bin.x), y1: y(bin.x), y2: y(bin.y), class: "gap" })),
      points,
      svg("text", { x: x(0.5), y: y(0) + 40, "text-anchor": "middle", class: "axis-name" }, "confidence"),
      svg("text", { x: 12, y: y(0.5), "text-anchor": "middle", class: "axis-name", transform: `rotate(-90 12 ${y(0.5)})` }, "right")),
    h("figcaption", { class: "quiet" }, `On the dashed line confidence is what it says; below it, the model is too sure. Off by ${(100 * (found.ece ?? 0)).toFixed(1)} points on average. Larger dots are more images.`));
}
