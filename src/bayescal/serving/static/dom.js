// Elements of the page. Whatever comes from files, names or people is set as text, never as HTML.

export const $ = (id) => document.getElementById(id);

/** An element: h("li", { class: "x", onclick }, "text", child, …). Attributes of null or false are left out. */
export function h(tag, about = {}, ...children) {
  return fill(document.createElement(tag), about, children);
}

/** The same for SVG. */
export function svg(tag, about = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), about, children);
}

function fill(element, about, children) {
  for (const [name, value] of Object.entries(about)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "css") Object.assign(element.style, value); // through the object model, which the policy allows
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Shown or not, without forgetting what it holds. */
export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/** Text of an element, touched only when it changes. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Told to screen readers. */
export function announce(text) {
  const live = $("live");
  live.textContent = "";
  requestAnimationFrame(() => { live.textContent = text; });
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(100 * share)} %`);
export const count = (n, noun) =>
  `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

// ---- what things mean, on hover and focus: one box for all --------------------------------------------------------

/** Explain an element: shown when it is pointed at or focused, read by screen readers. */
export function explain(element, text) {
  element.dataset.help = text;
  return element;
}

function showTip(target) {
  const tip = $("tip");
  tip.textContent = target.dataset.help;
  tip.hidden = false;
  const box = target.getBoundingClientRect();
  const own = tip.getBoundingClientRect();
  const left = Math.min(Math.max(8, box.left + box.width / 2 - own.width / 2), innerWidth - own.width - 8);
  const below = box.bottom + 8 + own.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 8 : Math.max(8, box.top - own.height - 8)}px`;
  target.setAttribute("aria-describedby", "tip");
}

function hideTip(target) {
  $("tip").hidden = true;
  target?.removeAttribute("aria-describedby");
}

export function startTips() {
  let over = null;
  const enter = (event) => {
    const target = event.target.closest?.("[data-help]");
    if (target === over) return;
    hideTip(over);
    over = target;
    if (target) showTip(target);
  };
  const leave = () => { hideTip(over); over = null; };
  document.addEventListener("pointerover", enter);
  document.addEventListener("focusin", enter);
  document.addEventListener("focusout", leave);
  document.addEventListener("scroll", leave, true);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") leave(); });
  document.addEventListener("click", (event) => { if (event.target.closest("button")) leave(); }); // what it does is seen now
}
