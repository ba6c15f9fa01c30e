// Charts over time, and of degrees: each with a key, and a table that says the same.

import { amount, count, date, element, setText, swatch, table, tick } from "./dom.js";

const KINDS = 6; // that are told apart in a stack; the others are added up
const TABLE_ROWS = 15;
const charts = new Set();

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  charts.forEach(chart => chart.draw()));

const numbers = values => values.filter(value => value !== null);
const mean = values => {
  const known = numbers(values);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};
const last = values => values.findLast(value => value !== null) ?? null;

class Chart {
  constructor(place) {
    this.plot = element("div", { className: "plot" });
    this.key = element("p", { className: "key" });
    this.details = element("details", {}, element("summary", {}, "As a table"));
    this.details.addEventListener("toggle", () => this.tabulate());
    this.plot.setAttribute("aria-hidden", "true"); // the key and the table say it
    place.append(this.plot, this.key, this.details);
    this.drawing = null;
    charts.add(this);
    new ResizeObserver(() => this.drawing?.setSize(this.size())).observe(this.plot);
  }

  size() {
    return { width: Math.max(120, this.plot.clientWidth), height: this.plot.clientHeight };
  }

  tabulate() {
    if (!this.details.open) return;
    this.details.querySelector(".scroll, .none")?.remove();
    this.details.append(this.makeTable());
  }

  replace(options, data) {
    this.drawing?.destroy();
    this.drawing = new uPlot({ ...this.size(), legend: { show: false }, padding: [8, 24, 0, 0], ...options }, data,
      this.plot);
  }
}

const axis = more => ({
  stroke: style("--quiet"), font: "11px system-ui, sans-serif", size: 22, gap: 3,
  grid: { stroke: style("--grid"), width: 1 }, ticks: { show: false }, ...more,
});

/**
 * Series over time. format: number → text; stacked: kinds in place of one line.
 * show(series, data): series is [{ name, values }].
 */
export class TimeChart extends Chart {
  constructor(place, { format, stacked = false }) {
    super(place);
    Object.assign(this, { format, stacked, series: [], data: null, at: null });
  }

  show(series, { times, start, end, width }) {
    if (this.stacked) series = fewer(series);
    const shape = JSON.stringify(series.map(each => each.name));
    const same = shape === this.shape && this.drawing;
    Object.assign(this, { series, shape, data: { times, start, end, width } });
    if (same) this.drawing.setData(this.heights());
    else this.draw();
    this.describe();
    this.tabulate();
  }

  /** What is drawn: in a stack each series upon those after it. */
  heights() {
    const rows = this.series.map(each => each.values);
    if (this.stacked) {
      for (let row = rows.length - 2; row >= 0; row--) {
        rows[row] = rows[row].map((value, i) =>
          value === null ? null : value + (rows[row + 1][i] ?? 0));
      }
    }
    return [this.data.times, ...rows];
  }

  draw() {
    if (!this.data) return;
    const colors = this.series.map((_, i) => style(`--c${this.stacked ? i + 1 : 1}`));
    const faded = color => `${color}${this.stacked ? "b0" : "2e"}`;
    this.replace({
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: "time" }, points: { size: 6 } },
      scales: {
        x: { range: () => [this.data.start, this.data.end] },
        y: { range: (_, low, high) => [0, high > 0 ? 1.12 * high : 1] },
      },
      axes: [
        axis({ space: 70, values: (_, ticks, __, ___, step) => ticks.map(at => tick(at, step)) }),
        axis({ size: 54, space: 38, values: (_, ticks) => ticks.map(this.format) }),
      ],
      series: [{}, ...colors.map(color => ({
        stroke: color, fill: faded(color), width: this.stacked ? 1 : 1.6, points: { show: false },
      }))],
      bands: this.stacked ? colors.slice(1).map((_, i) => ({ series: [i + 1, i + 2] })) : [],
      hooks: { setCursor: [drawing => this.point(drawing.cursor.idx)] },
    }, this.heights());
  }

  point(index) {
    this.at = index ?? null;
    this.describe();
  }

  /** Say the values under the cursor, or the latest ones. */
  describe() {
    const { times } = this.data;
    const value = values => (this.at === null ? last(values) : values[this.at] ?? null);
    const when = this.at === null ? "latest" : date(times[this.at]);
    if (!this.series.length) {
      this.key.replaceChildren(element("span", {}, "None in this time."));
    } else if (this.stacked) {
      this.key.replaceChildren(...this.series.map(({ name, values }, i) =>
        element("span", {}, swatch(i), `${name} `, element("b", {}, this.format(value(values))))));
    } else {
      const { values } = this.series[0];
      const facts = [[when, value(values)], ["mean", mean(values)],
        ["peak", numbers(values).reduce((most, one) => Math.max(most, one), 0)]];
      this.key.replaceChildren(...facts.map(([name, fact]) =>
        element("span", {}, `${name} `, element("b", {}, this.format(fact)))));
    }
  }

  makeTable() {
    const { times } = this.data ?? { times: [] };
    const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS));
    const rows = [];
    for (let at = 0; at < times.length; at += step) rows.push(at);
    return table("Values over time", [["From", at => date(times[at]), ""],
      ...this.series.map(({ name, values }) =>
        [name, at => this.format(mean(values.slice(at, at + step))), "number"])], rows.reverse());
  }
}

/** The biggest kinds, and the sum of all others, the biggest first. */
function fewer(series) {
  const sum = ({ values }) => numbers(values).reduce((all, value) => all + value, 0);
  const sorted = series.toSorted((a, b) => sum(b) - sum(a));
  const others = sorted.slice(KINDS);
  if (others.length < 2) return sorted;
  const values = others[0].values.map((_, i) => {
    const known = numbers(others.map(each => each.values[i]));
    return known.length ? known.reduce((all, value) => all + value, 0) : null;
  });
  return [...sorted.slice(0, KINDS), { name: "others", values }];
}

/** How often each degree occurs: pairs of degree and count, both on a logarithmic scale. */
export class DegreeChart extends Chart {
  constructor(place) {
    super(place);
    this.pairs = [];
  }

  show(pairs) {
    this.pairs = pairs.filter(([degree, times]) => degree > 0 && times > 0);
    this.draw();
    this.tabulate();
  }

  draw() {
    if (!this.pairs.length) return;
    const powers = (_, ticks) => ticks.map(at => (Number.isInteger(Math.log10(at)) ? at : null));
    const log = size => axis({
      size, filter: powers, grid: { stroke: style("--grid"), width: 1, filter: powers },
      values: (_, ticks) => ticks.map(at => (at === null ? "" : amount(at))),
    });
    const color = style("--c1");
    this.replace({
      cursor: { show: false }, axes: [log(22), log(46)],
      scales: { x: { time: false, distr: 3 }, y: { distr: 3 } },
      series: [{}, { stroke: color, paths: () => null, points: { show: true, size: 4, fill: color } }],
    }, [this.pairs.map(pair => pair[0]), this.pairs.map(pair => pair[1])]);
    const [[most], often] = [this.pairs.at(-1), this.pairs.reduce((a, b) => (b[1] > a[1] ? b : a))];
    setText(this.key, `most often ${count(often[0])}, at most ${count(most)}`);
  }

  makeTable() {
    return table("Degrees", [["Degree", pair => count(pair[0]), "number"],
      ["Times", pair => count(pair[1]), "number"]], this.pairs.slice(0, TABLE_ROWS));
  }
}
