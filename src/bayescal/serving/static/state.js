// What the page knows: a copy of what the server has, and labels that are on their way there.

import { get, post, Refused, Silent } from "./server.js";

const OUTBOX = "bayescal-outbox-";
const ALL_OF_A_REQUEST = 300; // labels of one request, and their bytes: a request of more than 64 KiB is not sent on
const BYTES_OF_A_REQUEST = 32_000; // while the tab is being closed
const ELSEWHERE = 409; // the server keeps labels in another folder now, as its state will say
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
let folder = null; // where the server keeps labels: those that were given for one never go to another
let outbox = [];
let delivering = null;
let asking = null;
let next = null; // the question after the one under way
let timer = null;

/** Call back after every change. */
export const onChange = (listener) => listeners.add(listener);
export const changed = () => listeners.forEach((listener) => listener());
export const unsent = () => outbox.length;

/** Begin: ask for everything, then send what was left behind. */
export async function start() {
  navigator.locks?.request(OUTBOX + TAB, () => new Promise(() => {})); // held for as long as this tab lives
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
    await deliverOrSay();
    let state = await get(`/page/state?since=${known.changes}`);
    if (known.session !== null && known.session !== state.session) { // started anew: everything is asked for again
      known.images.clear();
      if (known.changes) state = await get("/page/state?since=0");
      known.changes = 0;
    }
    const { session } = state;
    await open(state.model?.labels ?? null);
    if (outbox.length) { // left behind by a tab that was closed, or while another folder was served here
      await deliverOrSay(); // before the state is taken: what the server passes over must not be shown
      state = await get(`/page/state?since=${known.changes}`);
    }
    known.session = session;
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

/** The same, and a refusal that is not about a label is said; the labels stay here. */
async function deliverOrSay() {
  try {
    if (outbox.length) await deliver();
  } catch (error) {
    if (!(error instanceof Refused) || error.wait) throw error;
    if (error.status !== ELSEWHERE) failed(error.message);
  }
}

async function sendAll() {
  while (outbox.length) {
    const batch = firstOf(outbox);
    if (await taken(batch)) done(batch);
    else for (const one of batch) { // at least one is refused: that one alone goes
      if (batch.length > 1) await taken([one], failed);
      done([one]);
    }
  }
}

/** As many as fit into a request. */
function firstOf(labels) {
  let bytes = 0;
  const large = labels.findIndex((one) => (bytes += new Blob([JSON.stringify(one)]).size) > BYTES_OF_A_REQUEST);
  return labels.slice(0, Math.min(ALL_OF_A_REQUEST, large < 0 ? Infinity : Math.max(1, large)));
}

/** Whether the server took them; false when it says that one of them cannot be. */
async function taken(batch, refused = batch.length > 1 ? () => {} : failed) {
  try {
    const labels = batch.map(({ image, class: name, environment, made, left }) =>
      ({ image, class: name, environment, made: left ? made : null }));
    await post("/page/labels", { labels, folder });
    return true;
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 422) throw error;
    refused(error.message);
    return false;
  }
}

function done(labels) {
  outbox = outbox.filter((one) => !labels.includes(one));
  keepOutbox();
}

const keyOf = (tab, of) => `${OUTBOX}${tab} ${of}`;

function keepOutbox() {
  const key = keyOf(TAB, folder);
  if (outbox.length) localStorage.setItem(key, JSON.stringify(outbox));
  else localStorage.removeItem(key);
}

/** Work with the labels of this folder from now on; those of another one wait until it is served here again. */
async function open(now) {
  if (now === folder) return;
  await delivering?.catch(() => {});
  folder = now;
  outbox = now === null ? [] : JSON.parse(localStorage.getItem(keyOf(TAB, now)) ?? "[]");
  if (now !== null) await adopt();
}

/**
 * Labels that another tab left behind when it was closed before the server said that it has them. What was said of an
 * image since then counts more: the server is told when these were made.
 */
async function adopt() {
  if (!navigator.locks) return;
  const alive = new Set((await navigator.locks.query()).held.map((lock) => lock.name));
  for (const key of Object.keys(localStorage)) {
    const tab = key.slice(OUTBOX.length).split(" ", 1)[0];
    if (key !== keyOf(tab, folder) || tab === TAB || alive.has(OUTBOX + tab)) continue;
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
