// Talking to the server: answers as JSON, refusals as sentences, and silence told apart from refusals.

/** The server said no, and why. */
export class Refused extends Error {
  constructor(status, sentence, wait) {
    super(sentence);
    this.status = status;
    this.wait = wait; // seconds after which to try again; 0: trying again changes nothing
  }
}

/** Nobody answered: the server is down or being restarted. */
export class Silent extends Error {}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Silent("the server does not answer");
  }
  let content = null;
  try {
    content = await response.json();
  } catch {
    if (response.ok) throw new Silent("the answer was cut short");
  }
  if (response.ok) return content;
  const wait = response.status === 503 || response.status === 429 ? Number(response.headers.get("Retry-After")) || 1 : 0;
  throw new Refused(response.status, content?.detail ?? `the server refused (${response.status})`, wait);
}

export const get = (path, signal) => ask(path, { signal });

const KEPT_ALIVE = 60_000; // bytes: browsers refuse more than 64 KiB

/** `keepalive`: a label that was given just before the tab is closed still arrives. */
export const post = (path, content = {}) => {
  const body = new Blob([JSON.stringify(content)], { type: "application/json" });
  return ask(path, { method: "POST", headers: { "Content-Type": body.type }, body, keepalive: body.size < KEPT_ALIVE });
};

export const upload = (file, name) =>
  ask(`/page/images?name=${encodeURIComponent(name)}`, {
    method: "POST",
    headers: { "Content-Type": "application/octet-stream" },
    body: file,
  });

export const pictureOf = (id, size) => `/page/images/${id}/picture?size=${size}`;
export const pictureOfTraining = (session, model, number) =>
  `/page/training/${number}/picture?size=160&of=${session}-${model}`;

export const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
