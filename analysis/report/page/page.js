"use strict";
(() => {
  const KEYS = ["model", "task", "method", "precision"];
  const form = document.getElementById("filters");
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- figures: each panel has its specification, drawn when it comes near the screen ---
  const views = new Map();
  const described = (words) => ({ series, ...values }, escape) => {
    const rows = Object.entries(values).map(([name, text]) => `<tr><td class="key">${escape(name)}</td><td class="value">${escape(text)}</td></tr>`);
    return `<h2>${escape(words[Number(series)])}</h2><table>${rows.join("")}</table>`;
  };
  async function draw(element) {
    if (views.has(element)) return;
    views.set(element, null);
    const panel = JSON.parse(element.dataset.panel);
    panel.params[0].value = form.elements.method.value;
    const tooltip = { theme: "custom", formatTooltip: described(panel.usermeta.words) };
    const { view } = await vegaEmbed(element, panel, { actions: false, renderer: "svg", tooltip, logLevel: 1, config: LOOKS });
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
