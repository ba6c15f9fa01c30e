// Elements and numbers. Whatever comes from a crawl is text: it only ever becomes a text node.

export const byId = id => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter(child => child !== null));
  return made;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const toSeconds = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });

const missing = value => value === null || value === undefined || Number.isNaN(value);
const say = format => value => (missing(value) ? "–" : format(value));

export const count = say(value => whole.format(value));
export const amount = say(value => (Math.abs(value) < 1e4 ? short : compact).format(value));
export const rate = say(value => `${amount(value)}/s`);
export const share = say(value => `${short.format(100 * value)} %`);
export const bytes = say(value => {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; Math.abs(value) >= 1000 && unit < units.length - 1; unit++) value /= 1000;
  return `${short.format(value)} ${units[unit]}`;
});
export const byteRate = say(value => `${bytes(value)}/s`);
export const duration = say(seconds => {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (Math.abs(seconds) >= 2 * length) return `${whole.format(seconds / length)} ${unit}`;
  }
  return Math.abs(seconds) < 1 && seconds ? `${whole.format(1000 * seconds)} ms` : `${short.format(seconds)} s`;
});
export const date = say(when => `${day.format(1000 * when)} ${clock.format(1000 * when)}`);
export const time = say(when => toSeconds.format(1000 * when));

/** The text of a tick; step is the seconds between two of them. */
export function tick(when, step) {
  if (step >= 86400) return day.format(1000 * when);
  return (step >= 60 ? clock : toSeconds).format(1000 * when);
}

/** A table that can be scrolled; columns: [title, row => text or element, "number" | "long" | ""]. */
export function table(name, columns, rows) {
  if (!rows.length) return element("p", { className: "none" }, "None.");
  const cell = (tag, content, kind) => element(tag, { className: kind ?? "" }, content);
  const head = columns.map(([title, , kind]) =>
    Object.assign(cell("th", title, kind), { scope: "col" }));
  const body = rows.map((row, index) =>
    element("tr", {}, ...columns.map(([, value, kind]) => cell("td", value(row, index), kind))));
  const made = element("table", {}, element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body));
  const region = element("div", { className: "scroll", tabIndex: 0 }, made);
  region.setAttribute("role", "region");
  region.setAttribute("aria-label", `${name}, a table`);
  return region;
}

export const swatch = index => element("span", { className: `swatch c${(index % 8) + 1}` });

/** A ring of parts: [{ share, color }], color from 1 to 8; name is read aloud. */
export function wheel(name, parts) {
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const ring = svg("svg", { viewBox: "0 0 36 36", role: "img", "aria-label": name });
  let begun = 0;
  for (const { share: part, color } of parts) {
    const length = Math.max(0, 100 * part - (parts.length > 1 ? 0.8 : 0));
    ring.append(svg("circle", {
      cx: 18, cy: 18, r: 15, pathLength: 100, class: `stroke c${color}`,
      "stroke-dasharray": `${length} ${100 - length}`, "stroke-dashoffset": 25 - 100 * begun,
    }));
    begun += part;
  }
  return ring;
}

/** The JSON that the server answers with. Throws an Error with its words. */
export async function ask(path, words = {}, options = {}) {
  const response = await fetch(`${path}?${new URLSearchParams(words)}`, options);
  if (response.status === 401) location.reload(); // the server was started anew
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}
