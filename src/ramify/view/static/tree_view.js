// Tree view: one tree: its drawing, a panel about the selected node, and a slider over the events that grew it.

import { COLOURS, colouring } from "./colours.js";
import { button, element, oneLine, put, spelt } from "./dom.js";
import { showFields } from "./fields_view.js";
import { createGraph } from "./graph.js";
import { createIcicle } from "./icicle.js";
import { showLeaves, showRows, showSpending } from "./leaves_view.js";
import { figure } from "./numbers.js";
import { createOutline } from "./outline.js";
import { showPath } from "./path_view.js";
import { bestPath, treeModel } from "./tree_model.js";
import { showWhy } from "./why_view.js";

const DRAWINGS = { icicle: createIcicle, graph: createGraph, outline: createOutline };
const TABS = {
  path: ["path", showPath], why: ["why this node", showWhy], leaves: ["leaves", showLeaves],
  rows: ["training", showRows], spent: ["spent", showSpending], fields: ["all fields", showFields],
};
const PLAY_MS = 120;

/** An open tree: its document, its model, and `segmentsOf(node)`. */
export async function openTree(source, run, number) {
  const name = `run/${run}/tree/${number}`;
  const known = await source.get(name);
  const chunks = new Map();
  async function segmentsOf(node) {
    let chunk = known.chunks.findLastIndex((first) => first <= node);
    if (!chunks.has(chunk)) chunks.set(chunk, source.get(`${name}/tokens/${chunk}`));
    const tokens = await chunks.get(chunk);
    const found = tokens.nodes[node - tokens.first];
    return { segments: found.segments, vocabulary: tokens.vocabularies[found.codec] };
  }
  return { document: known, model: treeModel(known), segmentsOf };
}

/** The page of one tree. `update` follows the state of the page. */
export function createTreeView(host, app) {
  let tree = null;
  let drawing = null;
  let drawn = "";
  let playing = 0;
  const stage = element("div", { class: "stage" });
  const panel = element("div", { class: "panel-body", role: "tabpanel", tabindex: 0, "aria-live": "polite" });
  const parts = { others: element("span", {}), head: element("div", { class: "tree-head" }), tools: element("div", { class: "tools" }), tabs: element("div", { class: "tabs", role: "tablist" }), slider: element("div", { class: "slider" }) };
  put(
    host,
    element(
      "div",
      { class: "tree-page" },
      parts.head,
      element("div", { class: "tree-columns" }, element("section", { class: "drawing-column", "aria-label": "drawing of the tree" }, parts.tools, stage, parts.slider), element("aside", { class: "panel", "aria-label": "about the selected node" }, parts.tabs, panel)),
    ),
  );

  function view() {
    const { state } = app;
    const pending = new Set(tree.document.pending.map((command) => command.node).filter((node) => node >= 0));
    const isDark = document.documentElement.dataset.theme === "dark";
    return { selected: state.node, colour: state.colour, width: state.width, time: state.time, marked: app.marked(), pending, best: true, isDark };
  }

  function show(next) {
    tree = next;
    if (drawn) drawing.show(tree.model, view());
    update();
  }

  function update() {
    const { state } = app;
    if (!tree) return;
    if (state.node >= tree.model.count) app.go({ node: 0 }, { isSilent: true });
    if (drawn !== state.drawing) {
      drawing?.destroy();
      stage.replaceChildren();
      const create = DRAWINGS[state.drawing] ?? createIcicle;
      drawing = create(stage, { onSelect: (node) => app.go({ node }), onHover: (node) => hovered(node) });
      drawing.show(tree.model, view());
      drawn = state.drawing;
    } else {
      drawing.update(view());
    }
    put(parts.head, headOf(tree, app), parts.others);
    showOthers();
    put(parts.tools, toolsOf(tree, drawing, view(), app));
    put(parts.tabs, Object.entries(TABS).map(([key, [label]]) => button(label, () => app.go({ tab: key }), { role: "tab", "aria-selected": String(state.tab === key) })));
    put(parts.slider, sliderOf(tree, app, { isPlaying: playing !== 0, toggle: togglePlay }));
    const [, showTab] = TABS[state.tab] ?? TABS.path;
    Promise.resolve(showTab(panel, tree, Math.min(state.node, tree.model.count - 1), app)).catch((error) => put(panel, element("p", { class: "fault" }, spelt(error.message))));
  }

  /** The other trees of the same problem: a service grows one at each of several steps. */
  async function showOthers() {
    const { question, tree: number } = tree.document;
    const { trees } = await app.run(app.state.run);
    const places = trees.question.flatMap((each, place) => (each === question ? [place] : []));
    if (places.length < 2) return put(parts.others);
    const named = (place) => (trees.rollout[place] === null ? `tree ${trees.tree[place]}` : `step ${trees.rollout[place]}`);
    const choice = element(
      "select",
      { onchange: (event) => app.openTree(Number(event.target.value)) },
      places.map((place) => element("option", { value: trees.tree[place], ".selected": trees.tree[place] === number }, `${named(place)}, best ${figure(trees.best[place])}`)),
    );
    return put(parts.others, element("label", {}, "this problem at ", choice));
  }

  function hovered(node) {
    const { document: known } = tree;
    app.hint(node === null || node === undefined || node < 0 ? null : stage, () => ({
      node,
      says: known.nodes.label[node],
      reward: figure(known.nodes.reward[node]),
      value: figure(known.nodes.q[node]),
      visits: known.nodes.visits[node],
      advantage: figure(known.nodes.advantage[node]),
      tokens: known.nodes.sampled[node],
      stop: known.stops[known.nodes.stop[node]] ?? "goes on",
    }));
  }

  function togglePlay() {
    if (playing) {
      clearInterval(playing);
      playing = 0;
    } else {
      const last = tree.document.events.length - 1;
      if (app.state.time === null || app.state.time >= last) app.go({ time: 0 });
      playing = setInterval(() => {
        const next = (app.state.time ?? 0) + 1;
        if (next > last || app.state.page !== "tree") {
          clearInterval(playing);
          playing = 0;
        }
        app.go({ time: next > last ? null : next }, { isReplaced: true });
      }, PLAY_MS);
    }
    update();
  }

  return {
    show, update,
    tree: () => tree,
    drawing: () => drawing,
    togglePlay,
    destroy() {
      clearInterval(playing);
      drawing?.destroy();
    },
  };
}

