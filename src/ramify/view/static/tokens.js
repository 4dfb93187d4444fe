// Tokens: the tokens of a segment, coloured by a value that belongs to each of them.

import { button, element, spelt } from "./dom.js";
import { figure } from "./numbers.js";
import { floatsOf, idsOf, spellings, textOf, tokensOf } from "./source.js";

const MOST_TOKENS = 4000;
const SIGNED = new Set(["advantage", "coefficient"]);
/** Values whose lowest stand out: unlikely tokens. */
const TURNED = new Set(["logprob"]);

/**
 * One segment ready to be shown.
 * @typedef {object} ShownSegment
 * @property {object} stored the segment as it stands on disk
 * @property {number} node @property {Int32Array} ids @property {string} text @property {number} [start] place on the path
 * @property {Map<number, Uint8Array>} words spelling of each id
 * @property {Record<string, ArrayLike<number> | number | null>} values per token, or one for all tokens
 */

/** @returns {ShownSegment} */
export function shownSegment(stored, node, vocabulary, ofNode) {
  const words = spellings(vocabulary);
  const ids = idsOf(stored);
  const values =
    stored.origin === "sampled"
      ? { logprob: floatsOf(stored.logprobs), version: stored.version ?? null, ...ofNode }
      : {};
  for (const [name, packed] of Object.entries(stored.measures ?? {})) values[name] = floatsOf(packed);
  return { stored, node, ids, words, values, text: textOf(ids, words) };
}

/** The names of all values that some token of the segments has. */
export function valueNames(segments) {
  const names = new Set();
  for (const segment of segments) {
    for (const [name, values] of Object.entries(segment.values))
      if (values !== null && values !== undefined) names.add(name);
  }
  return [...names];
}

/** The range of a value over all tokens. */
export function rangeOf(segments, name) {
  let low = Infinity;
  let high = -Infinity;
  for (const segment of segments) {
    const values = segment.values[name];
    if (values === null || values === undefined) continue;
    for (const value of typeof values === "number" ? [values] : values) {
      if (!Number.isFinite(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  const most = Math.max(Math.abs(low), Math.abs(high));
  return SIGNED.has(name)
    ? { low: -most, high: most, isSigned: true }
    : { low, high, isSigned: false, isTurned: TURNED.has(name) };
}

/** The elements of a segment: plain text without a value to colour by, otherwise one element for each token. */
export function tokenElements(segment, name, range, app) {
  const values = name ? segment.values[name] : null;
  const isPlain = segment.stored.origin !== "sampled" || !name;
  if (isPlain) return textElements(segment.text);
  const texts = tokensOf(segment.ids, segment.words);
  const host = element("span", { class: "tokens" });
  const show = (from) => {
    const until = Math.min(texts.length, from + MOST_TOKENS);
    for (let place = from; place < until; place += 1)
      host.append(tokenElement(segment, place, texts[place], values, name, range, app));
    if (until < texts.length) {
      const more = button(`show ${(texts.length - until).toLocaleString("en")} more tokens`, () => {
        more.remove();
        show(until);
      });
      host.append(more);
    }
  };
  show(0);
  return [host];
}

const MOST_CHARACTERS = 20_000;

/** The text as nodes; of a long one the beginning, until the reader asks for the rest. */
export function textElements(text) {
  if (text.length <= MOST_CHARACTERS) return spelt(text);
  const host = element("span", {}, spelt(text.slice(0, MOST_CHARACTERS)));
  const more = button(`show ${(text.length - MOST_CHARACTERS).toLocaleString("en")} more characters`, () => {
    more.replaceWith(...spelt(text.slice(MOST_CHARACTERS)));
  });
  host.append(more);
  return [host];
}

function tokenElement(segment, place, text, values, name, range, app) {
  const value = values === null || values === undefined ? null : typeof values === "number" ? values : values[place];
  const number = segment.start + place;
  const marks = [
    text === "" ? " empty" : "",
    name === "weight" && value === 0 ? " untrained" : "",
    number === app.state.token ? " pointed" : "",
  ];
  const made = element(
    "span",
    {
      class: `token${marks.join("")}`,
      onpointerenter: (event) => app.hint(event.currentTarget, () => tokenFacts(segment, place, text)),
      onpointerleave: () => app.hint(null),
      onclick: () => app.point(made, number),
    },
    text === "" ? "·" : spelt(text),
  );
  made.style.backgroundColor = tokenColour(value, range);
  return made;
}

/** Signed values: orange below zero, blue above it. Others: the stronger, the higher. People who see no red or green tell
 * them apart. */
export function tokenColour(value, range) {
  if (value === null || value === undefined || !Number.isFinite(value) || !range) return "transparent";
  const width = range.high - range.low || 1;
  const share = Math.min(1, Math.max(0, (value - range.low) / width));
  if (range.isSigned) {
    const strength = Math.abs(share - 0.5) * 2;
    return share < 0.5 ? `rgb(230 110 20 / ${0.65 * strength})` : `rgb(20 120 220 / ${0.65 * strength})`;
  }
  return `rgb(20 120 220 / ${0.04 + 0.6 * (range.isTurned ? 1 - share : share)})`;
}

export function tokenLegend(name, range) {
  if (!name || !range) return null;
  const steps = [0, 0.25, 0.5, 0.75, 1].map((share) => range.low + share * (range.high - range.low));
  return element(
    "span",
    { class: "legend", "aria-label": `colours of ${name}` },
    steps.map((value) => {
      const step = element("span", { class: "legend-step" }, figure(value));
      step.style.backgroundColor = tokenColour(value, range);
      return step;
    }),
  );
}

/** All that is known of one token, exactly. */
function tokenFacts(segment, place, text) {
  const facts = {
    id: segment.ids[place],
    text: JSON.stringify(text),
    place: `${segment.start + place} on the path, ${place} of ${segment.ids.length} in its segment`,
    node: segment.node,
  };
  for (const [name, values] of Object.entries(segment.values)) {
    const value = values === null || values === undefined ? null : typeof values === "number" ? values : values[place];
    facts[name] = value === null || !Number.isFinite(value) ? "not computed" : String(value);
  }
  const logprob = Number(facts.logprob);
  if (Number.isFinite(logprob)) facts.probability = figure(Math.exp(logprob));
  return facts;
}
