// The page: a feed of overviews moves the numbers, questions fill the charts and tables.

import { DegreeChart, TimeChart } from "./charts.js";
import {
  amount, ask, byId, byteRate, bytes, count, date, duration, element, rate, setText, share, swatch,
  table, time, wheel,
} from "./dom.js";

const POINTS = 300;
const RETRY = 5000; // ms until a closed feed is opened again
const LINKS_EVERY = 300000; // ms
const SILENCE = 5; // seconds without an overview that are said

let latest = null;
let heard = 0;
let rights = { possible: false, allowed: false };
let errors = new Set(); // their names; URLs that failed by others were not fetched

const words = text => text.replaceAll("_", " ");
const valuesOf = (all, prefix) => Object.entries(all ?? {})
  .filter(([name]) => name.startsWith(prefix))
  .map(([name, value]) => [words(name.slice(prefix.length)), value]);

// The feed

function connect() {
  const feed = new EventSource("events");
  feed.addEventListener("hello", event => {
    const hello = JSON.parse(event.data);
    rights = hello.acts;
    errors = new Set(hello.errors.map(words));
  });
  feed.addEventListener("overview", event => show(JSON.parse(event.data)));
  feed.addEventListener("trouble", event => trouble(JSON.parse(event.data).error));
  feed.addEventListener("error", () => {
    setLive(false, "not connected");
    // The browser tries again by itself, unless it was refused: the server is full or new.
    if (feed.readyState === EventSource.CLOSED) {
      ask("links").catch(() => null).then(() => setTimeout(connect, RETRY));
    }
  });
}

function setLive(on, text) {
  byId("live").classList.toggle("on", on);
  setText(byId("live"), text);
  if (!on) byId("health").classList.remove("good"); // who knows
}

setInterval(() => {
  const silent = (Date.now() - heard) / 1000;
  if (heard && silent > SILENCE) setLive(false, `no numbers for ${duration(silent)}`);
}, 1000);

function trouble(text) {
  setLive(false, "no numbers"); // the last ones stay
  setText(byId("words"), text);
  byId("health").classList.add("bad");
}

// The overview

function show(overview) {
  const first = latest === null;
  latest = overview;
  heard = Date.now();
  setLive(true, overview.state === "running" ? `live, ${time(overview.when)}` : "connected");
  for (const part of [showHealth, showTiles, showWaits, showErrors, showEnd, showAgents, showQueues, showActs]) {
    part(overview);
  }
  if (first) everything();
}

function showHealth(overview) {
  const name = overview.crawl || overview.spider || overview.job;
  setText(byId("name"), name);
  document.title = `${overview.healthy ? "" : "! "}${name}`;
  setText(byId("state"), overview.paused ? "paused" : overview.state);
  byId("state").hidden = false;
  byId("state").className = `pill ${overview.state === "running" ? "running" : ""}`;
  const ended = overview.ended ? `, ended ${date(overview.ended)}` : "";
  setText(byId("about"), `${overview.job}, since ${date(overview.began)}${ended}`);
  const good = overview.healthy && !overview.alerts.length;
  byId("health").classList.toggle("good", good);
  byId("health").classList.toggle("bad", !good);
  setText(byId("words"), overview.words);
  const told = overview.words.toLowerCase();
  const alerts = overview.alerts.map(each => each.text).filter(text => !told.includes(text.toLowerCase()));
  byId("alerts").replaceChildren(...alerts.map(text => element("li", {}, text)));
  // Said aloud when the state changes, not each second.
  const state = [overview.state, good, ...overview.alerts.map(each => each.name)].join();
  if (byId("spoken").dataset.state !== state) {
    byId("spoken").dataset.state = state;
    setText(byId("spoken"), [overview.words, ...alerts].join(" "));
  }
}