function headOf(tree, app) {
  const { document: known, model } = tree;
  const sampled = known.nodes.sampled.reduce((total, tokens) => total + tokens, 0);
  const spent = Object.values(known.spent).reduce((total, spend) => total + spend.decode, 0) || sampled;
  const rewards = known.nodes.reward.filter((reward, node) => reward !== null && known.nodes.is_leaf[node]);
  const facts = [
    `${figure(model.count)} nodes`, `${figure(known.num_leaves)} leaves`, `${figure(spent)} tokens sampled`,
    `best reward ${figure(rewards.length ? Math.max(...rewards) : null)}`,
    known.is_open ? "grows" : known.reason === "done" ? "" : `ended: ${known.reason}`,
  ];
  return [
    element("h1", {}, spelt(oneLine(known.question, 300))),
    element("p", { class: "muted" }, spelt(facts.filter(Boolean).join(" · "))),
    known.caveats.length ? element("p", { class: "fault" }, spelt(known.caveats.join(" · "))) : null,
    button("compare with …", () => app.startCompare(), { title: "remember this node, then select another (x)" }),
  ];
}

function toolsOf(tree, drawing, view, app) {
  const { state } = app;
  const choice = (label, name, values) =>
    element("label", {}, `${label} `, element("select", { onchange: (event) => app.go({ [name]: event.target.value }) }, values.map((value) => element("option", { value, ".selected": value === state[name] }, value))));
  const { legend } = colouring(tree.model, state.colour in COLOURS ? state.colour : "reward", { isDark: view.isDark });
  return [
    choice("drawing", "drawing", Object.keys(DRAWINGS)),
    choice("colour", "colour", Object.keys(COLOURS)),
    choice("width", "width", ["leaves", "tokens", "visits"]),
    button("best path", () => app.go({ node: bestPath(tree.model).at(-1) }), { title: "b" }),
    drawing.fit ? button("fit", () => drawing.fit(), { title: "0" }) : null,
    element("span", { class: "legend", "aria-label": "colours" }, legend.map((entry) => {
      const swatch = element("span", { class: `outline-swatch ${entry.pattern}` });
      swatch.style.backgroundColor = entry.colour;
      return element("span", { class: "legend-step" }, swatch, spelt(String(entry.label)));
    })),
  ];
}

function sliderOf(tree, app, { isPlaying, toggle }) {
  const { events } = tree.document;
  if (!events.length) return null;
  const last = events.length - 1;
  const now = app.state.time ?? last;
  return [
    button(isPlaying ? "pause" : "play", toggle, { "aria-label": "replay the search" }),
    element("input", {
      type: "range", min: 0, max: last, ".value": now, "aria-label": "event of the search",
      oninput: (event) => app.go({ time: Number(event.target.value) >= last ? null : Number(event.target.value) }, { isReplaced: true }),
    }),
    element("span", { class: "muted event" }, spelt(`${now} of ${last}: ${eventWords(events[now])}`)),
  ];
}

/** An event in a few words. */
export function eventWords(event) {
  if (!event) return "";
  if (event.told !== undefined) return `command ${event.told} ${event.ending}${event.nodes.length ? `, nodes ${event.nodes.join(" ")}` : ""}`.slice(0, 120);
  const words = event.commands.map((command) => `${command.command} ${(command.nodes ?? [command.node]).join(" ")}`);
  return `asked: ${words.slice(0, 4).join(", ")}${words.length > 4 ? ` and ${words.length - 4} more` : ""}`;
}
