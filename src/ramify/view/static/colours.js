/**
 * Colours: what each colour mode shows of a node, as at most 16 steps.
 *
 * Scales are safe for people who see no red or green: blue and orange around 0 for signed values, one ramp of growing
 * strength else, the colours of Okabe and Ito for names. What colour alone must not say has a pattern too: dots = not
 * computed, stripes = not trained.
 *
 * @typedef {import("./tree_model.js").TreeModel} TreeModel
 * @typedef {{colour: string, label: string, count: number, pattern: "" | "dots" | "stripes"}} Step
 * @typedef {object} Colouring
 * @property {Uint8Array} codes step of every node
 * @property {string[]} palette colour of every step
 * @property {string[]} inks colour of a text on it
 * @property {string[]} patterns "" | "dots" | "stripes"
 * @property {Step[]} legend a scale has all its steps, if any value is known; of the others, those that occur
 * @property {(node: number) => string} valueText
 */
import { figure } from "./numbers.js";
import { numberColumn } from "./tree_model.js";

/** @param {string} name */
const columnOf = (name) => (model) => numberColumn(model.nodes[name]);

/**
 * Colour modes in the order of a menu. `scale`: how values become steps.
 * @type {Record<string, {title: string, about: string, scale: string, values: (model: TreeModel) => Float64Array}>}
 */
export const COLOURS = {
  reward: { title: "Reward", about: "mean reward of the leaves below", scale: "unit", values: (model) => model.mean },
  value: { title: "Value", about: "Q of the search, or else the value", scale: "linear", values: searchValues },
  visits: { title: "Visits", about: "visits of the search", scale: "log", values: (model) => model.visits },
  entropy: { title: "Entropy", about: "mean nats of the sampled tokens", scale: "linear", values: columnOf("entropy") },
  advantage: { title: "Advantage", about: "advantage of the step", scale: "signed", values: columnOf("advantage") },
  weight: {
    title: "Loss weight",
    about: "weight in the loss; 0 = not trained",
    scale: "weight",
    values: columnOf("weight"),
  },
  version: {
    title: "Policy version",
    about: "version of the policy that sampled",
    scale: "version",
    values: columnOf("version"),
  },
  stop: { title: "Stop word", about: "why the path ended", scale: "stop", values: columnOf("stop") },
  tokens: { title: "Tokens", about: "sampled tokens of the step", scale: "log", values: columnOf("sampled") },
};

const RAMPS = {
  light: ["#f4efe1", "#d3e3cf", "#97cbbd", "#55a8af", "#2c7d9f", "#235487", "#1f2f63"],
  dark: ["#2b3140", "#2d4a63", "#2f6f86", "#3f9799", "#74bda0", "#b4dcae", "#f2f3c4"],
};
const SIGNED_RAMPS = {
  light: ["#b3510b", "#e08a3c", "#f3c491", "#eeeeea", "#a9cdea", "#4f97cf", "#145a9c"],
  dark: ["#ffae5c", "#d07a2b", "#7a5130", "#3a3e45", "#34597c", "#3d86c2", "#7dc1ff"],
};
const NAMED_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442"];
const GREYS = {
  light: { missing: "#e4e6e9", other: "#a3a8af", zero: "#f1f1ef" },
  dark: { missing: "#353a42", other: "#7c828b", zero: "#2b2e33" },
};

/** @type {Pick<Step, "label" | "pattern">} */
const NOT_COMPUTED = { label: "not computed", pattern: "dots" };
/** @type {Pick<Step, "label" | "pattern">} */
const NO_STOP = { label: "no stop word", pattern: "" };

/**
 * Steps of all nodes in one colour mode. Raises `RangeError` for an unknown mode.
 * @param {TreeModel} model @param {string} mode a key of `COLOURS` @param {{isDark: boolean}} options
 * @returns {Colouring}
 */
