"use strict";
// Draws the figures, for the width and the colours that the page has, and looks after the buttons.
(() => {
  const root = document.documentElement;
  const onDark = JSON.parse(document.getElementById("dark").textContent);
  const systemDark = matchMedia("(prefers-color-scheme: dark)");
  const onPaper = matchMedia("print");
  const touch = matchMedia("(pointer: coarse)").matches;
  const PAPER_WIDTH = 672; // of an A4 page inside its margins, in CSS pixels
  const WIDE_PAPER_WIDTH = 1000; // the same on its side
  const LEAST_ZOOM = 0.8;
  const SVG = "http://www.w3.org/2000/svg";
  let printing = onPaper.matches;

  const wantsDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : systemDark.matches);

  // ── Figures ────────────────────────────────────────────────────────────────────────────────────────────────────

  /** A copy in which every known colour is the one for a dark page. */
  function recoloured(value) {
    if (typeof value === "string") return onDark[value] ?? value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(recoloured);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, key === "meta" ? part : recoloured(part)]));
    return value;
  }

  const axisName = (name, i) => (i === 0 ? name : name + (i + 1));

  /** Words in lines of about so many letters. */
  function lines(text, letters) {
    const result = [];
    for (const word of text.split(/\s+/).filter(Boolean)) {
      const longer = `${result.at(-1)} ${word}`;
      if (result.length && longer.length <= letters) result[result.length - 1] = longer;
      else result.push(word);
    }
    return result;
  }

  /** Panels side by side as far as they fit, sizes and gaps in pixels whatever the width. */
  function arranged(layout, width) {
    const { titles, square, bars, bare } = layout.meta;
    const panels = titles.length;
    const sides = bare ? { l: 8, b: 8, r: 8 } : { l: bars ? 54 : 62, b: 52, r: bars ? 58 : 14 };
    const gapX = sides.l + sides.r + (bare ? 16 : 0);
    const least = square ? 205 : 225;
    const inside = width - sides.l - sides.r;
    let columns = Math.max(1, Math.min(panels, 3, Math.floor((inside + gapX) / (least + gapX))));
    const rows = Math.ceil(panels / columns);
    columns = Math.ceil(panels / rows);
    const share = (inside - gapX * (columns - 1)) / columns;
    const panelWidth = square ? Math.min(share, 470) : share;
    const panelHeight = square ? panelWidth : Math.max(210, Math.min(0.62 * panelWidth, 360));
    const wrapped = titles.map((title) => lines(title, panelWidth / 8));
    sides.t = 14 + 18 * Math.max(...wrapped.map((title) => title.length));
    const gapY = sides.t + sides.b + 10;
    const high = rows * panelHeight + (rows - 1) * gapY;
    const result = { ...layout, width, height: high + sides.t + sides.b, margin: { ...sides, pad: 0, autoexpand: false }, showlegend: false };
    result.annotations = layout.annotations.map((note) => {
      const [kind, i] = (note.name ?? "").split(" ");
      return kind === "title" && note.text ? { ...note, text: `<b>${wrapped[i - 1].map(quoted).join("<br>")}</b>` } : note;
    });
    const bar = [];
    for (let i = 0; i < panels; i++) {
      const [row, column] = [Math.floor(i / columns), i % columns];
      const x = (column * (panelWidth + gapX)) / inside;
      const y = 1 - (row * (panelHeight + gapY)) / high;
      const [w, h] = [panelWidth / inside, panelHeight / high];
      const part = (low, size) => [Math.max(0, low), Math.min(1, low + size)];
      result[axisName("xaxis", i)] = { ...layout[axisName("xaxis", i)], domain: part(x, w) };
      result[axisName("yaxis", i)] = { ...layout[axisName("yaxis", i)], domain: part(y - h, h) };
      bar.push({ x: x + w, xanchor: "left", y: y - h, yanchor: "bottom", len: h, lenmode: "fraction" });
    }
    return [result, bar];
  }

  class Plot {
    constructor(figure) {
      this.box = figure.querySelector(".drawing");
      this.name = figure.id;
      this.title = figure.querySelector("figcaption").textContent;
      this.source = JSON.parse(figure.querySelector("script.data").textContent);
      this.thumbnails = this.source.layout.meta.thumbnails ?? [];
      this.hidden = new Set();
      this.legend = figure.querySelector(".legend");
      this.width = 0;
      this.addLegend();
      for (const button of figure.querySelectorAll("[data-save]"))
        button.addEventListener("click", () => this.save(button.dataset.save));
    }

    /** Traces and layout for a width, in the colours of the moment. */
    drawn(width, dark) {
      const [layout, bars] = arranged(this.source.layout, width);
      const traces = this.source.data.map((trace) => {
        const shown = { ...trace, visible: !this.hidden.has(trace.legendgroup) };
        if (trace.colorbar) shown.colorbar = { ...trace.colorbar, ...bars[(Number(trace.xaxis.slice(1)) || 1) - 1] };
        if (this.thumbnails.length) Object.assign(shown, { hovertemplate: undefined, hoverinfo: "none" });
        return shown;
      });
      if (touch) layout.dragmode = false; // a finger scrolls the page
      return dark ? [recoloured(traces), recoloured(layout)] : [traces, layout];
    }

    draw() {
      this.width = printing ? PAPER_WIDTH : this.box.clientWidth;
      const [traces, layout] = this.drawn(this.width, wantsDark() && !printing);
      const config = {
        displaylogo: false,
        modeBarButtons: [["zoom2d", "pan2d", "resetScale2d"]],
        plotlyServerURL: "",
      };
      layout.datarevision = this.times = (this.times ?? 0) + 1; // contours are lost when only the layout changes
      const first = !this.box.classList.contains("js-plotly-plot");
      const done = Plotly.react(this.box, traces, layout, config);
      if (first && this.thumbnails.length) {
        this.box.on("plotly_hover", (event) => showThumbnail(this.thumbnails, event));
        this.box.on("plotly_unhover", hideThumbnail);
      }
      return done;
    }

    fit() {
      if (!printing && Math.abs(this.box.clientWidth - this.width) > 1) this.draw();
    }

    addLegend() {
      const entries = this.source.data.filter((trace) => trace.showlegend !== false && trace.type !== "contour");
      let row, heading;
      for (const trace of entries) {
        const kind = trace.legendgrouptitle?.text ?? "";
        if (kind !== heading) {
          row = document.createElement("div");
          const title = document.createElement("span");
          title.textContent = heading = kind;
          row.append(...(kind ? [title] : []));
          this.legend.append(row);
        }
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.append(sample(trace), plain(trace.name));
        button.addEventListener("click", () => {
          const gone = this.hidden.delete(trace.legendgroup);
          if (!gone) this.hidden.add(trace.legendgroup);
          button.setAttribute("aria-pressed", String(gone));
          this.draw();
        });
        row.append(button);
      }
    }

    /** For slides and papers: light, with a legend, whatever the page looks like now. */
    async save(format) {
      const [traces, layout] = this.drawn(1000, false);
      const named = traces.filter((trace) => trace.showlegend !== false);
      const letters = named.reduce((sum, trace) => sum + plain(trace.name).length + 8, 0);
      const below = 16 + 24 * Math.ceil(letters / 110);
      for (const trace of named) delete trace.legendgrouptitle;
      Object.assign(layout, {
        title: { text: quoted(this.title), x: 0.02, y: 0.99, yanchor: "top", font: { size: 15 } },
        showlegend: true,
        paper_bgcolor: "#ffffff",
        height: layout.height + 30 + below,
        margin: { ...layout.margin, t: layout.margin.t + 30, b: layout.margin.b + below },
        legend: { orientation: "h", x: 0, y: 0, yref: "container", yanchor: "bottom", xanchor: "left" },
      });
      await Plotly.downloadImage({ data: traces, layout }, { format, filename: this.name, width: 1000, height: layout.height, scale: 2 });
    }
  }

  /** Words as a Plotly text. */
  const quoted = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/\$/g, "&#36;").replace(/{/g, "&#123;");

  /** A Plotly text as the text it was made of. */
  const plain = (text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&#36;/g, "$").replace(/&#123;/g, "{").replace(/&amp;/g, "&");

  const DASHES = { dash: "6 3", dot: "2 2", dashdot: "6 2 2 2" };
  const SHAPES = {
    circle: "M17 7a4 4 0 1 1-8 0a4 4 0 1 1 8 0z",
    square: "M9 3h8v8h-8z",
    diamond: "M13 2l5 5l-5 5l-5-5z",
    "triangle-up": "M13 2l5 9h-10z",
    "triangle-down": "M13 12l5-9h-10z",
    x: "M9 4l1.5-1.5L13 5l2.5-2.5L17 4L14.5 7L17 10l-1.5 1.5L13 9l-2.5 2.5L9 10L11.5 7z",
    star: "M13 1l1.7 4.2l4.5 .3l-3.5 2.9l1.2 4.4L13 10.4l-3.9 2.4l1.2-4.4L6.8 5.5l4.5-.3z",
  };

  /** A piece of line and a marker, as the figure draws them. */
  function sample(trace) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("width", "26");
    svg.setAttribute("height", "14");
    svg.setAttribute("aria-hidden", "true");
    const add = (kind, attributes) => {
      const part = document.createElementNS(SVG, kind);
      for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
      svg.append(part);
    };
    const both = (colour) => `light-dark(${colour}, ${onDark[colour] ?? colour})`;
    if (trace.mode.includes("lines")) {
      const colour = trace.line.color === "white" ? "currentColor" : both(trace.line.color);
      add("path", { d: "M1 7H25", fill: "none", "stroke-width": 2, "stroke-dasharray": DASHES[trace.line.dash] ?? "none", style: `stroke:${colour}` });
    }
    const small = trace.marker?.size <= 4; // dots on a line, too small for a sample
    if (trace.mode.includes("markers") && !small) {
      const outline = trace.marker.line?.width ? "#000" : "none";
      add("path", { d: SHAPES[trace.marker.symbol] ?? SHAPES.circle, stroke: outline, style: `fill:${both(trace.marker.color)}` });
    }
    return svg;
  }

  // ── The image behind a point ───────────────────────────────────────────────────────────────────────────────────

  const hover = document.getElementById("hover");
  const [thumbnail, caption] = hover.children;

  function showThumbnail(thumbnails, event) {
    const point = event.points[0];
    const source = thumbnails[point.customdata];
    thumbnail.hidden = !source;
    if (source) thumbnail.src = source;
    caption.textContent = plain(point.text ?? "");
    hover.hidden = false;
    const { clientX: x, clientY: y } = event.event;
    const { width, height } = hover.getBoundingClientRect();
    hover.style.left = `${x + 16 + width > innerWidth ? Math.max(4, x - 16 - width) : x + 16}px`;
    hover.style.top = `${Math.max(4, Math.min(y - height / 2, innerHeight - height - 4))}px`;
  }

  function hideThumbnail() {
    hover.hidden = true;
  }

  // ── Buttons ────────────────────────────────────────────────────────────────────────────────────────────────────

  const theme = document.getElementById("theme");
  const nameTheme = () => (theme.textContent = wantsDark() ? "Light" : "Dark");

  async function copy(button, text) {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = before), 1200);
  }

  for (const button of document.querySelectorAll("[data-copy]")) {
    const formats = button.parentElement.querySelector("script");
    button.addEventListener("click", () =>
      copy(button, formats ? JSON.parse(formats.textContent)[button.dataset.copy] : button.parentElement.querySelector("code").textContent));
  }

  // ── The section that is being read ─────────────────────────────────────────────────────────────────────────────

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const contents = document.querySelector("nav details");
  const wide = matchMedia("(min-width: 68rem)");
  const openContents = () => (contents.open = wide.matches);
  const reading = new IntersectionObserver(
    (seen) => {
      for (const { target, isIntersecting } of seen)
        if (isIntersecting) for (const [id, link] of links) id === target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    },
    { rootMargin: "-10% 0px -80% 0px" },
  );
  for (const section of document.querySelectorAll("section")) reading.observe(section);
  openContents();
  wide.addEventListener("change", openContents);

  // ── Go ─────────────────────────────────────────────────────────────────────────────────────────────────────────

  const plots = [...document.querySelectorAll("figure.plot")].map((figure) => new Plot(figure));
  const drawAll = () => plots.forEach((plot) => plot.draw());

  /** A table wider than the paper is made smaller as a whole, and goes on a page of its own where it would be tiny. */
  function fitTables() {
    root.classList.toggle("printing", printing);
    for (const table of document.querySelectorAll("table")) {
      table.style.zoom = 1;
      const fitting = printing ? Math.min(1, PAPER_WIDTH / table.offsetWidth) : 1;
      const wide = fitting < LEAST_ZOOM;
      table.closest("figure").classList.toggle("wide", wide);
      table.style.zoom = wide ? Math.min(1, WIDE_PAPER_WIDTH / table.offsetWidth) : fitting;
    }
  }

  function print(now) {
    if (now === printing) return;
    printing = now;
    fitTables();
    drawAll();
  }

  theme.addEventListener("click", () => {
    root.dataset.theme = wantsDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch {}
    nameTheme();
    drawAll();
  });
  systemDark.addEventListener("change", () => { nameTheme(); drawAll(); });
  onPaper.addEventListener("change", (event) => print(event.matches));
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  addEventListener("scroll", hideThumbnail, { passive: true });
  nameTheme();

  (async () => {
    for (const plot of plots) {
      await plot.draw();
      await new Promise((go) => setTimeout(go)); // the page stays alive while a long report is drawn
    }
    const watch = new ResizeObserver(() => plots.forEach((plot) => plot.fit()));
    for (const plot of plots) watch.observe(plot.box);
    root.dataset.drawn = "yes";
  })();
})();
