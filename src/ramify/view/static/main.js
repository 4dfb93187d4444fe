// Main: the page: its header, its state, and which view is shown. Everything else is given this object as `app`.

import { COLOURS } from "./colours.js";
import { showComparison } from "./compare_view.js";
import { button, element, put, spelt } from "./dom.js";
import { listenToKeys } from "./keys.js";
import { showHelp, showHint } from "./overlays.js";
import { savePath } from "./path_view.js";
import { createRunView } from "./run_view.js";
import { openSource } from "./source.js";
import { DEFAULTS, readState, writeState } from "./state.js";
import { createTreeView, openTree } from "./tree_view.js";
import {
  bestPath,
  firstChildOf,
  modelAt,
  nextInOrder,
  nextSibling,
  parentOf,
  previousInOrder,
  previousSibling,
} from "./tree_model.js";

const DRAWING_NAMES = ["icicle", "graph", "outline"];
const LOOK_AGAIN_MS = 400;

class App {
  constructor() {
    this.source = openSource();
    this.state = readState(location.hash);
    this.hits = [];
    this.runs = new Map();
    this.remembered = null;
    this.tokenValue = "logprob";
    this.hosts = {
      header: document.querySelector("header"),
      main: document.querySelector("main"),
      hint: document.querySelector("#hint"),
    };
    this.views = {};
    this.shownTree = "";
    this.isShowing = false;
  }

  async start() {
    this.index = await this.source.get("index");
    document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    if (this.index.runs.length === 1 && this.index.opens !== undefined && !location.hash)
      Object.assign(this.state, { page: "tree", tree: this.index.opens });
    window.addEventListener("hashchange", () => {
      this.state = readState(location.hash);
      this.refresh();
    });
    listenToKeys(this.keys());
    this.source.follow(
      (change) => this.changed(change),
      (isConnected) => this.connected(isConnected),
    );
    await this.refresh();
  }

  /** Change the state, and with it the address and the page. */
  go(changes, { isReplaced = false, isSilent = false } = {}) {
    const before = this.state;
    this.state = { ...this.state, token: null, ...changes };
    const fragment = writeState(this.state);
    if (fragment !== writeState(before)) {
      this.setAddress(fragment, isReplaced || isSilent);
    }
    if (!isSilent) this.refresh();
  }

  /** Put the state into the address. A frame in a notebook has none that can be changed. */
  setAddress(fragment, isReplaced) {
    try {
      if (isReplaced) history.replaceState(null, "", fragment);
      else history.pushState(null, "", fragment);
    } catch (error) {
      if (error.name !== "SecurityError") throw error;
    }
  }

  openTree(tree, node = 0) {
    this.go({ page: "tree", tree, node, time: null });
  }

  /** The document of a run; asked for again where it has changed. */
  async run(number) {
    if (!this.runs.has(number)) this.runs.set(number, this.source.get(`run/${number}`));
    return this.runs.get(number);
  }

  async refresh() {
    try {
      await this.showPage();
    } catch (error) {
      this.fail(error);
    }
  }

  /** Show why the page cannot be shown. The next refresh tries again. */
  fail(error) {
    put(this.hosts.main, element("p", { class: "fault", role: "alert" }, spelt(error.message)));
    for (const view of Object.values(this.views)) view.destroy?.();
    this.views = {};
    this.shownTree = "";
  }

  async showPage() {
    const { state } = this;
    put(this.hosts.header, this.headerParts());
    document.title = state.page === "tree" ? `tree ${state.tree} – ramify` : "ramify";
    if (state.page === "compare") {
      this.leave("compare");
      return showComparison(this.hosts.main, this);
    }
    if (state.page === "tree" && state.tree !== null) return this.showTree();
    this.leave("run");
    this.views.run ??= createRunView(this.hosts.main, this);
    const run = await this.run(state.run);
    this.views.run.show(run);
    if (state.query !== this.searched) {
      this.searched = state.query;
      await this.views.run.search();
    }
  }

  async showTree() {
    const { state } = this;
    this.leave("tree");
    this.views.tree ??= createTreeView(this.hosts.main, this);
    const wanted = `${state.run}.${state.tree}`;
    if (this.shownTree !== wanted) {
      this.shownTree = wanted;
      const tree = await openTree(this.source, state.run, state.tree);
      if (this.shownTree === wanted) this.views.tree.show(tree);
    } else {
      this.views.tree.update();
    }
  }

  /** Drop every view but the one called `name`. */
  leave(name) {
    for (const other of Object.keys(this.views)) {
      if (other === name) continue;
      this.views[other].destroy?.();
      delete this.views[other];
      this.shownTree = "";
      this.searched = "";
    }
  }

  headerParts() {
    const { state } = this;
    const runs = this.index.runs;
    const others = runs.filter((run) => run.id !== state.run);
    return [
      element("strong", { class: "name" }, "ramify"),
      runs.length > 1
        ? element(
            "select",
            {
              "aria-label": "run",
              "data-focus": "run",
              onchange: (event) => this.go({ ...DEFAULTS, run: Number(event.target.value) }),
            },
            runs.map((run) => element("option", { value: run.id, ".selected": run.id === state.run }, run.name)),
          )
        : null,
      state.page === "run"
        ? null
        : button("all trees", () => this.go({ page: "run", tree: null, node: 0, time: null, other: "" })),
      others.length && state.page === "run"
        ? element(
            "select",
            {
              "aria-label": "compare with another run",
              onchange: (event) => this.go({ page: "compare", other: `run.${event.target.value}` }),
            },
            element("option", { value: "" }, "compare with …"),
            others.map((run) => element("option", { value: run.id }, run.name)),
          )
        : null,
      this.remembered
        ? element(
            "span",
            { class: "badge" },
            `compare: node ${this.remembered.node} of tree ${this.remembered.tree}; press x on another`,
          )
        : null,
      element("span", { class: "spring" }),
      element(
        "span",
        { class: "muted", role: "status" },
        this.source.isLive ? (this.isConnected === false ? "not connected; trying again" : "live") : "saved file",
      ),
      button("light / dark", () => this.turnTheme(), { "data-focus": "theme" }),
      button("keys ?", showHelp, { "data-focus": "keys" }),
    ];
  }

