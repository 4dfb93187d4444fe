// Compare view: two leaves side by side from where they parted, or two runs on the same problems.

import { button, element, oneLine, put, spelt } from "./dom.js";
import { facts } from "./charts.js";
import { figure, pairedDifference, percent } from "./numbers.js";
import { spellings, idsOf, tokensOf } from "./source.js";
import { placeOf } from "./state.js";
import { openTree } from "./tree_view.js";
import { pathTo } from "./tree_model.js";

const MOST_TOKENS = 6000;
const MOST_ROWS = 500;

/** Show the comparison that the state names. */
export async function showComparison(host, app) {
  const { state } = app;
  const other = placeOf(state.other);
  if (other) return showTwoPaths(host, app, { run: state.run, tree: state.tree, node: state.node }, other);
  const run = state.other.match(/^run\.(\d+)$/);
  if (run) return showTwoRuns(host, app, Number(run[1]));
  return put(
    host,
    element("p", { class: "fault" }, "Nothing to compare with: the link names no second leaf and no second run."),
  );
}

// -- two paths --------------------------------------------------------------------------------------------------------

async function showTwoPaths(host, app, one, other) {
  const sides = await Promise.all([one, other].map((place) => readSide(app, place)));
  const parted = firstDifference(sides[0].tokens, sides[1].tokens);
  const sameTree = one.run === other.run && one.tree === other.tree;
  put(
    host,
    element("h1", {}, "Two paths"),
    element("p", {}, `They agree in ${figure(parted)} tokens and part ${partingWords(sides, parted, sameTree)}.`),
    element(
      "div",
      { class: "two" },
      sides.map((side) => sideElement(app, side, parted)),
    ),
  );
}

async function readSide(app, place) {
  const tree = await openTree(app.source, place.run, place.tree);
  const path = pathTo(tree.model, place.node);
  const tokens = [];
  for (const node of path) {
    const { segments, vocabulary } = await tree.segmentsOf(node);
    const words = spellings(vocabulary);
    for (const segment of segments) {
      const ids = idsOf(segment);
      tokensOf(ids, words).forEach((text, at) => tokens.push({ id: ids[at], text, node, origin: segment.origin }));
    }
  }
  return { place, tree, path, tokens };
}

/** The number of tokens that both begin with. */
export function firstDifference(one, other) {
  const most = Math.min(one.length, other.length);
  let at = 0;
  while (at < most && one[at].id === other[at].id && one[at].origin === other[at].origin) at += 1;
  return at;
}

function partingWords(sides, parted, sameTree) {
  const [one, other] = sides.map((side) => side.tokens[parted]?.node);
  if (one === undefined && other === undefined) return "nowhere: they are the same";
  if (one === undefined || other === undefined) return "where the shorter one ends";
  return sameTree && one !== other
    ? `at node ${sides[0].tree.model.parent[one]}: one goes on with node ${one}, the other with node ${other}`
    : `at token ${parted}`;
}

function sideElement(app, side, parted) {
  const { place, tree, tokens } = side;
  const known = tree.document;
  const shared = tokens
    .slice(Math.max(0, parted - 200), parted)
    .map((token) => token.text)
    .join("");
  const own = tokens.slice(parted, parted + MOST_TOKENS);
  return element(
    "section",
    { class: "side" },
    element(
      "h2",
      {},
      button(
        `run ${place.run}, tree ${place.tree}, node ${place.node}`,
        () => app.go({ ...place, page: "tree", other: "" }),
        { class: "link" },
      ),
    ),
    element("p", { class: "muted" }, spelt(oneLine(known.question, 160))),
    element(
      "p",
      {},
      `reward ${figure(known.nodes.reward[place.node])} · advantage ${figure(known.nodes.advantage[place.node])} · ${tokens.length} tokens · ${known.stops[known.nodes.stop[place.node]] ?? "goes on"}`,
    ),
    element(
      "div",
      { class: "text" },
      element("span", { class: "shared" }, parted > 200 ? "…" : "", spelt(shared)),
      own.map((token, at) =>
        element(
          "span",
          { class: `parted ${token.origin}${at === 0 ? " first" : ""}`, title: `node ${token.node}, id ${token.id}` },
          spelt(token.text),
        ),
      ),
      tokens.length > parted + MOST_TOKENS ? ` … ${tokens.length - parted - MOST_TOKENS} more tokens` : null,
    ),
  );
}

