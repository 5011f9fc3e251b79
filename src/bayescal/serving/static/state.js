// What the page knows: a copy of what the server has, and labels that are on their way there.

import { get, post, Refused, Silent } from "./server.js";

const OUTBOX = "bayescal-outbox"; // of this tab; it survives a reload

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
let outbox = JSON.parse(sessionStorage.getItem(OUTBOX) ?? "[]");
let asking = null;
let next = null; // the question after the one under way
let timer = null;

/** Call back after every change. */
export const onChange = (listener) => listeners.add(listener);
export const changed = () => listeners.forEach((listener) => listener());
export const unsent = () => outbox.length;

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
    outbox.push({ image, class: name, environment });
  }
  keepOutbox();
  changed();
  return refresh();
}

async function deliver() {
  const batch = outbox.slice(0, 1000);
  try {
    await post("/page/labels", { labels: batch });
  } catch (error) {
    if (!(error instanceof Refused) || error.wait) throw error;
    failed(error.message);
  }
  outbox = outbox.filter((one) => !batch.includes(one));
  keepOutbox();
}

function keepOutbox() {
  sessionStorage.setItem(OUTBOX, JSON.stringify(outbox));
}

let failed = () => {};
/** Whom to tell that the server refused a label. */
export const onFailure = (listener) => { failed = listener; };

addEventListener("beforeunload", (event) => { if (outbox.length) event.preventDefault(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
