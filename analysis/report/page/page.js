"use strict";
(() => {
  const KEYS = ["model", "task", "method", "precision"];
  const form = document.getElementById("filters");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- figures: one Vega-Lite specification for every panel, drawn when its panel comes near the screen ---
  const views = new Map();
  const decades = (values) => {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const powers = Array.from({ length: 40 }, (_, i) => 10 ** (i - 20));
    return powers.flatMap((power) => [1, 2, 5].map((digit) => digit * power)).filter((at) => at >= low * 0.999 && at <= high * 1.001);
  };
  const axis = ({ t, log, ticks, domain }, reversed, values) => ({
    type: "quantitative",
    scale: { type: log ? "log" : "linear", ...(!log && { zero: false }), nice: !domain, ...(domain && { domain, reverse: reversed, clamp: true }) },
    axis: {
      title: t || null,
      ...(ticks && { values: ticks.map(([at]) => at), labelExpr: `(${JSON.stringify(Object.fromEntries(ticks))})[datum.value]`, grid: false }),
      ...(!ticks && log && { values: decades(values) }),
      ...(!ticks && { tickCount: 5, labelExpr: `format(datum.value, '${log ? ".0e" : ",.6~g"}')` }),
    },
  });
  const rows = (panel) => panel.s.flatMap((s, i) => s.x.map((x, j) => ({
    i, x, y: s.y[j], l: s.l?.[j], u: s.u?.[j], m: s.m, k: s.k, c: s.c, d: s.d.join(), p: s.p,
    f: s.h ? "var(--card)" : s.c, big: s.b === j, end: j === s.x.length - 1 ? s.e : undefined,
    dot: s.k === "points" || (s.k === "line" && j % Math.max(1, Math.floor(s.x.length / 7)) === 0),
  })));
  function specification(panel) {
    const across = panel.s.filter((s) => s.k !== "level").flatMap((s) => s.x);
    const [x, y] = [axis(panel.x, false, across), axis(panel.y, Boolean(panel.y.ticks), panel.y.domain)];
    const same = { field: "c", type: "nominal", scale: null };
    const base = { x: { field: "x", ...x }, y: { field: "y", ...y }, detail: { field: "i" }, opacity: { field: "shown", type: "quantitative", scale: null } };
    const plain = (name) => ({ field: name, type: "nominal", scale: null });
    const layer = (filter, mark, encoding) => ({ transform: [{ filter }], mark: { clip: true, ...mark }, encoding: { ...base, ...encoding } });
    const range = { y: { field: "l", ...y }, y2: { field: "u" } };
    const kinds = new Set(panel.s.map((s) => s.k));
    const banded = panel.s.some((s) => s.l);
    const half = (panel.w ?? 0) * 0.44;
    const layers = [
      banded && layer("datum.k == 'line' && isValid(datum.l)", { type: "area" }, { ...range, fill: same, opacity: { field: "faint", type: "quantitative", scale: null } }),
      banded && layer("datum.k == 'points' && isValid(datum.l)", { type: "rule" }, { ...range, stroke: same }),
      kinds.has("level") && layer("datum.k == 'level'", { type: "rule" }, { x: undefined, stroke: same, strokeDash: plain("d") }),
      kinds.has("bar") && { transform: [{ filter: "datum.k == 'bar'" }, { calculate: `datum.x - ${half}`, as: "from" }, { calculate: `datum.x + ${half}`, as: "to" }, { calculate: "datum.l || 0", as: "zero" }],
        mark: { type: "rect" }, encoding: { ...base, x: { field: "from", ...x }, x2: { field: "to" }, y2: { field: "zero" }, fill: plain("f"), stroke: same } },
      layer("datum.k == 'line'", { type: "line", strokeWidth: 1.6 }, { stroke: same, strokeDash: plain("d"), order: { field: "x" } }),
      layer("datum.dot", { type: "point", size: 28, strokeWidth: 1.2 }, { stroke: same, fill: plain("f"), shape: plain("p") }),
      panel.s.some((s) => s.b !== undefined) && layer("datum.big", { type: "point", size: 90, clip: false }, { stroke: { value: "var(--card)" }, fill: same, shape: plain("p") }),
      kinds.has("cross") && layer("datum.k == 'cross'", { type: "text", text: "×", fontSize: 17, clip: false, baseline: "middle" }, { fill: same }),
      panel.s.some((s) => s.e) && layer("isValid(datum.end)", { type: "text", align: "left", dx: 4, fontSize: 9, clip: false }, { text: { field: "end" }, fill: { value: "var(--muted)" } }),
      across.length > 0 && { transform: [{ filter: "datum.shown > 0.2 && datum.k != 'level'" }], params: [{ name: "near", select: { type: "point", on: "pointerover", nearest: true, clear: "pointerout" } }],
        mark: { type: "circle", size: 60 },
        encoding: { ...base, fill: same, opacity: { condition: { param: "near", empty: false, value: 1 }, value: 0 },
          tooltip: [{ field: "i", type: "quantitative", format: "d", title: "series" }, ...(panel.x.ticks || !panel.x.t ? [] : [{ field: "x", title: panel.x.t, format: ",.4~g" }]), ...(panel.y.ticks ? [{ field: "x", title: panel.x.t, format: ".4~g" }] : [{ field: "y", title: panel.y.t, format: ",.4~g" }])] } },
    ].filter(Boolean);
    const colour = "var(--ink)", muted = "var(--muted)", rule = "var(--rule)", font = "inherit";
    return {
      width: 320, height: 190, autosize: { type: "pad" }, background: null, padding: 3,
      data: { values: rows(panel) },
      params: [{ name: "only", value: form.elements.method.value }],
      transform: [{ calculate: "only != '' && datum.m != only ? 0.07 : 1", as: "shown" }, { calculate: "datum.shown * 0.16", as: "faint" }],
      layer: layers,
      config: {
        font, view: { stroke: null },
        axis: { labelColor: colour, titleColor: colour, tickColor: rule, domainColor: muted, gridColor: rule, titleFontWeight: "normal", labelFontSize: 10.5, titleFontSize: 11, labelOverlap: true },
      },
    };
  }
  const described = (panel) => ({ series, ...values }, escape) => {
    const rows = Object.entries(values).map(([name, text]) => `<tr><td class="key">${escape(name)}</td><td class="value">${escape(text)}</td></tr>`);
    return `<h2>${escape(panel.s[Number(series)].t)}</h2><table>${rows.join("")}</table>`;
  };
  async function draw(element) {
    if (views.has(element)) return;
    views.set(element, null);
    const panel = JSON.parse(element.dataset.panel);
    const { view } = await vegaEmbed(element, specification(panel), { actions: false, renderer: "svg", tooltip: { theme: "custom", formatTooltip: described(panel) }, logLevel: 1 });
    views.set(element, view);
    element.classList.add("drawn");
  }
  const near = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) { near.unobserve(target); draw(target); }
  }, { rootMargin: "600px" });
  for (const element of all(".plot")) near.observe(element);

  // --- filters: the menus, the address's hash, and what is shown always say the same ---
  const fits = (element, wanted, keys) => keys.every((key) => {
    const own = element.dataset[key];
    return !wanted[key] || own === undefined || own === wanted[key];  // what says nothing about a filter stays
  });
  function apply() {
    const wanted = Object.fromEntries(KEYS.map((key) => [key, form.elements[key].value]));
    const active = KEYS.some((key) => wanted[key]);
    let shown = 0, total = 0;
    for (const table of all(".table")) {
      let left = 0;
      for (const row of all("tbody tr", table)) {
        row.hidden = !fits(row, wanted, KEYS);
        left += !row.hidden;
        total += 1;
      }
      shown += left;
      table.querySelector(".nothing").hidden = left > 0;
    }
    const places = KEYS.filter((key) => key !== "method");
    for (const facet of all(".facet")) facet.hidden = !fits(facet, wanted, places);
    for (const entry of all(".legend [data-method]")) entry.classList.toggle("off", !fits(entry, wanted, ["method"]));
    for (const view of views.values()) view?.signal("only", wanted.method).run();
    for (const figure of all("figure")) figure.hidden = active && !figure.querySelector(".facet:not([hidden])");
    for (const key of KEYS) form.elements[key].classList.toggle("set", Boolean(wanted[key]));
    document.getElementById("reset").disabled = !active;
    document.getElementById("count").textContent = active ? `${shown} of ${total} rows` : "";
  }
  function write() {
    const parts = KEYS.filter((key) => form.elements[key].value).map((key) => `${key}=${encodeURIComponent(form.elements[key].value)}`);
    history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
  }
  function read() {
    const hash = location.hash.slice(1);
    if (hash && !hash.includes("=")) return;  // a section
    const wanted = new URLSearchParams(hash);
    for (const key of KEYS) {
      const menu = form.elements[key];
      menu.value = wanted.get(key) ?? "";
      if (menu.selectedIndex < 0) menu.value = "";
    }
    apply();
  }
  form.addEventListener("change", () => { write(); apply(); });
  form.addEventListener("reset", () => setTimeout(() => { write(); apply(); }));
  addEventListener("hashchange", read);
  for (const link of all(".sections a")) {
    link.addEventListener("click", (event) => {  // the hash belongs to the filters
      event.preventDefault();
      const target = document.querySelector(link.getAttribute("href"));
      target.scrollIntoView();
      target.tabIndex = -1;
      target.focus({ preventScroll: true });
    });
  }

  // --- tables sort by a click on a header; a third click brings the first order back ---
  const value = (row, column) => {
    const cell = row.cells[column];
    const key = cell.dataset.v ?? cell.textContent.trim();
    const number = Number(key.replaceAll(",", ""));
    return key !== "" && !Number.isNaN(number) ? number : key;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return typeof a === "number" ? -1 : 1;
  };
  for (const table of all("table")) {
    const body = table.tBodies[0];
    const first = [...body.rows];
    all("thead th", table).forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort || "none"];
        for (const other of all("thead th", table)) other.ariaSort = "none";
        head.ariaSort = next;
        const sorted = next === "none" ? first : [...first].sort((a, b) => compare(value(a, column), value(b, column)));
        body.append(...(next === "descending" ? sorted.reverse() : sorted));
      });
    });
  }

  // --- paper: everything is open when it is printed ---
  addEventListener("beforeprint", () => { for (const part of all("details:not([open])")) { part.open = true; part.dataset.folded = ""; } });
  addEventListener("afterprint", () => { for (const part of all("details[data-folded]")) { part.open = false; delete part.dataset.folded; } });

  read();
})();
