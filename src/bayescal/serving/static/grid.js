// Thumbnails with answers. Only rows near the window exist as elements, so that thousands of images scroll as ten do.

import { $, count, explain, h, percent, say, show } from "./dom.js";
import { pictureOf } from "./server.js";
import { known } from "./state.js";
import { VIEWS } from "./view.js";

const WIDTH = 172; // at least so many pixels a tile
const BELOW = 92; // of text below a picture
const GAP = 12;
const SPARE = 3; // rows above and below the window
const MEANING = Object.fromEntries(VIEWS.map(([name, , meaning]) => [name, meaning]));

const tiles = new Map(); // id → element
let ids = [];
let current = null; // the id that has the focus and is shown in the panel
const selected = new Set(); // further ones that a label is to count for

const act = { open: () => {}, changed: () => {} };

export const currentImage = () => current;
export const shownIds = () => ids;
/** What a label counts for: the selected images, or the current one. */
export const targets = () => (selected.size ? ids.filter((id) => selected.has(id)) : current ? [current] : []);
export const selection = () => selected.size;

function layout() {
  const width = $("grid").clientWidth;
  const columns = Math.max(2, Math.floor((width + GAP) / (WIDTH + GAP)));
  const side = (width - GAP * (columns - 1)) / columns;
  return { columns, side, height: side + BELOW + GAP };
}

/** Show these images, in this order. */
export function showImages(list) {
  ids = list;
  if (current !== null && !ids.includes(current) && !known.images.has(current)) setCurrent(null);
  for (const id of selected) if (!known.images.has(id)) selected.delete(id);
  draw();
}

function draw() {
  const { columns, side, height } = layout();
  const rows = Math.ceil(ids.length / columns);
  $("grid").style.height = `${Math.max(0, rows * height - GAP)}px`;
  const scroll = $("scroll");
  const first = Math.max(0, Math.floor(scroll.scrollTop / height) - SPARE) * columns;
  const last = (Math.ceil((scroll.scrollTop + scroll.clientHeight) / height) + SPARE) * columns;
  const wanted = new Set(ids.slice(first, last));
  const focused = ids.includes(current) ? current : ids[0];
  if (focused) wanted.add(focused); // the one that Tab reaches always exists
  for (const [id, tile] of tiles) {
    if (!wanted.has(id)) { tile.remove(); tiles.delete(id); }
  }
  const hadFocus = document.activeElement?.closest(".tile");
  let place = $("grid").firstElementChild; // elements stand in the order of the images, which screen readers follow
  for (const i of [...wanted].map((id) => ids.indexOf(id)).sort((a, b) => a - b)) {
    const id = ids[i];
    const entry = known.images.get(id);
    if (!entry) continue;
    if (!tiles.has(id)) tiles.set(id, makeTile(id));
    const tile = tiles.get(id);
    if (tile === place) place = place.nextElementSibling;
    else $("grid").insertBefore(tile, place);
    Object.assign(tile.style, {
      width: `${side}px`,
      height: `${side + BELOW}px`,
      transform: `translate(${(i % columns) * (side + GAP)}px, ${Math.floor(i / columns) * height}px)`,
    });
    fillTile(tile, entry, i);
    tile.tabIndex = id === focused ? 0 : -1;
  }
  if (hadFocus?.isConnected && document.activeElement === document.body) hadFocus.focus({ preventScroll: true });
}

function makeTile(id) {
  const tile = h("div", { class: "tile", role: "option", "data-id": id },
    h("div", { class: "frame" },
      h("img", { alt: "", loading: "lazy", decoding: "async", src: pictureOf(id, 320), draggable: "false" }),
      h("div", { class: "marks" })),
    h("div", { class: "said" }),
    h("div", { class: "bar", "aria-hidden": "true" }),
    h("div", { class: "file" }));
  return tile;
}

function fillTile(tile, entry, i) {
  const { answer, label } = entry;
  const print = JSON.stringify([answer, label, entry.learned, i, ids.length, current === entry.id, selected.has(entry.id)]);
  if (tile.dataset.print === print) return; // nothing about it has changed
  tile.dataset.print = print;
  const wrong = label && label.class !== answer.class;
  const state = answer.unfamiliar ? "unfamiliar" : answer.unsure ? "unsure" : "sure";
  tile.className = `tile ${state}${entry.id === current ? " current" : ""}${selected.has(entry.id) ? " selected" : ""}`;
  tile.setAttribute("aria-selected", String(selected.size ? selected.has(entry.id) : entry.id === current));
  tile.setAttribute("aria-setsize", ids.length);
  tile.setAttribute("aria-posinset", i + 1);
  const [, marks] = tile.querySelector(".frame").children;
  marks.replaceChildren(...badges(entry));
  tile.querySelector(".said").replaceChildren(
    ...(label
      ? [spoken("your label:"), h("span", { class: "yours", title: label.class }, `✓ ${label.class}`),
        wrong && spoken("instead of"), wrong && h("s", { class: "quiet", title: answer.class }, answer.class)]
      : [h("span", { class: "class", title: answer.class }, answer.class), h("span", { class: "quiet" }, percent(answer.confidence))]
    ).filter(Boolean));
  tile.querySelector(".bar").replaceChildren(...stacked(answer.top));
  say(tile.querySelector(".file"), entry.name);
}

