// Path view: the way to one node as the model saw it: prompts, turns, tool calls, and what judges said of each step.

import { button, element, oneLine, put, spelt } from "./dom.js";
import { figure, seconds } from "./numbers.js";
import { rangeOf, shownSegment, textElements, tokenElements, tokenLegend, valueNames } from "./tokens.js";
import { childrenOf, pathTo } from "./tree_model.js";

const FOLDED = new Map();
/** What the reader folded or opened stays so: key of a block, or "all calls" -> is it open. */

/** Show the path to `node` in `host`. `tree` is an open tree (`tree_view`). */
export async function showPath(host, tree, node, app) {
  const { model, document: known } = tree;
  const path = pathTo(model, node);
  const parts = await Promise.all(path.map((each) => tree.segmentsOf(each)));
  const row = known.rows.find((each) => each.leaf === node) ?? null;
  const handed = await handedVersion(app);
  const steps = path.map((each, place) => ({
    node: each,
    segments: parts[place].segments.map((stored) =>
      shownSegment(stored, each, parts[place].vocabulary, {
        ...trainingValues(known, row, each),
        ...staleness(handed, stored),
      }),
    ),
  }));
  const segments = steps.flatMap((step) => step.segments);
  let start = 0;
  for (const segment of segments) {
    segment.start = start;
    start += segment.ids.length;
  }
  const names = valueNames(segments);
  const name = names.includes(app.tokenValue) ? app.tokenValue : "";
  const range = name ? rangeOf(segments, name) : null;
  put(
    host,
    pathHead(tree, node, row, names, name, range, app),
    steps.map((step) => stepElement(tree, step, name, range, app)),
  );
}

/** The version of the weights at which the tree was handed to the trainer; null = it was not. */
async function handedVersion(app) {
  const { trees } = await app.run(app.state.run);
  return trees.version[trees.tree.indexOf(app.state.tree)] ?? null;
}

/** How many versions of the weights came between the sampling of a segment and its training. */
function staleness(handed, stored) {
  return handed === null || stored.version === undefined ? {} : { staleness: handed - stored.version };
}

function trainingValues(known, row, node) {
  const place = row ? row.nodes.indexOf(node) : -1;
  if (place >= 0) {
    const [weight, advantage] = [row.weights[place], row.advantages[place]];
    return { advantage, weight, coefficient: (weight * advantage) / row.normaliser };
  }
  if (!known.rows.length) return {};
  return { advantage: known.nodes.advantage[node], weight: known.nodes.weight[node] };
}

function pathHead(tree, node, row, names, name, range, app) {
  const choose = element(
    "select",
    {
      "aria-label": "colour tokens by",
      "data-focus": "token value",
      onchange: (event) => app.colourTokens(event.target.value),
    },
    ["", ...names].map((each) => element("option", { value: each, ".selected": each === name }, each || "no colour")),
  );
  const stale = row ? [`row: reward ${figure(row.reward)}, ${row.credit}, normaliser ${figure(row.normaliser)}`] : [];
  const inexact = row?.reasons.length ? [`the gradient is not exact: ${row.reasons.join("; ")}`] : [];
  return element(
    "div",
    { class: "path-head" },
    element("label", {}, "tokens by ", choose),
    tokenLegend(name, range),
    button(
      areCallsOpen() ? "fold all tool calls" : "open all tool calls",
      () => {
        FOLDED.clear();
        FOLDED.set("all calls", !areCallsOpen());
        app.refresh();
      },
      { "data-focus": "fold" },
    ),
    element("p", { class: "muted" }, spelt([...stale, ...inexact].join(" · "))),
  );
}

function areCallsOpen() {
  return FOLDED.get("all calls") ?? false;
}

function stepElement(tree, step, name, range, app) {
  const { model, document: known } = tree;
  const { node } = step;
  const isSelected = node === app.state.node;
  return element(
    "section",
    { class: `step${isSelected ? " selected" : ""}`, "data-node": node, "aria-label": `node ${node}` },
    branchPoint(tree, node, app),
    element(
      "h3",
      {},
      button(`node ${node}`, () => app.go({ node }), { class: "link" }),
      element(
        "span",
        { class: "muted" },
        ` ${known.roles[known.nodes.role[node]]}`,
        actionOf(known, node),
        versionOf(known, node),
      ),
    ),
    step.segments.map((segment, place) => segmentElement(segment, place, name, range, app)),
    judgements(known, node),
    model.parent[node] >= 0 || known.nodes.stop[node] >= 0 ? ending(known, node) : null,
  );
}

function actionOf(known, node) {
  const action = known.actions[known.nodes.action[node]];
  return action === "policy" ? "" : ` · ${action}`;
}

function versionOf(known, node) {
  const version = known.nodes.version[node];
  return version === null ? "" : ` · policy version ${version}`;
}