function showTiles({ counters, rates, gauges, waits, end }) {
  const hosts = ready => waits.filter(each => (each.reason === "ready") === ready)
    .reduce((sum, each) => sum + each.hosts, 0);
  const failed = counters.failed / (counters.pages + counters.failed);
  const tiles = [
    ["Pages", count(counters.pages), rate(rates.pages)],
    ["URLs discovered", count(counters.new_urls), rate(rates.new_urls)],
    ["Bandwidth", byteRate(rates.bytes), `${bytes(counters.bytes)} so far`],
    ["Failed", count(counters.failed), `${share(failed)}, ${rate(rates.failed)}`],
    ["Queue", count(gauges.pending), end.text],
    ["Hosts in memory", count(gauges.hosts), `${amount(hosts(false))} wait, ${amount(hosts(true))} ready`],
    ["Under way", count(gauges.under_way), `${count(counters.retried)} retried`],
    ["Memory", bytes(gauges.memory), `${bytes(gauges.disk_free)} disk free`],
  ];
  const place = byId("tiles");
  if (!place.children.length) {
    place.append(...tiles.map(([name]) => element("div", {}, element("dt", {}, name),
      element("dd"), element("dd"))));
  }
  tiles.forEach(([, value, more], i) => {
    setText(place.children[i].children[1], value);
    setText(place.children[i].children[2], more);
  });
}

/** Replace the table in a place, unless it is being used: a selection or the focus would be lost. */
function fill(id, made) {
  const place = byId(id);
  const used = place.contains(document.activeElement) && document.activeElement.tagName === "BUTTON";
  const selected = !getSelection().isCollapsed && place.contains(getSelection().anchorNode);
  if (used || selected) return;
  const left = place.querySelector(".scroll")?.scrollLeft ?? 0;
  const focused = place.contains(document.activeElement);
  place.replaceChildren(made);
  const scroll = place.querySelector(".scroll");
  if (scroll) scroll.scrollLeft = left;
  if (focused) scroll?.focus({ preventScroll: true });
}

function showWaits({ waits }) {
  fill("waits", table("Waiting hosts", [
    ["Reason", row => row.reason, ""], ["Hosts", row => count(row.hosts), "number"],
    ["Next in", row => duration(row.next), "number"],
  ], waits));
}

function showErrors({ counters }) {
  const known = valuesOf(counters, "errors.").filter(([, total]) => total > 0)
    .sort((a, b) => b[1] - a[1]);
  for (const [id, title, wanted] of [["errors", "Errors so far", true], ["refused", "URLs not fetched", false]]) {
    const kinds = known.filter(([name]) => errors.has(name) === wanted);
    const all = kinds.reduce((sum, [, total]) => sum + total, 0);
    fill(id, table(title, [
      ["Kind", row => row[0], ""], ["So far", row => count(row[1]), "number"],
      ["Share", row => share(row[1] / all), "number"],
    ], kinds));
  }
}

function showEnd({ end, rates, gauges }) {
  const at = end.seconds ? `, ${date(Date.now() / 1000 + end.seconds)}` : "";
  setText(byId("end"), `${end.text || "–"}${at}`);
  setText(byId("growth"), `${count(gauges.pending)} URLs to go; ${rate(rates.new_urls)} come, `
    + `${rate(rates.pages)} go`);
}

function showAgents({ agents, phases }) {
  byId("agents").hidden = !agents.length && !phases;
  if (byId("agents").hidden) return;
  const wheels = [];
  if (agents.length) {
    wheels.push(element("div", { className: "wheel" },
      wheel("Shares of the ring", agents.map((each, i) => ({ share: each.share ?? 0, color: (i % 8) + 1 }))),
      element("span", { className: "quiet" }, "Shares of the ring")));
  }
  if (phases) {
    const parts = Array.from({ length: phases.count }, (_, i) =>
      ({ share: 1 / phases.count, color: i === phases.active ? 1 : 8 }));
    const text = `Phase ${phases.active + 1} of ${phases.count}, ${duration(phases.left)} left`;
    wheels.push(element("div", { className: "wheel" }, wheel(text, parts),
      element("span", { className: "quiet" }, text)));
  }
  byId("wheels").replaceChildren(...wheels);
  fill("agent-rows", agents.length ? table("Agents", [
    ["Agent", (row, i) => element("span", {}, swatch(i), row.name), ""],
    ["State", row => row.state, ""], ["Share", row => share(row.share), "number"],
    ["Pages", row => count(row.pages), "number"], ["Rate", row => rate(row.rate), "number"],
    ["Queue", row => count(row.pending), "number"], ["Memory", row => bytes(row.memory), "number"],
  ], agents) : element("span"));
}

