// Charts: small pictures of figures, as SVG made of elements. Each has its numbers in words for screen readers.

import { element, shape, spelt } from "./dom.js";
import { figure, percent } from "./numbers.js";

const WIDTH = 260;
const HEIGHT = 90;

export function card(title, ...content) {
  return element("section", { class: "card figure" }, element("h2", {}, title), content);
}

/** Bars: [label, value] each. */
export function bars(title, entries) {
  const most = Math.max(1, ...entries.map(([, value]) => value));
  return card(
    title,
    element(
      "ul",
      { class: "bars" },
      entries.map(([label, value]) => {
        const bar = element("span", { class: "bar" });
        bar.style.width = `${(100 * value) / most}%`;
        return element(
          "li",
          {},
          element("span", { class: "bar-label" }, spelt(String(label))),
          element("span", { class: "bar-track" }, bar),
          element("span", { class: "bar-value" }, figure(value)),
        );
      }),
    ),
  );
}

/** Columns of a histogram: {low, high, count} each. */
export function histogram(title, bins) {
  const most = Math.max(1, ...bins.map((bin) => bin.count));
  const width = WIDTH / Math.max(1, bins.length);
  const said = bins.map((bin) => `${figure(bin.low)} to ${figure(bin.high)}: ${bin.count}`).join(", ");
  return card(
    title,
    shape(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT + 16}`, role: "img", "aria-label": `${title}: ${said}` },
      bins.map((bin, place) => {
        const height = (HEIGHT * bin.count) / most;
        return shape(
          "rect",
          { class: "bar", x: place * width + 1, y: HEIGHT - height, width: Math.max(1, width - 2), height },
          shape("title", {}, `${figure(bin.low)} to ${figure(bin.high)}: ${bin.count}`),
        );
      }),
      bins.length
        ? [
            shape("text", { x: 0, y: HEIGHT + 13 }, figure(bins[0].low)),
            shape("text", { x: WIDTH, y: HEIGHT + 13, "text-anchor": "end" }, figure(bins.at(-1).high)),
          ]
        : null,
    ),
  );
}

/** A line over x with a band: points {x, y, low, high}. */
export function line(title, points, { xName, asPercent = false }) {
  if (points.length < 2) return card(title, element("p", { class: "muted" }, "too few values yet"));
  const write = asPercent ? percent : figure;
  const [first, last] = [points[0].x, points.at(-1).x];
  const top = asPercent ? 1 : Math.max(1e-9, ...points.map((point) => point.high ?? point.y));
  const at = (point, name) =>
    `${((point.x - first) / (last - first || 1)) * WIDTH},${HEIGHT - (HEIGHT * point[name]) / top}`;
  const band = points.every((point) => point.low !== undefined)
    ? [...points.map((point) => at(point, "high")), ...points.map((point) => at(point, "low")).reverse()].join(" ")
    : null;
  const said = points.map((point) => `${figure(point.x)}: ${write(point.y)}`).join(", ");
  return card(
    title,
    shape(
      "svg",
      { viewBox: `0 -4 ${WIDTH} ${HEIGHT + 20}`, role: "img", "aria-label": `${title} over ${xName}: ${said}` },
      band ? shape("polygon", { class: "band", points: band }) : null,
      shape("polyline", { class: "line", points: points.map((point) => at(point, "y")).join(" ") }),
      shape("text", { x: 0, y: HEIGHT + 13 }, figure(first)),
      shape("text", { x: WIDTH / 2, y: HEIGHT + 13, "text-anchor": "middle" }, xName),
      shape("text", { x: WIDTH, y: HEIGHT + 13, "text-anchor": "end" }, figure(last)),
      shape(
        "text",
        { x: WIDTH, y: 6, "text-anchor": "end" },
        asPercent ? write(points.at(-1).y) : `at most ${write(top)}`,
      ),
    ),
  );
}

export function facts(title, entries) {
  return card(
    title,
    element(
      "dl",
      { class: "facts" },
      entries
        .filter(([, value]) => value !== null && value !== undefined)
        .map(([name, value]) => [
          element("dt", {}, spelt(name)),
          element("dd", {}, spelt(typeof value === "string" ? value : figure(value))),
        ]),
    ),
  );
}
