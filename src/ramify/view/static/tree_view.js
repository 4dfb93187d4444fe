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
  path: ["path", showPath],
  why: ["why this node", showWhy],
  leaves: ["leaves", showLeaves],
  rows: ["training", showRows],
  spent: ["spent", showSpending],
  fields: ["all fields", showFields],
};
const PLAY_MS = 120;

/** An open tree: its document, its model, and `segmentsOf(node)`. */
export async function openTree(source, run, number) {
  const name = `run/${run}/tree/${number}`;
  const known = await source.get(name);
  const chunks = new Map();
  async function segmentsOf(node) {
    const chunk = known.chunks.findLastIndex((first) => first <= node);
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
  let told = "";
  let turn = 0;
  const player = createPlayer(
    app,
    () => tree.document.events.length - 1,
    () => update(),
  );
  const stage = element("div", { class: "stage" });
  const panel = element("div", { class: "panel-body", role: "tabpanel", tabindex: 0 });
  const head = createHead(app);
  const tools = createTools(app, {
    fit: () => drawing.fit(),
    toBest: () => app.go({ node: bestPath(tree.model).at(-1) }),
  });
  const tabs = createTabs(app);
  const slider = createSlider(app, player);
  const column = element(
    "section",
    { class: "drawing-column", "aria-label": "drawing of the tree" },
    tools.host,
    stage,
    slider.host,
  );
  const side = element("aside", { class: "panel", "aria-label": "about the selected node" }, tabs.host, panel);
  put(host, element("div", { class: "tree-page" }, head.host, element("div", { class: "tree-columns" }, column, side)));

  function view() {
    const { state } = app;
    const pending = new Set(tree.document.pending.map((command) => command.node).filter((node) => node >= 0));
    const isDark = document.documentElement.dataset.theme === "dark";
    return {
      selected: state.node,
      colour: state.colour,
      width: state.width,
      time: state.time,
      marked: app.marked(),
      pending,
      best: true,
      isDark,
    };
  }

  function show(next) {
    tree = next;
    if (drawn) drawing.show(tree.model, view());
    update();
  }

  function update() {
    if (!tree) return;
    if (app.state.node >= tree.model.count) app.go({ node: 0 }, { isSilent: true });
    draw(app.state.drawing in DRAWINGS ? app.state.drawing : "icicle");
    head.update(tree);
    tools.update(tree, view());
    tabs.update();
    slider.update(tree);
    showPanel();
  }

  function draw(name) {
    if (drawn === name) return drawing.update(view());
    drawing?.destroy();
    stage.replaceChildren();
    drawing = DRAWINGS[name](stage, { onSelect: (node) => app.go({ node }), onHover: hovered });
    drawing.show(tree.model, view());
    drawn = name;
    return undefined;
  }

  /** Show the open tab. What it shows replaces the tab shown before at once, unless a later one is there already. */
  async function showPanel() {
    const mine = (turn += 1);
    const { node, tab } = app.state;
    const sheet = element("div", {});
    try {
      await (TABS[tab] ?? TABS.path)[1](sheet, tree, node, app);
    } catch (error) {
      put(sheet, element("p", { class: "fault" }, spelt(error.message)));
    }
    if (mine !== turn) return;
    put(panel, sheet);
    const now = `${tab} ${tree.document.tree} ${node}`;
    if (now !== told)
      (panel.querySelector(".token.pointed") ?? panel.querySelector(".step.selected"))?.scrollIntoView({
        block: "nearest",
      });
    told = now;
  }

  function hovered(node) {
    const isNothing = node === null || node === undefined || node < 0;
    app.hint(isNothing ? null : stage, () => nodeFacts(tree.document, node));
  }

  return {
    show,
    update,
    tree: () => tree,
    drawing: () => drawing,
    togglePlay: player.toggle,
    destroy() {
      player.stop();
      drawing?.destroy();
    },
  };
}

function nodeFacts(known, node) {
  return {
    node,
    says: known.nodes.label[node],
    reward: figure(known.nodes.reward[node]),
    value: figure(known.nodes.q[node]),
    visits: known.nodes.visits[node],
    advantage: figure(known.nodes.advantage[node]),
    tokens: known.nodes.sampled[node],
    stop: known.stops[known.nodes.stop[node]] ?? "goes on",
  };
}

// -- parts, which are made once and updated, so that nobody loses the focus or a slider that is being drawn -----------

function createHead(app) {
  const parts = {
    title: element("h1", {}),
    facts: element("p", { class: "muted" }),
    caveats: element("p", { class: "fault" }),
    others: element("span", {}),
  };
  const compare = button("compare with …", () => app.startCompare(), {
    title: "remember this node, then select another (x)",
  });
  const host = element("div", { class: "tree-head" }, parts.title, parts.facts, parts.caveats, compare, parts.others);
  function update({ document: known }) {
    put(parts.title, spelt(oneLine(known.question, 300)));
    put(parts.facts, spelt(treeFacts(known).join(" · ")));
    put(parts.caveats, spelt(known.caveats.join(" · ")));
    showOthers(parts.others, known, app);
  }
  return { host, update };
}

function treeFacts(known) {
  const sampled = known.nodes.sampled.reduce((total, tokens) => total + tokens, 0);
  const spent = Object.values(known.spent).reduce((total, spend) => total + spend.decode, 0) || sampled;
  const rewards = known.nodes.reward.filter((reward, node) => reward !== null && known.nodes.is_leaf[node]);
  const end = known.is_open ? "grows" : known.reason === "done" ? "" : `ended: ${known.reason}`;
  return [
    `${figure(known.nodes.parent.length)} nodes`,
    `${figure(known.num_leaves)} leaves`,
    `${figure(spent)} tokens sampled`,
    `best reward ${figure(rewards.length ? rewards.reduce((one, other) => Math.max(one, other)) : null)}`,
    end,
  ].filter(Boolean);
}

/** The other trees of the same problem: a service grows one at each of several steps. */
async function showOthers(host, known, app) {
  const { trees } = await app.run(app.state.run);
  const places = trees.question.flatMap((question, place) => (question === known.question ? [place] : []));
  if (places.length < 2) return put(host);
  const named = (place) =>
    trees.rollout[place] === null ? `tree ${trees.tree[place]}` : `step ${trees.rollout[place]}`;
  const options = places.map((place) =>
    element(
      "option",
      { value: trees.tree[place], ".selected": trees.tree[place] === known.tree },
      `${named(place)}, best ${figure(trees.best[place])}`,
    ),
  );
  const choice = element(
    "select",
    { "data-focus": "others", onchange: (event) => app.openTree(Number(event.target.value)) },
    options,
  );
  return put(host, element("label", {}, "this problem at ", choice));
}

function createTools(app, { fit, toBest }) {
  const choice = (name, values) =>
    element(
      "select",
      { onchange: (event) => app.go({ [name]: event.target.value }) },
      values.map((value) => element("option", { value }, value)),
    );
  const choices = {
    drawing: choice("drawing", Object.keys(DRAWINGS)),
    colour: choice("colour", Object.keys(COLOURS)),
    width: choice("width", ["leaves", "tokens", "visits"]),
  };
  const legend = element("span", { class: "legend", "aria-label": "colours" });
  const host = element(
    "div",
    { class: "tools" },
    Object.entries(choices).map(([name, select]) => element("label", {}, `${name} `, select)),
    button("best path", toBest, { title: "b" }),
    button("fit", fit, { title: "0" }),
    legend,
  );
  function update(tree, view) {
    for (const [name, select] of Object.entries(choices)) select.value = app.state[name];
    const colours = colouring(tree.model, view.colour in COLOURS ? view.colour : "reward", { isDark: view.isDark });
    put(legend, colours.legend.map(legendEntry));
  }
  return { host, update };
}

function legendEntry({ colour, label, pattern }) {
  const swatch = element("span", { class: `outline-swatch ${pattern}` });
  swatch.style.backgroundColor = colour;
  return element("span", { class: "legend-step" }, swatch, spelt(String(label)));
}

function createTabs(app) {
  const buttons = Object.entries(TABS).map(([key, [label]]) => [
    key,
    button(label, () => app.go({ tab: key }), { role: "tab" }),
  ]);
  const host = element(
    "div",
    { class: "tabs", role: "tablist" },
    buttons.map(([, tab]) => tab),
  );
  function update() {
    for (const [key, tab] of buttons) tab.setAttribute("aria-selected", String(app.state.tab === key));
  }
  return { host, update };
}

function createSlider(app, player) {
  const play = button("play", player.toggle, { "aria-label": "replay the search" });
  const label = element("span", { class: "muted event" });
  const input = element("input", {
    type: "range",
    min: 0,
    "aria-label": "event of the search",
    oninput: () =>
      app.go({ time: Number(input.value) >= Number(input.max) ? null : Number(input.value) }, { isReplaced: true }),
  });
  const host = element("div", { class: "slider" }, play, input, label);
  function update({ document: { events } }) {
    host.hidden = events.length === 0;
    const last = Math.max(0, events.length - 1);
    const now = Math.min(app.state.time ?? last, last);
    input.max = last;
    input.value = now;
    play.textContent = player.isPlaying() ? "pause" : "play";
    put(label, spelt(`${now} of ${last}: ${eventWords(events[now])}`));
  }
  return { host, update };
}

/** Replays a search: one event after the other until the last. */
function createPlayer(app, lastEvent, onTurn) {
  let timer = 0;
  function stop() {
    clearInterval(timer);
    timer = 0;
  }
  function step() {
    const next = (app.state.time ?? 0) + 1;
    const isOver = next > lastEvent() || app.state.page !== "tree";
    if (isOver) stop();
    app.go({ time: isOver ? null : next }, { isReplaced: true });
  }
  function toggle() {
    if (timer) {
      stop();
    } else {
      if (app.state.time === null) app.go({ time: 0 }, { isReplaced: true });
      timer = setInterval(step, PLAY_MS);
    }
    onTurn();
  }
  return { toggle, stop, isPlaying: () => timer !== 0 };
}

/** An event in a few words. */
export function eventWords(event) {
  if (!event) return "";
  if (event.told !== undefined)
    return `command ${event.told} ${event.ending}${event.nodes.length ? `, nodes ${event.nodes.join(" ")}` : ""}`.slice(
      0,
      120,
    );
  const words = event.commands.map((command) => `${command.command} ${(command.nodes ?? [command.node]).join(" ")}`);
  return `asked: ${words.slice(0, 4).join(", ")}${words.length > 4 ? ` and ${words.length - 4} more` : ""}`;
}
