// The page: its views, and what follows from every change.

import { startAdding, startCamera } from "./adding.js";
import { $, count, explain, h, say, show, startTips } from "./dom.js";
import { currentImage, drawNothing, setCurrent, showImages, startGrid } from "./grid.js";
import { startLabelling } from "./labelling.js";
import { drawPanel, openPanel } from "./panel.js";
import { drawQuality } from "./quality.js";
import { get } from "./server.js";
import { drawStart } from "./start.js";
import { known, onChange, onFailure, start } from "./state.js";
import { drawTeach } from "./teach.js";
import { startTheme } from "./theme.js";
import { chosen, classes, counts, view, VIEWS } from "./view.js";

const SPOKEN = 100; // characters that names of classes take in a sentence

let tab = "images";
let queued = ""; // what the queue was asked for

function draw() {
  show($("offline"), !known.connected);
  const ready = known.model !== null;
  document.title = ready ? `${known.model.name} – bayescal` : "bayescal";
  for (const part of ["tabs", "download"]) show($(part), ready);
  show($("images"), ready && tab === "images");
  show($("quality"), ready && tab === "quality");
  drawStart();
  if (!ready) return;
  const { name, number, classes: own, environments } = known.model;
  say($("model-name"), `${name}${number ? ` · taught, version ${number}` : ""} · ${count(own.length, "class")} · ${count(environments.length, "environment")}`);
  document.body.classList.toggle("empty", known.images.size === 0);
  show($("filters"), known.images.size > 0);
  say($("tells"), `It tells apart ${listed(own)}, and says how sure it is. Images stay on the machine of this server.`);
  drawViews();
  drawClasses();
  showImages(chosen());
  drawNothing(view.which);
  drawPanel();
  drawTeach();
  if (tab === "quality") drawQuality();
  if (view.which === "next") askQueue();
}

/** Names in a sentence, and how many are left out. */
function listed(names) {
  let length = 0;
  const first = names.filter((name, i) => (length += name.length + 2) <= SPOKEN || i === 0);
  const last = names.length > first.length ? `${(names.length - first.length).toLocaleString("en")} more` : first.pop();
  return first.length ? `${first.join(", ")} and ${last}` : last;
}

function drawViews() {
  const numbers = counts();
  for (const [name] of VIEWS) {
    const chip = $(`view-${name}`);
    say(chip.querySelector(".n"), numbers[name].toLocaleString("en"));
    chip.setAttribute("aria-checked", String(view.which === name));
    chip.tabIndex = view.which === name ? 0 : -1;
  }
}

function drawClasses() {
  const select = $("by-class");
  const names = classes();
  if (select.dataset.print === names.join("\n")) return;
  select.dataset.print = names.join("\n");
  select.replaceChildren(h("option", { value: "" }, "all answers"), ...names.map((name) => h("option", { value: name }, name)));
  select.value = names.includes(view.class) ? view.class : (view.class = "");
}

/** Which image to label next, anew whenever the model or the labels have changed. */
async function askQueue() {
  const labelled = [...known.images.values()].filter((entry) => entry.label).length;
  const now = [known.session, known.model.number, known.images.size, Math.floor(labelled / 5)].join();
  if (now === queued) return;
  queued = now;
  try {
    view.queue = (await get("/page/queue")).images;
    showImages(chosen());
  } catch { queued = ""; }
}

function startViews() {
  $("views").append(...VIEWS.map(([name, text, meaning]) => explain(
    h("button", { type: "button", role: "radio", id: `view-${name}`, class: `chip ${name}`, onclick: () => setView(name) },
      text, " ", h("span", { class: "n" })), meaning)));
  arrows($("views"), (button) => button.click());
  for (const [id, key] of [["by-class", "class"], ["sort", "sort"], ["search", "search"]]) {
    $(id).addEventListener("input", () => { view[key] = $(id).value; $("scroll").scrollTop = 0; draw(); });
  }
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") setCurrent(chosen()[0] ?? null, true);
  });
}