// -- two runs ---------------------------------------------------------------------------------------------------------

async function showTwoRuns(host, app, number) {
  const [one, other] = await Promise.all([app.run(app.state.run), app.run(number)]);
  const pairs = matched(one.trees, other.trees);
  const judged = pairs.filter((pair) => pair.best.every((best) => best !== null));
  const solved = judged.map((pair) => pair.best.map((best) => Number(best >= 1)));
  const difference = pairedDifference(
    solved.map(([, second]) => second),
    solved.map(([first]) => first),
  );
  judged.sort((a, b) => rank(a) - rank(b) || a.uid.localeCompare(b.uid));
  put(
    host,
    element("h1", {}, "Two runs on the same problems"),
    element("p", {}, "A: ", spelt(`${one.name}, ${one.title}`)),
    element("p", {}, "B: ", spelt(`${other.name}, ${other.title}`)),
    facts("B against A", [
      ["problems in both", pairs.length],
      ["judged in both", judged.length],
      ["solved by A", percent(mean(solved.map(([first]) => first)))],
      ["solved by B", percent(mean(solved.map(([, second]) => second)))],
      [
        "difference, 95% interval",
        `${figure(difference.value)} [${figure(difference.low)}, ${figure(difference.high)}]`,
      ],
      [
        "verdict",
        difference.low > 0 ? "B solves more" : difference.high < 0 ? "B solves fewer" : "no difference was shown",
      ],
      ["tokens of B over A", ratio(pairs)],
    ]),
    pairTable(app, judged.slice(0, MOST_ROWS), number),
  );
}

/** The trees of two tables with the same uid. If a run has several trees of a problem, they are paired in order. */
export function matched(one, other) {
  const waiting = new Map();
  other.uid.forEach((uid, place) => waiting.set(uid, [...(waiting.get(uid) ?? []), place]));
  const pairs = [];
  one.uid.forEach((uid, place) => {
    const there = waiting.get(uid)?.shift();
    if (there === undefined) return;
    pairs.push({
      uid,
      question: one.question[place],
      trees: [one.tree[place], other.tree[there]],
      best: [one.best[place], other.best[there]],
      tokens: [one.tokens[place], other.tokens[there]],
    });
  });
  return pairs;
}

/** Flips first: what one side solved and the other did not. */
function rank({ best: [first, second] }) {
  if (first >= 1 !== second >= 1) return first >= 1 ? 0 : 1;
  return first === second ? 3 : 2;
}

function mean(values) {
  return values.length ? values.reduce((total, value) => total + value, 0) / values.length : null;
}

function ratio(pairs) {
  const [first, second] = [0, 1].map((side) => pairs.reduce((total, pair) => total + (pair.tokens[side] ?? 0), 0));
  return first ? second / first : null;
}

function pairTable(app, pairs, number) {
  const link = (pair, side) =>
    button(
      figure(pair.best[side]),
      () => app.go({ page: "tree", run: side ? number : app.state.run, tree: pair.trees[side], node: 0, other: "" }),
      { class: "link" },
    );
  return element(
    "table",
    {},
    element("caption", {}, "flips first: solved by A alone, then by B alone"),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ["problem", "best of A", "best of B", "tokens of A", "tokens of B"].map((name) =>
          element("th", { scope: "col" }, name),
        ),
      ),
    ),
    element(
      "tbody",
      {},
      pairs.map((pair) =>
        element(
          "tr",
          { class: rank(pair) < 2 ? "flip" : "" },
          element("td", {}, spelt(oneLine(pair.question, 80))),
          element("td", {}, link(pair, 0)),
          element("td", {}, link(pair, 1)),
          pair.tokens.map((tokens) => element("td", { class: "number" }, figure(tokens))),
        ),
      ),
    ),
  );
}
