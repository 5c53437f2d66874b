"use strict";
// Live updates, charts, filter, keys. Pages work without it, as they are when they are loaded.

const dark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// --- charts ---------------------------------------------------------------------------------------------------
const UNITS = {
  cards: (v) => v.toFixed(2),
  fraction: (v) => `${Math.round(100 * v)} %`,
  bytes: (v) => (v >= 2 ** 30 ? `${(v / 2 ** 30).toFixed(v >= 10 * 2 ** 30 ? 0 : 1)} GiB` : `${Math.round(v / 2 ** 20)} MiB`),
  watts: (v) => `${Math.round(v)} W`,
  celsius: (v) => `${Math.round(v)} °C`,
};
const DASHES = { share: [5, 4], limit: [2, 4], allocated: [5, 4] };
const POWERS = Array.from({ length: 44 }, (_, i) => 2 ** i);
const charts = new Map();
let range = "1h";

function options(box, fields, unit) {
  const show = UNITS[unit];
  const inks = ["--use", "--ink", "--muted"];
  const grid = { stroke: color("--line"), width: 1 };
  return {
    width: box.clientWidth, height: box.clientHeight,
    legend: { show: false },
    cursor: { y: false, points: { size: 6 } },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (_u, _low, high) => [0, unit === "fraction" ? 1 : Math.max(high || 0, unit === "cards" ? 0.1 : 1) * 1.08] } },
    axes: [
      { stroke: color("--muted"), grid: { show: false }, ticks: { show: false }, font: "11px Inter", size: 26, space: 84,
        values: [[86400, "{MMM} {D}"], [3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]].map(([s, f]) => [s, f, null, null, null, null, null, null, 1]) },
      { stroke: color("--muted"), grid, ticks: { show: false }, font: "11px Inter", size: 58, space: 36, incrs: unit === "bytes" ? POWERS : undefined, values: (_u, all) => all.map(show) },
    ],
    series: [{}, ...fields.map((field, i) => ({
      label: field, stroke: color(inks[i % 3]), width: i ? 1.25 : 1.75, dash: DASHES[field],
      fill: i ? undefined : color("--use-wash"), points: { show: false }, spanGaps: false,
    }))],
    hooks: { setCursor: [(u) => point(box, u, fields, show)] },
  };
}

function point(box, u, fields, show) {
  const at = u.cursor.idx;
  let tip = box.querySelector(".tip");
  if (!tip) { tip = document.createElement("div"); tip.className = "tip"; box.append(tip); }
  tip.hidden = at == null;
  if (at == null) return;
  const clock = new Date(1000 * u.data[0][at]).toLocaleTimeString();
  tip.textContent = [clock, ...fields.map((f, i) => `${f} ${u.data[i + 1][at] == null ? "–" : show(u.data[i + 1][at])}`)].join("   ");
}

// A report has its data inside.
const inside = document.getElementById("data");
const saved = inside ? JSON.parse(inside.textContent) : null;

async function read(box) {
  if (saved) return saved[box.dataset.keys];
  const query = box.dataset.keys.split(" ").map((key) => `key=${encodeURIComponent(key)}`).join("&");
  const answer = await fetch(`/history.json?range=${range}&${query}`);
  return answer.ok ? answer.json() : null;
}

async function load(box) {
  const fields = box.dataset.fields.split(" ");
  const found = await read(box);
  if (!found) return;
  const line = found.lines[0];
  const data = [found.times, ...fields.map((field) => line ? line.fields[field] : [])];
  const known = data.slice(1).some((values) => values.some((value) => value != null));
  box.classList.toggle("empty", !known);
  if (!known) { charts.get(box)?.destroy(); charts.delete(box); return; }
  if (charts.has(box)) charts.get(box).setData(data);
  else charts.set(box, new uPlot(options(box, fields, box.dataset.unit), data, box));
}

function redraw() {
  for (const [box, drawn] of charts) if (!box.isConnected) { drawn.destroy(); charts.delete(box); }
  document.querySelectorAll(".chart").forEach((box) => { load(box).catch(() => {}); });
}
function rebuild() {
  for (const drawn of charts.values()) drawn.destroy();
  charts.clear();
  redraw();
}
let drawnAt = 0;
function refreshCharts() {
  if (Date.now() - drawnAt < 4500) return;
  drawnAt = Date.now();
  redraw();
}

// --- live -----------------------------------------------------------------------------------------------------
function live() {
  const badge = document.getElementById("live"), lost = document.getElementById("lost");
  if (!badge) return;
  const source = new EventSource("/live");
  const set = (up) => {
    badge.classList.toggle("off", !up);
    badge.lastElementChild.textContent = up ? "live" : "lost";
    lost.hidden = up;
    if (!up) document.getElementById("lost-at").textContent = document.querySelector("footer time").textContent;
  };
  source.addEventListener("open", () => set(true));
  source.addEventListener("error", () => {
    set(false);
    // A server that refuses (a login that ended) is not asked again by the browser itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(live, 5000);
  });
  source.addEventListener("tick", () => {
    set(true);
    if (document.hidden || document.getSelection().type === "Range") return;
    document.body.dispatchEvent(new Event("tick"));
    refreshCharts();
  });
}

// --- filter, keys, theme, copy --------------------------------------------------------------------------------
function filter() {
  const words = (document.getElementById("filter")?.value || "").toLowerCase().split(/\s+/).filter(Boolean);
  document.querySelectorAll("[data-filter]").forEach((row) => {
    const text = row.dataset.filter.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  });
}
function toggleTheme() {
  const next = dark() ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try { localStorage.setItem("theme", next); } catch { /* not remembered */ }
  rebuild();
}
document.addEventListener("input", (event) => { if (event.target.id === "filter") filter(); });
document.addEventListener("htmx:after:swap", filter);
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "theme") toggleTheme();
  if (button.dataset.copy) navigator.clipboard?.writeText(button.dataset.copy).then(() => { button.textContent = "copied"; });
  if (button.dataset.range) {
    range = button.dataset.range;
    document.querySelectorAll("[data-range]").forEach((each) => each.setAttribute("aria-pressed", String(each.dataset.range === range)));
    rebuild();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const links = document.querySelectorAll("nav a");
  if (/^[1-9]$/.test(event.key) && links[event.key - 1]) links[event.key - 1].click();
  else if (event.key === "t") toggleTheme();
  else if (event.key === "/") { const box = document.getElementById("filter"); if (box) { event.preventDefault(); box.focus(); } }
});
let resizing;
addEventListener("resize", () => { clearTimeout(resizing); resizing = setTimeout(() => {
  for (const [box, drawn] of charts) drawn.setSize({ width: box.clientWidth, height: box.clientHeight });
}, 100); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);

// On a phone the pages' names are wider than the screen.
document.querySelector("nav a[aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
drawnAt = Date.now();
redraw();
live();
