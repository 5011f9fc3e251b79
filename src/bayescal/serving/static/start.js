// Without a model: choose a folder on this machine, see what is in it, learn from it.

import { $, announce, count, h, show } from "./dom.js";
import { get, post } from "./server.js";
import { changed, known, refresh } from "./state.js";
import { progressOf } from "./teach.js";

const chosen = { path: "", reading: {}, found: null, problem: "", listing: null, busy: false, output: "" };
let print = "";

export function drawStart() {
  const section = $("start");
  show(section, known.session !== null && known.model === null);
  if (section.hidden) return;
  const now = JSON.stringify([chosen, known.job, known.local]);
  if (now === print) return;
  print = now;
  const focused = document.activeElement?.dataset?.focus;
  section.replaceChildren(...contents());
  if (focused) section.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
}

function contents() {
  const title = h("h1", { id: "start-title" }, "What should it learn to tell apart?");
  if (known.why) return [h("h1", { id: "start-title" }, "bayescal answers here"), h("p", { class: "lead" }, known.why)];
  if (!known.local) {
    return [title, h("p", {}, "This server has no model yet, and folders can be chosen on its own machine alone. There: ",
      h("code", {}, "bayescal fit FOLDER -o MODEL"), ", then ", h("code", {}, "bayescal serve MODEL"), ".")];
  }
  if (known.job?.state === "running") {
    return [title, h("div", { class: "card row" }, h("strong", {}, "Learning"), ...progressOf(known.job),
      h("button", { type: "button", onclick: () => act(() => post("/page/stop")) }, "Stop")),
    h("p", { class: "quiet" }, "Nothing leaves this machine. You may close this page and come back.")];
  }
  const failed = known.job && known.job.state !== "done" ? known.job.message : "";
  return [title,
    h("p", { class: "lead" }, "Put images into folders ", h("code", {}, "place/class/image"),
      ": a few of each class, from two or three places, cameras or seasons. Choose that folder:"),
    h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); look($("start-path").value); } },
      h("input", { type: "text", id: "start-path", "data-focus": "path", "aria-label": "Folder", value: chosen.path,
        placeholder: "/home/me/images", autocomplete: "off", spellcheck: "false", maxlength: 4096 }),
      h("button", { type: "button", "data-focus": "browse", "aria-expanded": String(Boolean(chosen.listing)), onclick: () => browse(null) }, "Browse"),
      h("button", { class: "main", "data-focus": "look", disabled: chosen.busy }, chosen.busy ? "Looking …" : "Look")),
    (chosen.problem || failed) && h("p", { class: "means unsure", role: "alert" }, chosen.problem || `Not learned: ${failed}`),
    chosen.listing && listing(chosen.listing),
    chosen.found && found(chosen.found)].filter(Boolean);
}

function listing(at) {
  const open = (path, text, about = {}) =>
    h("li", {}, h("button", { type: "button", class: "plain", "data-focus": path, onclick: () => browse(path), ...about }, text));
  return h("div", { class: "card browse" },
    h("p", {}, h("strong", {}, at.path), h("span", { class: "quiet" }, at.images ? ` · ${count(at.images, "image")}` : "")),
    h("ul", {},
      at.parent && open(at.parent, "↑ up"),
      at.folders.map((folder) => open(folder.path, folder.model ? `◆ ${folder.name} (a model)` : `▸ ${folder.name}`)),
      at.more ? h("li", { class: "quiet" }, `and ${at.more} more: type the path`) : null),
    h("p", { class: "row" }, at.roots.map((root) => h("button", { type: "button", onclick: () => browse(root) }, root)),
      h("button", { type: "button", class: "main", "data-focus": "use", onclick: () => { chosen.path = at.path; look(at.path); } }, "Use this folder")));
}

function found(it) {
  if (it.model) {
    return h("div", { class: "card" }, h("p", {}, "This folder is a model. "),
      h("button", { type: "button", class: "main", onclick: () => act(() => post("/page/open", { path: it.path })) }, "Use this model"));
  }
  if (it.unclear) {
    return h("div", { class: "card" }, h("p", {}, it.unclear), h("p", {}, h("strong", {}, "What do these folders mean?")),
      it.readings.map(({ text, ...reading }, i) => h("button", { type: "button", class: "reading", "data-focus": `reading ${i}`,
        onclick: () => look(it.path, reading) }, h("code", {}, `${reading.layout}/image`), ` ${text}`)));
  }
  const wide = it.environments.length > 8 || it.classes.length > 40;
  return h("div", { class: "card" },
    h("p", {}, "Found ", h("strong", {}, count(it.images, "image")), ` of ${count(it.classes.length, "class")} in ${count(it.environments.length, "environment")}.`),
    it.understood && h("p", { class: "quiet" }, `Read as ${it.understood}.`),
    !wide && h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "What was found" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "class"), it.environments.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, it.classes.map((name, i) => h("tr", {}, h("th", { scope: "row" }, name),
        it.counts[i].map((n) => h("td", { class: n ? "" : "none" }, n ? n.toLocaleString("en") : "–"))))))),
    it.notes.map((note) => h("p", { class: "means unsure" }, note)),
    h("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      chosen.output = $("start-output").value;
      act(() => post("/page/fit", { path: it.path, output: chosen.output, ...chosen.reading }));
    } },
    h("label", {}, "Keep the model in ", h("input", { type: "text", id: "start-output", "data-focus": "output", required: true,
      value: chosen.output || it.output, spellcheck: "false", maxlength: 4096 })),
    h("button", { class: "main", "data-focus": "learn" }, "Learn")));
}

async function attempt(work) {
  Object.assign(chosen, { problem: "", busy: true });
  changed();
  try {
    await work();
  } catch (error) {
    chosen.problem = error.message;
  }
  chosen.busy = false;
  changed();
}

const browse = (path) => attempt(async () => {
  chosen.listing = await get(`/page/folders${path ? `?path=${encodeURIComponent(path)}` : ""}`);
});

const look = (path, reading = {}) => attempt(async () => {
  Object.assign(chosen, { path, reading, found: null, output: "" });
  chosen.found = await post("/page/look", { path, ...reading });
  chosen.listing = null;
  announce(chosen.found.model ? "A model" : chosen.found.unclear ?? `Found ${count(chosen.found.images, "image")}`);
});

const act = (work) => attempt(async () => {
  await work();
  await refresh();
});
