// Leaves view: the ends of one problem side by side, what they are trained with, and what the tree spent.

import { button, element, put, spelt } from "./dom.js";
import { figure, percent } from "./numbers.js";
import { textOf, idsOf, spellings } from "./source.js";
import { bestPath, pathTo } from "./tree_model.js";

const MOST_CARDS = 60;

/** Show the last words of each leaf side by side, the best reward first. */
export async function showLeaves(host, tree, node, app) {
  const { document: known } = tree;
  const leaves = known.nodes.is_leaf.flatMap((is, each) => (is ? [each] : []));
  leaves.sort(
    (one, other) => (known.nodes.reward[other] ?? -Infinity) - (known.nodes.reward[one] ?? -Infinity) || one - other,
  );
  const shown = leaves.slice(0, MOST_CARDS);
  const texts = await Promise.all(shown.map((leaf) => lastWords(tree, leaf)));
  put(
    host,
    element(
      "p",
      { class: "muted" },
      `${leaves.length} leaves, the best reward first`,
      leaves.length > MOST_CARDS ? `; the first ${MOST_CARDS} are shown` : "",
    ),
    element(
      "div",
      { class: "cards" },
      shown.map((leaf, place) =>
        element(
          "article",
          { class: `card${leaf === node ? " selected" : ""}` },
          element(
            "h3",
            {},
            button(`node ${leaf}`, () => app.go({ node: leaf, tab: "path" }), { class: "link" }),
          ),
          element(
            "p",
            {},
            `reward ${figure(known.nodes.reward[leaf])} · ${known.stops[known.nodes.stop[leaf]] ?? ""} · advantage ${figure(known.nodes.advantage[leaf])}`,
          ),
          element("div", { class: "text" }, spelt(texts[place])),
        ),
      ),
    ),
  );
}

async function lastWords(tree, leaf) {
  const { segments, vocabulary } = await tree.segmentsOf(leaf);
  const words = spellings(vocabulary);
  return segments
    .map((segment) => textOf(idsOf(segment), words))
    .join("")
    .slice(-600);
}

/** Show the training rows of the tree. */
export function showRows(host, tree, node, app) {
  const { rows, rows_refused: refused } = tree.document;
  if (!rows.length)
    return put(
      host,
      element("p", { class: "muted" }, spelt(refused || "This tree gives no row: no token of it is trained.")),
    );
  const { reasons, credit, policy, normaliser } = rows[0];
  return put(
    host,
    element(
      "p",
      {},
      spelt(`${rows.length} rows · credit ${credit} · policy ${policy} · normaliser ${figure(normaliser)}`),
    ),
    element(
      "p",
      { class: reasons.length ? "fault" : "muted" },
      spelt(reasons.length ? `The gradient is not exact: ${reasons.join("; ")}` : "The gradient is exact."),
    ),
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["leaf", "reward", "parts", "nodes: weight × advantage"].map((name) => element("th", { scope: "col" }, name)),
        ),
      ),
      element(
        "tbody",
        {},
        rows.slice(0, 500).map((row) =>
          element(
            "tr",
            { class: row.leaf === node ? "chosen" : "" },
            element(
              "td",
              {},
              button(String(row.leaf), () => app.go({ node: row.leaf }), { class: "link" }),
            ),
            element(
              "td",
              {},
              figure(row.reward),
              row.is_oracle ? element("span", { class: "badge" }, "saw the answer") : null,
            ),
            element(
              "td",
              {},
              spelt(
                Object.entries(row.parts)
                  .map(([part, value]) => `${part} ${figure(value)}`)
                  .join(", "),
              ),
            ),
            element(
              "td",
              {},
              row.nodes.map((each, place) =>
                element(
                  "span",
                  { class: row.weights[place] ? "trained" : "untrained", title: `node ${each}` },
                  `${each}: ${figure(row.weights[place])} × ${figure(row.advantages[place])} `,
                ),
              ),
            ),
          ),
        ),
      ),
    ),
  );
}

/** Show what the tree spent: by role, by depth, on the best path and elsewhere, and what chains would have sampled. */
export function showSpending(host, tree, node) {
  const { document: known, model } = tree;
  const sums = spending(tree);
  const best = bestPath(model);
  const winning = best.reduce((total, each) => total + known.nodes.sampled[each], 0);
  const facts = [
    ["sampled by the tree", sums.sampled],
    ["on the best path", winning],
    ["elsewhere", sums.sampled - winning],
    ["chains with these leaves would sample", sums.flat],
    ["share that the tree saved", sums.flat ? percent(1 - sums.sampled / sums.flat) : "–"],
    [`on the path to node ${node}`, pathTo(model, node).reduce((total, each) => total + known.nodes.sampled[each], 0)],
    [`at and below node ${node}`, model.tokens[node]],
  ];
  const roles = Object.entries(known.spent);
  const names = [...new Set(roles.flatMap(([, spend]) => Object.keys(spend)))];
  put(
    host,
    element(
      "dl",
      { class: "facts" },
      facts.map(([name, value]) => [element("dt", {}, name), element("dd", {}, figure(value))]),
    ),
    table(
      ["by role", ...roles.map(([role]) => role)],
      names.map((name) => [name, ...roles.map(([, spend]) => spend[name])]),
    ),
    table(
      ["depth", "nodes", "tokens sampled", "tokens of tools"],
      sums.depths.map((depth, place) => [place, depth.nodes, depth.sampled, depth.given]),
    ),
  );
}

function spending(tree) {
  const { document: known, model } = tree;
  const depths = [];
  let flat = 0;
  let sampled = 0;
  const along = new Float64Array(model.count);
  for (const node of model.order) {
    const own = known.nodes.sampled[node];
    const parent = model.parent[node];
    along[node] = own + (parent < 0 || known.nodes.edge[node] === 1 ? 0 : along[parent]);
    sampled += own;
    if (known.nodes.is_leaf[node]) flat += along[node];
    const depth = (depths[model.depth[node]] ??= { nodes: 0, sampled: 0, given: 0 });
    depth.nodes += 1;
    depth.sampled += own;
    depth.given += known.nodes.given[node];
  }
  return { depths, flat, sampled };
}

export function table(names, lines) {
  return element(
    "table",
    {},
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        names.map((name) => element("th", { scope: "col" }, spelt(String(name)))),
      ),
    ),
    element(
      "tbody",
      {},
      lines.map((line) =>
        element(
          "tr",
          {},
          line.map((value) => element("td", {}, spelt(figure(value)))),
        ),
      ),
    ),
  );
}