function setView(name) {
  view.which = name;
  $("scroll").scrollTop = 0;
  $("sort").disabled = name === "next";
  draw();
  if (currentImage() && !chosen().includes(currentImage())) setCurrent(null);
}

/** Arrow keys in a row of buttons of which one is chosen. */
function arrows(row, choose) {
  row.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = [...row.querySelectorAll("button")];
    const next = buttons[(buttons.indexOf(document.activeElement) + by + buttons.length) % buttons.length];
    next.focus();
    choose(next);
  });
}

function startTabs() {
  const open = (name) => {
    tab = name;
    for (const one of ["images", "quality"]) {
      $(`tab-${one}`).setAttribute("aria-selected", String(one === name));
      $(`tab-${one}`).tabIndex = one === name ? 0 : -1;
    }
    draw();
  };
  for (const name of ["images", "quality"]) $(`tab-${name}`).addEventListener("click", () => open(name));
  arrows($("tabs"), (button) => button.click());
}

function startHelp() {
  const keys = [
    [["1 … 9"], "label the image with that class, and go on to the next"],
    [["A … Z"], "type another class, also a new one"],
    [["Enter"], "confirm the answer"], [["⌫"], "take the label back"], [["Ctrl Z"], "undo the last label"],
    [["← ↑ → ↓"], "move"], [["Shift ← ↑ → ↓", "Ctrl click", "Ctrl A"], "select several, and label them at once"],
    [["/"], "search"], [["Esc"], "close, or give up the selection"],
  ];
  const meanings = VIEWS.filter(([name]) => ["unsure", "unfamiliar"].includes(name));
  $("help").append(
    h("h2", { id: "help-title", tabindex: "-1", autofocus: true }, "Keys and meanings"),
    h("dl", { class: "keys" }, keys.flatMap(([own, what]) => [h("dt", {}, own.map((key) => h("kbd", {}, key))), h("dd", {}, what)])),
    h("dl", {}, meanings.flatMap(([name, text, what]) => [h("dt", {}, h("span", { class: `badge ${name}` }, text)), h("dd", {}, what)])),
    h("p", { class: "quiet", id: "help-kept" }),
    h("button", { type: "button", class: "main", onclick: () => $("help").close() }, "Close"));
  const open = () => {
    say($("help-kept"), known.model ? `Images and labels are kept in ${known.model.labels} on the machine of this server, and are sent nowhere.` : "");
    $("help").showModal();
  };
  $("help-open").addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if (event.key === "?" && !event.target.closest("input, textarea, dialog")) open();
  });
}

/** The list of downloads closes as lists do: after a choice, by Escape, when one goes elsewhere. */
function startDownload() {
  const menu = $("download");
  const close = () => { menu.open = false; };
  menu.querySelector("ul").addEventListener("click", close);
  menu.addEventListener("focusout", (event) => { if (event.relatedTarget && !menu.contains(event.relatedTarget)) close(); });
  document.addEventListener("pointerdown", (event) => { if (!menu.contains(event.target)) close(); });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    close();
    menu.querySelector("summary").focus();
  });
}

function startPanelKeys() {
  document.addEventListener("keydown", (event) => {
    const elsewhere = event.target.closest("input:not(#panel input), select, dialog, .menu");
    if (event.key === "Escape" && !elsewhere && !$("panel").hidden) {
      const id = currentImage();
      openPanel(null);
      document.querySelector(`.tile[data-id="${id}"]`)?.focus({ preventScroll: true });
    }
  });
}

startTheme();
startTips();
startTabs();
startViews();
startHelp();
startGrid({ open: openPanel, changed: drawPanel });
startAdding();
startCamera();
startLabelling();
startPanelKeys();
startDownload();
onFailure((sentence) => {
  say($("toast-text"), sentence);
  show($("toast"), true);
});
onChange(draw);
start().catch((error) => {
  $("offline").textContent = error.message;
  show($("offline"), true);
});
