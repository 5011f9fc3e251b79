// What the page knows: a copy of what the server has, and labels that are on their way there.

import { get, post, Refused, Silent } from "./server.js";

const OUTBOX = "bayescal-outbox-";
const ALL_OF_A_REQUEST = 300; // labels of one request: few enough to be sent on while the tab is being closed
const TAB = sessionStorage.getItem("bayescal-tab") ?? `${Date.now()}-${Math.random()}`; // the same after a reload
sessionStorage.setItem("bayescal-tab", TAB);

export const known = {
  session: null, // of the server: another one means that it was started anew
  changes: 0, // up to which change this copy is complete
  model: null,
  local: false,
  why: "", // there is nothing to see
  job: null,
  newLabels: 0,
  maxUpload: Infinity,
  images: new Map(), // id → entry
  connected: true,
};

const listeners = new Set();
let outbox = JSON.parse(localStorage.getItem(OUTBOX + TAB) ?? "[]");
let delivering = null;
let asking = null;
let next = null; // the question after the one under way
let timer = null;

/** Call back after every change. */
export const onChange = (listener) => listeners.add(listener);
export const changed = () => listeners.forEach((listener) => listener());
export const unsent = () => outbox.length;

/** Begin: take over what was left behind, then ask for everything. */
export async function start() {
  await adopt();
  await refresh();
}

/** Ask for what is new. Whoever calls while a question is under way gets the answer to the next one. */
export function refresh() {
  if (asking) next ??= asking.then(refresh, refresh);
  else asking = update().finally(() => { asking = next = null; });
  return next ?? asking;
}

async function update() {
  clearTimeout(timer);
  try {
    if (outbox.length) await deliver();
    let state = await get(`/page/state?since=${known.changes}`);
    if (known.session !== null && known.session !== state.session) { // started anew: everything is asked for again
      known.images.clear();
      if (known.changes) state = await get("/page/state?since=0");
    }
    known.session = state.session;
    take(state);
    known.connected = true;
  } catch (error) {
    if (!(error instanceof Silent || (error instanceof Refused && error.wait))) throw error;
    known.connected = false;
  } finally {
    changed();
    timer = setTimeout(refresh, known.connected && known.job?.state !== "running" ? 2500 : 700);
  }
}

function take(state) {
  Object.assign(known, {
    model: state.model,
    local: state.local,
    why: state.why,
    job: state.job,
    maxUpload: state.max_upload,
    newLabels: state.new_labels ?? 0,
    changes: state.changes ?? 0,
  });
  for (const entry of state.images ?? []) {
    if (entry.removed) known.images.delete(entry.id);
    else known.images.set(entry.id, entry);
  }
  for (const { image, class: name, environment } of outbox) { // what was said here and is not there yet
    const entry = known.images.get(image);
    if (entry) entry.label = name === null ? null : { class: name, environment };
  }
}

/** Say what images show (class null: take it back); kept here until the server has it on its disk. */
export function label(labels) {
  for (const { image, class: name, environment } of labels) {
    const entry = known.images.get(image);
    if (!entry) continue;
    entry.label = name === null ? null : { class: name, environment };
    outbox = outbox.filter((other) => other.image !== image);
    outbox.push({ image, class: name, environment, made: Date.now() / 1000 });
  }
  keepOutbox();
  changed();
  return deliver().then(refresh, refresh);
}

/** Send what waits, one request after the other, so that the last word stays the last. */
function deliver() {
  delivering ??= sendAll().finally(() => { delivering = null; });
  return delivering;
}

async function sendAll() {
  while (outbox.length) {
    const batch = outbox.slice(0, ALL_OF_A_REQUEST);
    try {
      const labels = batch.map(({ image, class: name, environment, made, left }) =>
        ({ image, class: name, environment, made: left ? made : null }));
      await post("/page/labels", { labels });
    } catch (error) {
      if (!(error instanceof Refused) || error.wait) throw error;
      failed(error.message);
    }
    outbox = outbox.filter((one) => !batch.includes(one));
    keepOutbox();
  }
}

function keepOutbox() {
  if (outbox.length) localStorage.setItem(OUTBOX + TAB, JSON.stringify(outbox));
  else localStorage.removeItem(OUTBOX + TAB);
}

/**
 * Labels that another tab left behind when it was closed before the server said that it has them. What was said of an
 * image since then counts more: the server is told when these were made.
 */
async function adopt() {
  if (!navigator.locks) return;
  navigator.locks.request(OUTBOX + TAB, () => new Promise(() => {})); // held for as long as this tab lives
  const alive = new Set((await navigator.locks.query()).held.map((lock) => lock.name));
  for (const key of Object.keys(localStorage)) {
    if (!key.startsWith(OUTBOX) || key === OUTBOX + TAB || alive.has(key)) continue;
    outbox = [...JSON.parse(localStorage.getItem(key)).map((one) => ({ ...one, left: true })), ...outbox];
    localStorage.removeItem(key);
  }
  keepOutbox();
}

let failed = () => {};
/** Whom to tell that the server refused a label. */
export const onFailure = (listener) => { failed = listener; };

addEventListener("beforeunload", (event) => { if (outbox.length) event.preventDefault(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