export function colouring(model, mode, { isDark }) {
  const kind = COLOURS[mode];
  if (!kind) throw new RangeError(`unknown colour mode ${mode}: one of ${Object.keys(COLOURS).join(", ")}`);
  const values = kind.values(model);
  const tone = isDark ? "dark" : "light";
  const { steps, codeOf, textOf } = colourScale(kind.scale, model, values, tone);
  const missing = steps.length;
  steps.push({ colour: GREYS[tone].missing, count: 0, ...(mode === "stop" ? NO_STOP : NOT_COMPUTED) });
  const codes = new Uint8Array(model.count);
  for (const node of model.order) {
    codes[node] = Number.isNaN(values[node]) || (mode === "stop" && values[node] < 0) ? missing : codeOf(values[node]);
    steps[codes[node]].count++;
  }
  const isScale = !["stop", "version"].includes(mode) && steps[missing].count < model.order.length;
  return {
    codes,
    palette: steps.map((step) => step.colour),
    inks: steps.map((step) => inkOn(step.colour)),
    patterns: steps.map((step) => step.pattern),
    legend: steps.filter((step, code) => step.count > 0 || (isScale && code < missing && step.pattern === "")),
    valueText: (node) => (codes[node] === missing ? steps[missing].label : textOf(values[node])),
  };
}

function searchValues({ nodes }) {
  return numberColumn(nodes.q.map((q, node) => q ?? nodes.value[node]));
}

/** @returns {{steps: Step[], codeOf: (value: number) => number, textOf: (value: number) => string}} */
function colourScale(scale, model, values, tone) {
  const [low, high] = valueRange(model, values);
  switch (scale) {
    case "stop":
      return namedScale(namesByCount(model, values), (code) => model.document.stops[code], tone);
    case "version":
      return namedScale(latestVersions(model, values), String, tone);
    case "log":
      return growingScale(low, high, tone);
    case "unit":
      return low < 0 ? signedScale(Math.max(-low, high), tone) : linearScale(Math.max(1, high), tone);
    case "weight":
      return withoutZero(low < 0 ? signedScale(Math.max(-low, high), tone) : linearScale(high, tone), tone);
    default:
      return low < 0 || scale === "signed" ? signedScale(Math.max(-low, high), tone) : linearScale(high, tone);
  }
}

/** Equal steps from 0 to `high`. */
function linearScale(high, tone) {
  const step = niceStep((high > 0 ? high : 1) / 10);
  const number = Math.max(1, Math.ceil((high > 0 ? high : 1) / step - 1e-9));
  const steps = Array.from({ length: number }, (_, i) =>
    rampStep(RAMPS[tone], i, number, spanText(i * step, (i + 1) * step)),
  );
  return { steps, codeOf: (v) => Math.min(number - 1, Math.floor(v / step + 1e-9)), textOf: figure };
}

/** Up to five steps on either side of 0, which has its own. */
function signedScale(high, tone) {
  const step = niceStep((high > 0 ? high : 1) / 5);
  const side = Math.max(1, Math.ceil(high / step - 1e-9));
  const labelOf = (i) =>
    i === 0 ? "0" : i < 0 ? spanText(i * step, (i + 1) * step) : spanText((i - 1) * step, i * step);
  const steps = Array.from({ length: 2 * side + 1 }, (_, i) =>
    rampStep(SIGNED_RAMPS[tone], i, 2 * side + 1, labelOf(i - side)),
  );
  const codeOf = (v) => side + Math.sign(v) * Math.min(side, Math.ceil(Math.abs(v) / step - 1e-9));
  return { steps, codeOf, textOf: (v) => (v > 0 ? "+" : "") + figure(v) };
}

/** Steps of growing width for counts. */
function growingScale(low, high, tone) {
  const edges = [[1, 2, 5], [1, 3], [1]]
    .map((digits) => countEdges(digits, low, high))
    .find((found) => found.length <= 13) ?? [0];
  const labelOf = (i) => countsText(edges[i], i + 1 < edges.length ? edges[i + 1] - 1 : high);
  const steps = edges.map((_, i) => rampStep(RAMPS[tone], i, edges.length, labelOf(i)));
  const codeOf = (v) =>
    Math.max(
      0,
      edges.findLastIndex((edge) => edge <= v),
    );
  return { steps, codeOf, textOf: figure };
}