function showQueues({ queues }) {
  byId("queue-rows").hidden = !queues.length;
  if (!queues.length) return;
  const of = state => row => `${count(row[`runs_${state}`])} (${amount(row[`urls_${state}`])} URLs)`;
  fill("queue-rows", table("Runs by queue and state", [
    ["Queue", row => row.queue, ""], ["Weight", row => count(row.weight), "number"],
    ["Share", row => share(row.share), "number"],
    ...["queued", "running", "later", "aside", "done"].map(state => [state, of(state), "number"]),
  ], queues));
}

// Charts

const CHARTS = [
  [new TimeChart(byId("chart-pages"), { format: rate }), data => [["pages", data.rates.pages]]],
  [new TimeChart(byId("chart-new"), { format: rate }), data => [["new URLs", data.rates.new_urls]]],
  [new TimeChart(byId("chart-bytes"), { format: byteRate }), data => [["bytes", data.rates.bytes]]],
  [new TimeChart(byId("chart-waits"), { format: amount, stacked: true }),
    data => valuesOf(data.means, "waiting.").filter(([name]) => name !== "ready")],
  [new TimeChart(byId("chart-errors"), { format: rate, stacked: true }),
    data => valuesOf(data.rates, "errors.").filter(([name]) => errors.has(name))],
  [new TimeChart(byId("chart-queue"), { format: amount }), data => [["URLs to go", data.means.pending]]],
];
let nextCharts = 0;

const chosen = name => document.querySelector(`[name=${name}]:checked`).value;

async function drawCharts() {
  clearTimeout(nextCharts);
  const range = chosen("range");
  const { began, state, when } = latest;
  const last = state === "running" ? null : when; // of a crawl that does not run, its last hours
  const young = range === "all" || (last ?? Date.now() / 1000) - began < range;
  const start = young ? began - 1 : (last ?? 0) - range;
  const end = last ? { end: last + 1 } : {};
  let wait = 10;
  try {
    const data = await ask("series", { start, ...end, points: POINTS });
    if (range !== chosen("range")) return;
    for (const [chart, series] of CHARTS) {
      chart.show(series(data).filter(([, values]) => values)
        .map(([name, values]) => ({ name, values })), data);
    }
    wait = Math.min(60, Math.max(4, data.width));
  } catch (error) {
    setLive(false, error.message);
  }
  nextCharts = setTimeout(later(drawCharts), 1000 * wait);
}

/** The work of a timer: none while nobody looks. */
const later = work => () => (document.hidden
  ? document.addEventListener("visibilitychange", work, { once: true }) : work());

// Tables

async function fillFrom(id, path, asked, make, every) {
  const complaint = text => element("p", { className: "error" }, text);
  const made = await ask(path, asked).then(
    ({ rows, missing }) => (missing ? element("div", {}, make(rows), complaint(`Not all: ${missing}`))
      : make(rows)),
    error => complaint(error.message));
  if (!asked.by || asked.by === chosen("by")) fill(id, made);
  if (every) setTimeout(later(() => fillFrom(id, path, asked, make, every)), 1000 * every);
}

const askButton = target => element("button", {
  type: "button", textContent: target, title: `Why is ${target} not fetched?`,
  onclick: () => {
    byId("target").value = target;
    byId("ask-form").requestSubmit();
    byId("target").focus();
  },
});

/** A table of hosts: which columns it has depends on their order. */
function hostTable(rows) {
  const formats = { host: askButton, seconds: duration, next_visit: duration };
  const columns = [...new Set(rows.flatMap(Object.keys))].map(name => {
    const isNumber = rows.some(row => typeof row[name] === "number");
    const format = formats[name] ?? (isNumber ? count : plain);
    return [words(name), row => format(row[name]), isNumber ? "number" : ""];
  });
  return table("Hosts", columns, rows);
}

function plain(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (Array.isArray(value)) return value.map(plain).join("\n") || "–";
  if (typeof value === "object") {
    return Object.entries(value).map(([name, each]) => `${words(name)}: ${plain(each)}`).join("\n");
  }
  return typeof value === "number" ? String(Math.round(1000 * value) / 1000) : String(value);
}