  marked() {
    return new Set(this.hits.filter((hit) => hit.tree === this.state.tree).map((hit) => hit.node));
  }

  setHits(hits) {
    this.hits = hits;
  }

  stepHit(by) {
    if (!this.hits.length) return;
    const here = this.hits.findIndex((hit) => hit.tree === this.state.tree && hit.node === this.state.node);
    const next = this.hits[(here + by + this.hits.length) % this.hits.length];
    this.openTree(next.tree, next.node);
  }

  colourTokens(name) {
    this.tokenValue = name;
    this.refresh();
  }

  /** Let the address point at a token of the path. */
  point(shown, number) {
    document.querySelector(".token.pointed")?.classList.remove("pointed");
    shown.classList.add("pointed");
    this.state = { ...this.state, token: number };
    this.setAddress(writeState(this.state), true);
  }

  // -- changes of a run that grows ------------------------------------------------------------------------------------

  connected(isConnected) {
    if (this.isConnected === isConnected) return;
    this.isConnected = isConnected;
    put(this.hosts.header, this.headerParts());
  }

  /** A run changed: `{run, trees}`. What is shown of it is read again at once, then after a pause. */
  changed(change) {
    this.runs.delete(change.run);
    if (change.run !== this.state.run) return;
    if (this.state.page === "tree" && !change.trees.includes(this.state.tree)) return;
    this.isOutdated = true;
    if (!this.isReading) this.readAgain();
  }

  async reopenTree() {
    try {
      this.views.tree?.show(await openTree(this.source, this.state.run, this.state.tree));
    } catch (error) {
      this.fail(error);
    }
  }

  async readAgain() {
    this.isReading = true;
    while (this.isOutdated) {
      this.isOutdated = false;
      if (this.state.page === "tree") {
        await this.reopenTree();
      } else {
        await this.refresh();
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_AGAIN_MS));
    }
    this.isReading = false;
  }

  // -- keys ------------------------------------------------------------------------------------------

  keys() {
    const move = (step) => () => {
      const model = this.views.tree?.tree()?.model;
      if (!model || this.state.page !== "tree") return;
      const node = step(modelAt(model, this.state.time), this.state.node);
      if (node !== null && node !== undefined && node >= 0) this.go({ node });
    };
    const event = (by) => () => {
      const events = this.views.tree?.tree()?.document.events ?? [];
      if (!events.length) return;
      const time = Math.max(0, (this.state.time ?? events.length - 1) + by);
      this.go({ time: time >= events.length - 1 ? null : time }, { isReplaced: true });
    };
    const next = (names, name) => names[(names.indexOf(this.state[name]) + 1) % names.length];
    return {
      j: move(nextInOrder),
      k: move(previousInOrder),
      h: move(parentOf),
      l: move(firstChildOf),
      "[": move(previousSibling),
      "]": move(nextSibling),
      b: move((model) => bestPath(model).at(-1)),
      "/": () => {
        this.go({ page: "run" });
        setTimeout(() => this.views.run?.focus());
      },
      n: () => this.stepHit(1),
      N: () => this.stepHit(-1),
      c: () => this.go({ colour: next(Object.keys(COLOURS), "colour") }),
      v: () => this.go({ drawing: next(DRAWING_NAMES, "drawing") }),
      d: () => this.go({ tab: "why" }),
      p: () => this.go({ tab: "path" }),
      x: () => this.startCompare(),
      e: () => this.views.tree && savePath(this.views.tree.tree(), this.state),
      ",": event(-1),
      ".": event(1),
      " ": () => this.views.tree?.togglePlay(),
      0: () => this.views.tree?.drawing()?.fit?.(),
      t: () => this.turnTheme(),
      u: () => this.go({ page: "run", tree: null, node: 0, time: null }),
      "?": showHelp,
    };
  }

  startCompare() {
    const { run, tree, node } = this.state;
    if (this.state.page !== "tree") return;
    if (
      this.remembered &&
      `${this.remembered.run}.${this.remembered.tree}.${this.remembered.node}` !== `${run}.${tree}.${node}`
    ) {
      const { remembered } = this;
      this.remembered = null;
      this.go({ page: "compare", other: `${remembered.run}.${remembered.tree}.${remembered.node}` });
    } else {
      this.remembered = { run, tree, node };
      put(this.hosts.header, this.headerParts());
    }
  }

  turnTheme() {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    this.refresh();
  }

  /** Show facts beside an element; null = show none. `makeFacts` is called only then. */
  hint(target, makeFacts) {
    showHint(this.hosts.hint, target, makeFacts);
  }
}

new App()
  .start()
  .catch((error) =>
    put(document.querySelector("main"), element("p", { class: "fault", role: "alert" }, spelt(error.message))),
  );