function countEdges(digits, low, high) {
  const edges = [0];
  for (let unit = 1; unit <= high; unit *= 10)
    for (const digit of digits) if (digit * unit <= high) edges.push(digit * unit);
  const first = edges.findLastIndex((edge) => edge <= low);
  return edges.slice(Math.max(0, first));
}

/** A scale whose 0 is said by a pattern. */
function withoutZero({ steps, codeOf, textOf }, tone) {
  const zero = steps.length;
  /** @type {Step} */
  const step = { colour: GREYS[tone].zero, label: "0 (not trained)", count: 0, pattern: "stripes" };
  return {
    steps: [...steps, step],
    codeOf: (v) => (v === 0 ? zero : codeOf(v)),
    textOf: (v) => (v === 0 ? step.label : textOf(v)),
  };
}

/** One colour a name; what has none is "other". */
function namedScale(shown, nameOf, tone) {
  /** @type {Step[]} */
  const steps = shown.map((value, i) => ({ colour: NAMED_COLOURS[i], label: nameOf(value), count: 0, pattern: "" }));
  steps.push({ colour: GREYS[tone].other, label: "other", count: 0, pattern: "" });
  const codeOf = (v) => (shown.includes(v) ? shown.indexOf(v) : shown.length);
  return { steps, codeOf, textOf: nameOf };
}

function namesByCount(model, values) {
  const counts = valueCounts(model, values);
  const known = [...counts.keys()].filter((value) => value >= 0);
  return known.sort((a, b) => (counts.get(b) ?? 0) - (counts.get(a) ?? 0) || a - b).slice(0, NAMED_COLOURS.length);
}

function latestVersions(model, values) {
  return [...valueCounts(model, values).keys()].sort((a, b) => a - b).slice(-NAMED_COLOURS.length);
}

function valueCounts(model, values) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const node of model.order) {
    if (!Number.isNaN(values[node])) counts.set(values[node], (counts.get(values[node]) ?? 0) + 1);
  }
  return counts;
}

function valueRange(model, values) {
  let [low, high] = [Infinity, -Infinity];
  for (const node of model.order) {
    if (values[node] < low) low = values[node];
    if (values[node] > high) high = values[node];
  }
  return low <= high ? [low, high] : [0, 0];
}

/** The next of 1, 2, 5, 10, … that is at least `step`. */
function niceStep(step) {
  const unit = 10 ** Math.floor(Math.log10(step) + 1e-9);
  return unit * ([1, 2, 5].find((digit) => digit * unit >= step * (1 - 1e-9)) ?? 10);
}

/** @returns {Step} */
function rampStep(ramp, index, number, label) {
  const at = (number > 1 ? index / (number - 1) : 0.6) * (ramp.length - 1);
  const [low, part] = [Math.min(Math.floor(at), ramp.length - 2), at - Math.min(Math.floor(at), ramp.length - 2)];
  const [one, other] = [rgbOf(ramp[low]), rgbOf(ramp[low + 1])];
  const mixed = one.map((value, i) =>
    Math.round(value + (other[i] - value) * part)
      .toString(16)
      .padStart(2, "0"),
  );
  return { colour: `#${mixed.join("")}`, label, count: 0, pattern: "" };
}

function rgbOf(colour) {
  return [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
}

/** Black or white, whichever reads better on `colour`. */
function inkOn(colour) {
  const [red, green, blue] = rgbOf(colour).map((value) => (value / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.22 ? "#14181d" : "#f7f8fa";
}

function spanText(low, high) {
  return `${figure(low + 0)} to ${figure(high + 0)}`;
}

function countsText(low, high) {
  return low >= high ? figure(low) : spanText(low, high);
}