const facts = row => element("dl", { className: "facts" }, ...Object.entries(row).flatMap(
  ([name, value]) => [element("dt", {}, words(name)), element("dd", {}, plain(value))]));

const showHosts = () => fillFrom("hosts", "hosts", { by: chosen("by") }, hostTable);

function form(id, work) {
  byId(id).addEventListener("submit", async event => {
    event.preventDefault();
    const button = event.submitter ?? byId(id).querySelector("button");
    button.disabled = true;
    await work(Object.fromEntries(new FormData(byId(id))));
    button.disabled = false;
  });
}

const list = make => rows => (rows.length ? element("div", {}, ...rows.map(make))
  : element("p", { className: "none" }, "Nothing is known of it."));

form("ask-form", asked => fillFrom("answer", "why", asked, list(facts)));
form("search-form", asked => fillFrom("found", "search", asked, list(hit)));

const hit = ({ title, url, snippet, when, pack }) => element("div", { className: "hit" },
  element("b", {}, title || url), element("div", {}, snippet),
  element("div", { className: "quiet" }, `${url}, ${date(when)}, ${inPack(pack)}`));

const inPack = pack => (pack ? `${pack.file} at ${count(pack.offset)}` : "–");

const pageTable = rows => table("Recent pages", [
  ["Ended", row => time(row.ended), ""],
  ["Status", row => element("span", { className: row.status && row.status < 400 ? "" : "failed" }, plain(row.status ?? row.reason)), "number"],
  ["Size", row => bytes(row.bytes), "number"], ["Took", row => duration(row.seconds), "number"],
  ["URL", row => element("div", { title: row.url, className: "clamped" }, row.url), "long"],
  ["Pack", row => inPack(row.pack), ""],
], rows);

const degreeCharts = {};

async function showLinks() {
  const { degrees = {}, missing = "", ...totals } = await ask("links").catch(() => ({}));
  setTimeout(later(showLinks), LINKS_EVERY);
  byId("links").hidden = !Object.keys(degrees).length;
  setText(byId("links-missing"), missing && `Not all: ${missing}`);
  byId("link-totals").replaceChildren(...Object.entries(totals).map(([name, value]) =>
    element("div", {}, element("dt", {}, words(name)), element("dd", {}, count(value)))));
  for (const [name, pairs] of Object.entries(degrees)) {
    degreeCharts[name] ??= degreeChart(DEGREES[name] ?? words(name));
    degreeCharts[name].show(pairs);
  }
}

function degreeChart(title) {
  const place = element("div", { className: "chart" }, element("h3", {}, title));
  byId("degrees").append(place);
  return new DegreeChart(place);
}

const DEGREES = {
  out: "Links of a page", external: "Links to other hosts", out_hosts: "Hosts a host links to",
  in_hosts: "Hosts that link to a host",
};

// Acts

function showActs(overview) {
  byId("act").hidden = !(rights.possible && overview.acts);
  byId("unlock").hidden = rights.allowed;
  byId("acts").hidden = !rights.allowed;
}

for (const verbs of document.querySelectorAll("[data-verbs]")) {
  verbs.addEventListener("submit", async event => {
    event.preventDefault();
    const button = event.submitter;
    const act = { ...Object.fromEntries(new FormData(verbs)), verb: button.value, why: byId("why").value };
    button.disabled = true;
    setText(byId("said"), "Asked; waiting for the crawl");
    const { ok, said } = await ask("act", {}, {
      method: "POST", body: JSON.stringify(act), headers: { "Content-Type": "application/json" },
    }).catch(error => ({ ok: false, said: error.message }));
    setText(byId("said"), said);
    byId("said").className = ok ? "" : "error";
    button.disabled = false;
  });
}

function everything() {
  drawCharts();
  showHosts();
  setInterval(later(showHosts), 15000);
  fillFrom("recent", "pages", {}, pageTable, 4);
  showLinks();
  byId("ranges").addEventListener("change", drawCharts);
  byId("host-order").addEventListener("change", showHosts);
}

connect();