function branchPoint(tree, node, app) {
  const { model, document: known } = tree;
  const siblings = childrenOf(model, model.parent[node]);
  if (model.parent[node] < 0 || siblings.length < 2) return null;
  const place = siblings.indexOf(node);
  const fork = known.forks[known.nodes.fork[node]];
  const step = (by) => () => app.go({ node: siblings[(place + by + siblings.length) % siblings.length] });
  return element(
    "div",
    { class: "branch-point" },
    button("‹", step(-1), { "aria-label": "previous sibling", "data-focus": `previous ${model.parent[node]}` }),
    element("span", {}, `branch ${place + 1} of ${siblings.length} at node ${model.parent[node]}`),
    fork
      ? element(
          "span",
          { class: "muted" },
          spelt(` · rule ${fork.rule}${fork.is_post_hoc ? ", after the continuation was sampled" : ""}`),
        )
      : null,
    button("›", step(1), { "aria-label": "next sibling", "data-focus": `next ${model.parent[node]}` }),
  );
}

function segmentElement(segment, place, name, range, app) {
  const { stored } = segment;
  if (stored.tool_call) return callElement(segment, place, app);
  const said = { prompt: "prompt", sampled: "model", given: "given", written: "written" }[stored.origin];
  return element(
    "div",
    { class: `segment ${stored.origin}` },
    element("span", { class: "origin" }, said, ` · ${segment.ids.length} tokens`, finishOf(stored)),
    element("div", { class: "text" }, tokenElements(segment, name, range, app)),
  );
}

function finishOf(stored) {
  if (!stored.finish) return null;
  const matched = stored.finish.matched ? ` at ${oneLine(stored.finish.matched, 40)}` : "";
  return ` · ${stored.finish.kind}${matched}`;
}

/** A tool call, folded until the reader opens it. */
function callElement(segment, place, app) {
  const call = segment.stored.tool_call;
  const key = `${app.state.run}.${app.state.tree}.${segment.node}.${place}`;
  const took = call.duration_s === undefined ? "" : ` · ${seconds(call.duration_s)}`;
  const status = call.status ?? "ok";
  return element(
    "details",
    { class: `segment call ${status}`, open: FOLDED.get(key) ?? areCallsOpen() },
    element(
      "summary",
      { "data-focus": key, onclick: (event) => FOLDED.set(key, !event.currentTarget.parentElement.open) },
      element("strong", {}, spelt(call.tool || (["ok", "empty", "error"].includes(status) ? "turn" : "no tool"))),
      spelt(` ${oneLine(call.arguments)} `),
      element("span", { class: "status" }, status),
      element(
        "span",
        { class: "muted" },
        `${took}${call.num_retries ? ` · ${call.num_retries} retries` : ""}${stepOf(call)} → ${oneLine(call.result ?? "", 60)}`,
      ),
    ),
    element("div", { class: "label" }, "arguments"),
    element("div", { class: "text" }, textElements(call.arguments)),
    element("div", { class: "label" }, "result"),
    element("div", { class: "text" }, textElements(call.result ?? "")),
    element("div", { class: "label" }, `as the model saw it, ${segment.ids.length} tokens`),
    element("div", { class: "text" }, tokenElements(segment, "", null, app)),
  );
}

/** What an environment gave for the step: its reward with the parts, and whether it ended the path. */
function stepOf(call) {
  const parts = Object.entries(call.parts ?? {}).map(([name, value]) => `${oneLine(name, 20)} ${figure(value)}`);
  const reward = call.reward === undefined ? "" : ` · reward ${figure(call.reward)}`;
  return `${reward}${parts.length ? ` (${parts.join(", ")})` : ""}${call.end ? ` · ${oneLine(call.end, 12)}` : ""}`;
}

function judgements(known, node) {
  const scores = known.scores[node] ?? [];
  if (!scores.length) return null;
  return element(
    "ul",
    { class: "scores" },
    scores.map((score) =>
      element(
        "li",
        {},
        spelt(`${score.judge}: `),
        element("strong", {}, score.value === null ? "no score" : figure(score.value)),
        score.parts?.length
          ? spelt(` (${score.parts.map(([part, value]) => `${part} ${figure(value)}`).join(", ")})`)
          : null,
        score.is_oracle ? element("span", { class: "badge" }, "saw the answer") : null,
        score.is_of_step ? element("span", { class: "badge" }, "for a prune rule") : null,
        score.attempt ? ` · attempt ${score.attempt}` : null,
      ),
    ),
  );
}

function ending(known, node) {
  const stop = known.stops[known.nodes.stop[node]];
  if (!stop) return null;
  const closed = known.notes[node]?.closed;
  return element(
    "p",
    { class: "ending" },
    element("strong", {}, stop),
    ` ${known.stop_meanings[stop] ?? ""}`,
    closed ? spelt(`: ${closed}`) : null,
  );
}

/** Save the path to the selected node as a JSON file: each step with its segments as they stand on disk. */
export async function savePath(tree, { node, tree: number }) {
  const { document: known, model } = tree;
  const steps = pathTo(model, node).map(async (each) => ({
    node: each,
    label: known.nodes.label[each],
    ...(await tree.segmentsOf(each)),
  }));
  const text = JSON.stringify({ question: known.question, path: await Promise.all(steps) });
  const blob = new Blob([text], { type: "application/json" });
  const link = element("a", { href: URL.createObjectURL(blob), download: `tree-${number}-node-${node}.json` });
  link.click();
  URL.revokeObjectURL(link.href);
}
