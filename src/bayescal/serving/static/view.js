// Which images are shown, in which order.

import { known } from "./state.js";

export const VIEWS = [
  ["all", "All", "Every image you have added."],
  ["next", "To label", "Images without a label, those first from which the model would learn most."],
  ["unsure", "Unsure", "Of the answers that were right on images left out of training, 95 % were more confident than this. Take the answer as a suggestion."],
  ["unfamiliar", "Unfamiliar", "Unlike all images the model has learned from. The answer means little, however confident it is."],
  ["labelled", "Labelled", "Images that you have labelled."],
];

export const view = { which: "all", class: "", sort: "added", search: "", queue: [] };

const belongs = {
  all: () => true,
  next: (entry) => !entry.label && !entry.learned,
  unsure: (entry) => entry.answer.unsure && !entry.answer.unfamiliar,
  unfamiliar: (entry) => entry.answer.unfamiliar,
  labelled: (entry) => entry.label !== null,
};

const compare = {
  added: (a, b) => b.added - a.added || a.name.localeCompare(b.name),
  low: (a, b) => a.answer.confidence - b.answer.confidence,
  high: (a, b) => b.answer.confidence - a.answer.confidence,
  familiar: (a, b) => (a.answer.familiarity ?? 0) - (b.answer.familiarity ?? 0),
  class: (a, b) => shownClass(a).localeCompare(shownClass(b)) || b.answer.confidence - a.answer.confidence,
  name: (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }),
};

/** What an image is taken to show: the user's word, else the model's. */
export const shownClass = (entry) => entry.label?.class ?? entry.answer.class;

/** Ids of the images to show, in order. */
export function chosen() {
  const words = view.search.trim().toLowerCase();
  const entries = [...known.images.values()].filter(
    (entry) =>
      belongs[view.which](entry) &&
      (!view.class || shownClass(entry) === view.class) &&
      (!words || entry.name.toLowerCase().includes(words)),
  );
  if (view.which === "next" && view.queue.length) {
    const place = new Map(view.queue.map((id, i) => [id, i]));
    const rank = (entry) => place.get(entry.id) ?? Infinity;
    return entries.sort((a, b) => rank(a) - rank(b) || compare.low(a, b)).map((entry) => entry.id);
  }
  return entries.sort(compare[view.sort]).map((entry) => entry.id);
}

export function counts() {
  const entries = [...known.images.values()];
  return Object.fromEntries(VIEWS.map(([name]) => [name, entries.filter(belongs[name]).length]));
}

/** Every class there is: the model's, then those that only labels have. */
export function classes() {
  const own = known.model?.classes ?? [];
  const given = [...known.images.values()].map((entry) => entry.label?.class).filter((name) => name && !own.includes(name));
  return [...own, ...new Set(given)];
}
