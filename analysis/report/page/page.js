"use strict";
(() => {
  const KEYS = ["model", "task", "method", "precision"];
  const form = document.getElementById("filters");
  const tip = document.getElementById("tip");
  const provenance = JSON.parse(document.getElementById("provenance").textContent);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- filters: the menus, the address's hash, and what is shown always say the same ---
  const chosen = () => Object.fromEntries(KEYS.map((key) => [key, form.elements[key].value]));

  const fits = (element, wanted) => KEYS.every((key) => {
    const own = element.dataset[key];
    return !wanted[key] || own === undefined || own === wanted[key];
  });

  function apply() {
    const wanted = chosen();
    const active = KEYS.some((key) => wanted[key]);
    let shown = 0, total = 0;
    for (const table of all(".table")) {
      let left = 0;
      for (const row of all("tbody tr", table)) {
        // a row that says nothing about a filter stays
        row.hidden = !fits(row, wanted);
        left += !row.hidden;
        total += 1;
      }
      shown += left;
      table.querySelector(".nothing").hidden = left > 0;
    }
    for (const facet of all(".facet")) facet.hidden = !fits({ dataset: { ...facet.dataset, method: undefined } }, wanted);
    for (const mark of all("svg.panel [data-method], .legend [data-method]")) {
      mark.classList.toggle("off", Boolean(wanted.method) && mark.dataset.method !== wanted.method);
    }
    for (const figure of all("figure")) figure.hidden = active && !figure.querySelector(".facet:not([hidden])");
    for (const key of KEYS) form.elements[key].classList.toggle("set", Boolean(wanted[key]));
    document.getElementById("reset").disabled = !active;
    document.getElementById("count").textContent = active ? `${shown} of ${total} rows` : "";
  }

  function write() {
    const parts = KEYS.filter((key) => form.elements[key].value)
      .map((key) => `${key}=${encodeURIComponent(form.elements[key].value)}`);
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
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", read);
  for (const link of all(".sections a, .skip")) {
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
    const key = cell.dataset.sort ?? cell.textContent.trim();
    const number = Number(key);
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
      head.querySelector("button")?.addEventListener("click", () => {
        const next = { none: "ascending", ascending: "descending", descending: "none" }[head.ariaSort || "none"];
        for (const other of all("thead th", table)) other.ariaSort = "none";
        head.ariaSort = next;
        const rows = next === "none" ? first : [...first].sort((a, b) => compare(value(a, column), value(b, column)));
        body.append(...(next === "descending" ? rows.reverse() : rows));
      });
    });
  }

  // --- the tip: runs and notes behind a table's cell, values on a figure's line ---
  const make = (name, text, className) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (className) element.className = className;
    return element;
  };

  function place(x, y) {
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.max(8, Math.min(x + 14, innerWidth - box.width - 8));
    const above = y - box.height - 12;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : Math.min(y + 18, innerHeight - box.height - 8)}px`;
  }

  function facts(ids) {
    const parts = [];
    for (const id of ids.slice(0, 5)) {
      if (parts.length) parts.push(make("hr"));
      parts.push(make("div", id, "id"));
      const list = make("dl");
      for (const [name, text] of Object.entries(provenance[id] ?? {})) list.append(make("dt", name), make("dd", text));
      parts.push(list);
    }
    if (ids.length > 5) parts.push(make("hr"), make("div", `and ${ids.length - 5} more: ${ids.slice(5).join(", ")}`));
    return parts;
  }

  let owner = null;
  function hide() {
    tip.hidden = true;
    owner?.removeAttribute("aria-describedby");
    owner = null;
    for (const spot of all(".spot")) spot.remove();
  }

  function showCell(button) {
    hide();
    owner = button;
    button.setAttribute("aria-describedby", "tip");
    const { runs, note } = button.dataset;
    tip.replaceChildren(...(note ? [make("div", note)] : []), ...(runs ? facts(runs.split(" ")) : []));
    const box = button.getBoundingClientRect();
    place(box.left, box.top);
  }
  for (const kind of ["pointerover", "focusin"]) {
    document.addEventListener(kind, (event) => {
      const button = event.target.closest?.(".tip");
      if (button && button !== owner) showCell(button);
    });
  }
  for (const kind of ["pointerout", "focusout"]) {
    document.addEventListener(kind, (event) => { if (event.target.closest?.(".tip")) hide(); });
  }
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", hide, { passive: true, capture: true });

  // --- figures: the nearest point of a line, found by pointer or arrow keys ---
  const matrix = (element) => element.getScreenCTM();
  function points(svg) {
    if (svg.points) return svg.points;
    svg.points = all(".line, .bar", svg).flatMap((mark) => {
      const words = mark.dataset.words, method = mark.dataset.method;
      if (mark.classList.contains("bar")) {
        const box = mark.getBBox();
        return [{ x: box.x + box.width / 2, y: box.y, mark, words, bar: true, method }];
      }
      const uses = all("use", mark).map((use) => [use.getAttribute("x"), use.getAttribute("y")]);
      const path = mark.querySelector(":scope > path");
      const pairs = path ? [...path.getAttribute("d").matchAll(/(-?[\d.]+) (-?[\d.]+)/g)].map((m) => [m[1], m[2]]) : uses;
      return pairs.map(([x, y]) => ({ x: Number(x), y: Number(y), mark, words, method }));
    });
    return svg.points;
  }
  const scale = (at, from, to, [low, high], log) => {
    const share = (at - from) / (to - from);
    return log ? low * (high / low) ** share : low + (high - low) * share;
  };
  const digits = (number) => Math.abs(number) >= 1000
    ? Math.round(number).toLocaleString("en")
    : String(Number(number.toPrecision(3)));

  function showPoint(svg, point) {
    hide();
    svg.current = point;
    const { box, x, y, logx, logy, xlabel, ylabel } = JSON.parse(svg.dataset.axes);
    const parts = [make("div", point.words)];
    if (!point.bar) {
      const list = make("dl");
      if (xlabel) list.append(make("dt", xlabel), make("dd", digits(scale(point.x, box[0], box[2], x, logx))));
      list.append(make("dt", ylabel), make("dd", digits(scale(point.y, box[1], box[3], y, logy))));
      parts.push(list);
      const spot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
      for (const [name, text] of [["cx", point.x], ["cy", point.y], ["r", 3.2], ["class", "spot"]]) spot.setAttribute(name, text);
      svg.append(spot);
    }
    const id = point.words?.match(/run (\S+)$/)?.[1];
    if (id && provenance[id]) {
      const { device, started } = provenance[id];
      parts.push(make("div", [device, started].filter(Boolean).join(", ")));
    }
    tip.replaceChildren(...parts);
    const screen = new DOMPoint(point.x, point.y).matrixTransform(matrix(svg));
    place(screen.x, screen.y);
  }

  const live = (svg) => points(svg).filter((point) => !point.mark.classList.contains("off"));
  for (const svg of all("svg.panel")) {
    const seek = (event) => {
      const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix(svg).inverse());
      let best = null, least = 400;
      for (const point of live(svg)) {
        const distance = point.bar
          ? (Math.abs(at.x - point.x) < 6 ? Math.abs(at.x - point.x) : 1e9)
          : (at.x - point.x) ** 2 + (at.y - point.y) ** 2;
        if (distance < least) [least, best] = [distance, point];
      }
      if (best) { if (best !== svg.current || tip.hidden) showPoint(svg, best); } else hide();
    };
    svg.addEventListener("pointermove", seek);
    svg.addEventListener("pointerdown", seek);
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: "next", ArrowUp: "previous" }[event.key];
      const found = live(svg);
      if (!step || !found.length) return;
      event.preventDefault();
      const marks = [...new Set(found.map((point) => point.mark))];
      const now = found.includes(svg.current) ? svg.current : found[0];
      const own = found.filter((point) => point.mark === now.mark);
      if (typeof step === "number" && own.length > 1) {
        return showPoint(svg, own[Math.max(0, Math.min(own.length - 1, own.indexOf(now) + (svg.current ? step : 0)))]);
      }
      const move = step === "previous" || step === -1 ? -1 : 1;
      const other = marks[(marks.indexOf(now.mark) + move + marks.length) % marks.length];
      const candidates = found.filter((point) => point.mark === other);
      showPoint(svg, candidates.reduce((a, b) => (Math.abs(b.x - now.x) < Math.abs(a.x - now.x) ? b : a)));
    });
  }

  // --- colours: as the system, light, dark ---
  const themes = { auto: "Auto", light: "Light", dark: "Dark" };
  const button = document.getElementById("theme");
  let theme = "auto";
  try { theme = localStorage.getItem("theme") || "auto"; } catch { /* a file: page may have no storage */ }
  function paint() {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = themes[theme];
    button.ariaLabel = `Colours: ${theme === "auto" ? "as the system has them" : theme}`;
  }
  button.addEventListener("click", () => {
    const names = Object.keys(themes);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    try { localStorage.setItem("theme", theme); } catch { /* see above */ }
    paint();
  });

  // --- paper: everything is open when it is printed ---
  addEventListener("beforeprint", () => {
    for (const part of all("details:not([open])")) { part.open = true; part.dataset.opened = ""; }
  });
  addEventListener("afterprint", () => {
    for (const part of all("details[data-opened]")) { part.open = false; delete part.dataset.opened; }
  });

  paint();
  read();
  if (location.hash.length > 1 && !location.hash.includes("=")) apply();
})();
