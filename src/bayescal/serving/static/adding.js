// Images from wherever a person has them: dropped, pasted, chosen, a folder, the camera. A few at a time go to the
// server, as they are: the model scales them itself, and a browser scales differently.

import { $, announce, count, h, say, show } from "./dom.js";
import { pause, Refused, Silent, upload } from "./server.js";
import { known, refresh } from "./state.js";

const AT_ONCE = 4;
const LARGEST_SIDE = 4000; // of a photo that is larger than the server takes

const waiting = [];
const refusals = [];
let total = 0;
let done = 0;
let refused = 0;
let before = new Set(); // images that were there
let seen = new Set(); // images of these files
let busy = 0;
let planned = 0;

export const isAdding = () => busy > 0 || waiting.length > 0;

/** Add files to the queue. */
export function add(files) {
  const own = [...files].filter((file) => !file.name.startsWith("."));
  if (!own.length) return;
  if (!isAdding()) {
    total = done = refused = 0;
    before = new Set(known.images.keys());
    seen = new Set();
  }
  total += own.length;
  waiting.push(...own);
  draw();
  while (busy < Math.min(AT_ONCE, waiting.length + busy) && waiting.length) work();
}

async function work() {
  busy += 1;
  for (let file = waiting.shift(); file; file = waiting.shift()) {
    await send(file);
    done += 1;
    draw();
    look();
  }
  busy -= 1;
  if (!busy) {
    await refresh();
    announce(`${count([...seen].filter((id) => !before.has(id)).length, "image")} added. ${again()}`);
    draw();
  }
}

/** Ask for the new answers, a few times a second. */
function look() {
  planned ||= setTimeout(() => { planned = 0; refresh(); }, 400);
}

/** One file, again and again while nobody answers; a refusal is final. */
async function send(file) {
  const name = file.webkitRelativePath || file.name || "image";
  try {
    const body = file.size > known.maxUpload ? await shrunk(file) : file;
    for (;;) {
      try {
        seen.add((await upload(body, name)).id);
        return;
      } catch (error) {
        if (!(error instanceof Silent || error.wait)) throw error;
        await pause(error.wait ?? 1);
        look();
      }
    }
  } catch (error) {
    refused += 1;
    refuse(name, error instanceof Refused ? error.message : `${name}: cannot be read (${error.message})`);
  }
}

/** A photo too large to be sent, made smaller: its answer may differ in the last digits. */
async function shrunk(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, LARGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = new OffscreenCanvas(Math.round(bitmap.width * scale), Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.convertToBlob({ type: "image/jpeg", quality: 0.92 });
}

function refuse(name, reason) {
  refusals.push({ name, reason });
  $("refused-list").append(h("li", {}, reason.includes(name) ? reason : `${name}: ${reason}`));
  say($("refused-text"), `${count(refusals.length, "file")} could not be added`);
  show($("refused"), true);
}

/** How many files were copies of one another, or of what was there. */
function again() {
  const copies = done - refused - [...seen].filter((id) => !before.has(id)).length;
  return copies > 0 ? `${count(copies, "file")} left out: the same images are here already.` : "";
}

function draw() {
  show($("adding"), isAdding());
  say($("adding-note"), isAdding() ? "" : again());
  $("adding-bar").max = total;
  $("adding-bar").value = done;
  say($("adding-text"), `${done.toLocaleString("en")} of ${count(total, "image")}`);
}

/** All files of what was dropped, folders included. */
async function dropped(items) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.() ?? item.getAsFile());
  const files = [];
  const walk = async (entry) => {
    if (entry instanceof File) files.push(entry);
    else if (entry?.isFile) files.push(await new Promise((good, bad) => entry.file(good, bad)));
    else if (entry?.isDirectory) {
      const reader = entry.createReader();
      for (;;) {
        const part = await new Promise((good, bad) => reader.readEntries(good, bad));
        if (!part.length) break;
        for (const inner of part) await walk(inner);
      }
    }
  };
  for (const entry of entries) if (entry) await walk(entry);
  return files;
}

export function startAdding() {
  for (const [button, input] of [["pick-files", "files"], ["pick-folder", "folder"]]) {
    $(button).addEventListener("click", () => $(input).click());
  }
  for (const input of ["files", "folder", "photo"]) {
    $(input).addEventListener("change", () => { add($(input).files); $(input).value = ""; });
  }
  $("pick-camera").addEventListener("click", openCamera);
  $("refused-clear").addEventListener("click", () => {
    refusals.length = 0;
    $("refused-list").replaceChildren();
    show($("refused"), false);
  });
  startDropping();
  document.addEventListener("paste", (event) => {
    if (known.model && event.clipboardData?.files.length) {
      event.preventDefault();
      add(event.clipboardData.files);
    }
  });
}

function startDropping() {
  let inside = 0; // dragenter and dragleave come for every element that is crossed
  const mark = (change) => {
    inside = Math.max(0, change);
    document.body.classList.toggle("dragging", inside > 0 && known.model !== null);
  };
  addEventListener("dragenter", (event) => { event.preventDefault(); mark(inside + 1); });
  addEventListener("dragleave", () => mark(inside - 1));
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", async (event) => {
    event.preventDefault();
    mark(0);
    if (known.model) add(await dropped(event.dataTransfer.items));
  });
}

async function openCamera() {
  if (!navigator.mediaDevices?.getUserMedia) { // a telephone that reached the server without https
    $("photo").click();
    return;
  }
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1920 } } });
  } catch (error) {
    refuse("camera", `The camera cannot be used (${error.message}). Allow it for this page, or choose images instead.`);
    return;
  }
  const video = $("video");
  video.srcObject = stream;
  $("camera").addEventListener("close", () => stream.getTracks().forEach((track) => track.stop()), { once: true });
  $("camera").showModal();
}

export function startCamera() {
  $("camera-close").addEventListener("click", () => $("camera").close());
  $("shoot").addEventListener("click", () => {
    const video = $("video");
    const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
    canvas.getContext("2d").drawImage(video, 0, 0);
    const name = `camera ${new Date().toISOString().slice(0, 19).replaceAll(":", "-")}.jpg`;
    canvas.toBlob((blob) => add([new File([blob], name, { type: "image/jpeg" })]), "image/jpeg", 0.95);
    announce("Picture taken");
  });
}