/** Words that only screen readers say. */
const spoken = (text) => h("span", { class: "out" }, text);

/** What is special about an answer, in words and colour, with its meaning. */
export function badges(entry) {
  const found = [];
  if (entry.answer.unfamiliar) found.push(["unfamiliar", "unfamiliar", MEANING.unfamiliar]);
  else if (entry.answer.unsure) found.push(["unsure", "unsure", MEANING.unsure]);
  if (entry.learned) found.push(["learned", "learned", "The model has learned from this image."]);
  return found.map(([kind, text, meaning]) => explain(h("span", { class: `badge ${kind}` }, text), meaning));
}

/** The most probable classes side by side, and what is left for all others. */
function stacked(top) {
  return top.slice(0, 3).map((one, rank) =>
    h("span", { class: `part rank${rank}`, css: { width: `${100 * one.probability}%` } }));
}

// ---- moving and choosing ------------------------------------------------------------------------------------------

/** Make an image the current one; `focus` puts the keyboard there too. */
export function setCurrent(id, focus = false) {
  current = id;
  if (id !== null) {
    reveal(ids.indexOf(id));
    draw();
    if (focus) tiles.get(id)?.focus({ preventScroll: true });
  }
  act.open(id);
}

function reveal(i) {
  if (i < 0) return;
  const { columns, height } = layout();
  const top = Math.floor(i / columns) * height;
  const scroll = $("scroll");
  if (top < scroll.scrollTop) scroll.scrollTop = top;
  else if (top + height > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + height - scroll.clientHeight;
}

export function clearSelection() {
  selected.clear();
  draw();
  act.changed();
}

function move(event) {
  const { columns } = layout();
  const page = columns * Math.max(1, Math.floor($("scroll").clientHeight / layout().height));
  const steps = {
    ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, PageDown: page, PageUp: -page,
    Home: -ids.length, End: ids.length,
  };
  if (!(event.key in steps) || event.altKey || event.metaKey || !ids.length) return false;
  event.preventDefault();
  const from = Math.max(0, ids.indexOf(current));
  const to = Math.min(ids.length - 1, Math.max(0, from + steps[event.key]));
  if (event.shiftKey) for (let i = Math.min(from, to); i <= Math.max(from, to); i += 1) selected.add(ids[i]);
  setCurrent(ids[to], true);
  act.changed();
  return true;
}

function choose(event) {
  const tile = event.target.closest(".tile");
  if (!tile) return;
  const id = tile.dataset.id;
  if (event.shiftKey && current !== null) {
    const [from, to] = [ids.indexOf(current), ids.indexOf(id)].sort((a, b) => a - b);
    for (const one of ids.slice(Math.max(0, from), to + 1)) selected.add(one);
  } else if (event.ctrlKey || event.metaKey) {
    if (!selected.size && current !== null) selected.add(current);
    if (!selected.delete(id)) selected.add(id);
  } else selected.clear();
  setCurrent(id, true);
  act.changed();
}

/** `open` is told of the current image, `changed` of another selection. */
export function startGrid({ open, changed }) {
  Object.assign(act, { open, changed });
  const grid = $("grid");
  grid.addEventListener("click", choose);
  grid.addEventListener("focusin", (event) => {
    const id = event.target.closest(".tile")?.dataset.id;
    if (id && current === null) setCurrent(id);
  });
  grid.addEventListener("keydown", (event) => {
    if (move(event)) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "a") {
      event.preventDefault();
      ids.forEach((id) => selected.add(id));
      draw();
      act.changed();
    } else if (event.key === "Escape" && selected.size) clearSelection();
  });
  let planned = 0;
  const soon = () => { planned ||= requestAnimationFrame(() => { planned = 0; draw(); }); };
  $("scroll").addEventListener("scroll", soon, { passive: true });
  new ResizeObserver(soon).observe($("scroll"));
}

/** The sentence in place of a grid that has nothing to show. */
export function drawNothing(which) {
  const empty = known.images.size > 0 && !ids.length;
  show($("nothing"), empty);
  const sentences = {
    next: "Nothing is left to label.", unsure: "The model is sure of all of these.",
    unfamiliar: "Nothing here is unlike what the model has learned from.", labelled: "You have not labelled anything yet.",
  };
  if (empty) say($("nothing"), sentences[which] ?? "No image fits what you search for.");
}

export const describeSelection = () => count(selected.size, "image");
