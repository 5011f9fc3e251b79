// Saying what images show: one key each, a list to type in, undo.

import { $, announce, count, h, say, show } from "./dom.js";
import { clearSelection, currentImage, selection, setCurrent, shownIds, targets } from "./grid.js";
import { known, label } from "./state.js";
import { classes, view } from "./view.js";

const PLACE = "bayescal-place"; // where the images come from, as the user says
const done = []; // labels that can be undone: [{ image, before }] each time
let hiding = 0;

export const place = () => localStorage.getItem(PLACE) || "here";
export const setPlace = (name) => localStorage.setItem(PLACE, name.trim());

/** The class of a key 1–9: a fixed order for up to nine classes, else the most probable ones of the image. */
export function keyed(entry) {
  const all = classes();
  if (all.length <= 9) return all;
  const top = entry.answer.top.map((one) => one.class);
  return [...top, ...all.filter((name) => !top.includes(name))].slice(0, 9);
}

/** Label the selected images, or the current one and go on to the next. null: take the label back. */
export function give(name) {
  const images = targets();
  if (!images.length) return;
  const ids = shownIds();
  const next = ids[ids.indexOf(images.at(-1)) + 1] ?? null;
  done.push(images.map((image) => ({ image, before: known.images.get(image)?.label ?? null })));
  label(images.map((image) => ({ image, class: name, environment: name === null ? null : place() })));
  const what = images.length > 1 ? count(images.length, "image") : known.images.get(images[0])?.name ?? "";
  toast(name === null ? `Label taken back: ${what}` : `${name}: ${what}`);
  if (selection()) clearSelection();
  else if (name !== null && next) setCurrent(next, true);
  else if (name !== null && view.which === "next") setCurrent(shownIds()[0] ?? null, true);
}

export function undo() {
  const last = done.pop();
  if (!last) return;
  label(last.map(({ image, before }) => ({
    image, class: before?.class ?? null, environment: before?.environment ?? null,
  })));
  setCurrent(last[0].image, true);
  show($("toast"), false);
  announce("Label undone");
}

function toast(text) {
  say($("toast-text"), text);
  show($("toast"), true);
  announce(text);
  clearTimeout(hiding);
  hiding = setTimeout(() => show($("toast"), false), 6000);
}

// ---- the list to type in ------------------------------------------------------------------------------------------

let marked = 0;
let listed = [];

export function openClasses(start = "") {
  const input = $("class-input");
  input.value = start;
  fillClasses();
  $("classes").showModal();
  input.focus();
  input.setSelectionRange(start.length, start.length);
}

function fillClasses() {
  const words = $("class-input").value.trim().toLowerCase();
  const all = classes();
  const begins = all.filter((name) => name.toLowerCase().startsWith(words));
  const holds = all.filter((name) => !begins.includes(name) && name.toLowerCase().includes(words));
  listed = [...begins, ...holds].slice(0, 200).map((name) => ({ name, text: name }));
  const own = $("class-input").value.trim();
  if (own && !all.some((name) => name.toLowerCase() === own.toLowerCase())) {
    listed.push({ name: own, text: `New class: ${own}` });
  }
  mark(0);
}

function mark(i) {
  marked = Math.max(0, Math.min(listed.length - 1, i));
  $("class-list").replaceChildren(...listed.map(({ text }, n) =>
    h("li", { role: "option", id: `class-${n}`, "aria-selected": String(n === marked), "data-n": n }, text)));
  $("class-input").setAttribute("aria-activedescendant", listed.length ? `class-${marked}` : "");
  $(`class-${marked}`)?.scrollIntoView({ block: "nearest" });
}

function pick(n) {
  if (!listed[n]) return;
  $("classes").close();
  give(listed[n].name);
}

// ---- keys ---------------------------------------------------------------------------------------------------------

const typing = (target) => target.closest("input, select, textarea, dialog[open], [contenteditable]");

function pressed(event) {
  if (event.defaultPrevented || $("images").hidden || typing(event.target)) return;
  if ((event.ctrlKey || event.metaKey) && event.key === "z") {
    event.preventDefault();
    undo();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    $("search").focus();
    return;
  }
  const entry = known.images.get(currentImage());
  if (!entry) return;
  const onTile = event.target.closest(".tile") || event.target === document.body || event.target.closest("#panel");
  if (!onTile) return;
  if (/^[1-9]$/.test(event.key)) {
    const name = keyed(entry)[Number(event.key) - 1];
    if (name) { event.preventDefault(); give(name); }
  } else if (event.key === "Enter" && event.target.closest(".tile")) {
    event.preventDefault();
    give(entry.label?.class ?? entry.answer.class);
  } else if (event.key === "Backspace" && entry.label) {
    event.preventDefault();
    give(null);
  } else if (event.key.length === 1 && /\p{L}/u.test(event.key)) {
    event.preventDefault();
    openClasses(event.key);
  }
}

export function startLabelling() {
  document.addEventListener("keydown", pressed);
  $("toast-undo").addEventListener("click", undo);
  const input = $("class-input");
  input.addEventListener("input", fillClasses);
  input.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) { event.preventDefault(); mark(marked + steps[event.key]); }
    if (event.key === "Enter") { event.preventDefault(); pick(marked); }
  });
  $("class-list").addEventListener("click", (event) => {
    const item = event.target.closest("[data-n]");
    if (item) pick(Number(item.dataset.n));
  });
  $("classes").addEventListener("click", (event) => { if (event.target === $("classes")) $("classes").close(); });
}
