// Run view: what one asks of a run first: figures, a table of its trees, and a search through all their texts.

import { bars, card, facts, histogram, line } from "./charts.js";
import { button, element, oneLine, put, spelt } from "./dom.js";
import { fieldsOf } from "./fields_view.js";
import { condition } from "./filter.js";
import { figure, percent, seconds } from "./numbers.js";

const SHOWN = [
  "tree",
  "question",
  "nodes",
  "leaves",
  "tokens",
  "tools",
  "best",
  "reward",
  "stop",
  "tool_faults",
  "rollout",
  "steps",
  "open",
];
const ROW_PX = 28;
const SPARE_ROWS = 12;
const TYPING_MS = 200;

/** The page of one run. */
export function createRunView(host, app) {
  const parts = {
    head: element("div", {}),
    figures: element("div", { class: "figures" }),
    search: element("div", { class: "search" }),
    table: element("div", { class: "table" }),
    more: element("div", {}),
  };
  put(host, element("div", { class: "run-page" }, parts.head, parts.figures, parts.search, parts.table, parts.more));
  const search = createSearch(parts.search, app);
  const table = createTable(parts.table, app);
  let shown = null;
  function show(run) {
    shown = run;
    put(parts.head, headOf(run));
    put(parts.figures, figuresOf(run));
    put(
      parts.more,
      fieldsOf("configuration", { text: run.config }),
      fieldsOf("header", run.header),
      fieldsOf("service", run.service),
      Object.keys(run.facts).length ? fieldsOf("file", run.facts) : null,
    );
    table.show(run);
  }
  return { show, run: () => shown, update: () => shown && table.show(shown), focus: search.focus, search: search.run };
}

function headOf(run) {
  const told = [...run.faults, ...run.gaps];
  return [
    element("h1", {}, spelt(run.name)),
    element(
      "p",
      { class: "muted" },
      spelt(run.title),
      run.is_growing ? element("span", { class: "badge live" }, "grows") : null,
    ),
    told.length
      ? element(
          "ul",
          { class: "fault" },
          told.map((words) => element("li", {}, spelt(words))),
        )
      : null,
  ];
}

function figuresOf(run) {
  const { figures } = run;
  const { tokens, solved, groups } = figures;
  return [
    facts("Solved", [
      ["trees", run.trees.tree.length],
      ["finished", run.num_closed],
      ["computed so far", run.filled < run.num_closed ? run.filled : null],
      ["solved", `${percent(solved.share)}  [${percent(solved.low)}, ${percent(solved.high)}]`],
      ["mean reward", figures.rewards.mean],
      ["leaves", figures.leaves],
      ["dollars", figures.dollars],
    ]),
    histogram(
      "Rewards of leaves",
      figures.rewards.counts.map((count, place) => ({
        low: figures.rewards.edges[place],
        high: figures.rewards.edges[place + 1],
        count,
      })),
    ),
    line("Solved within so many tokens", curve(figures.solved_over_tokens), {
      xName: "sampled tokens of a tree",
      asPercent: true,
    }),
    bars("Problems", Object.entries(groups)),
    bars("How paths ended", Object.entries(figures.stops)),
    facts("Tokens", [
      ["sampled", tokens.sampled],
      ["on winning paths", tokens.winning],
      ["elsewhere", tokens.elsewhere],
      ["chains would sample", tokens.flat],
      ["context computed", tokens.uncached],
      ["context from the cache", tokens.cached],
      ["cache share", percent(tokens.cache_share)],
    ]),
    toolsCard(figures.tools),
    Object.keys(figures.faults).length ? bars("Faults", Object.entries(figures.faults)) : null,
    budgetCard(figures.budget),
    run.timeline.length
      ? line(
          "Commands in flight",
          run.timeline.map((point) => ({ x: point.time, y: point.active_branches })),
          { xName: "seconds" },
        )
      : null,
  ];
}

function toolsCard(tools) {
  const names = Object.keys(tools);
  if (!names.length) return null;
  return card(
    "Tools",
    element(
      "table",
      {},
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ["tool", "calls", "failed", "mean", "longest"].map((name) => element("th", { scope: "col" }, name)),
        ),
      ),
      element(
        "tbody",
        {},
        names.map((name) => {
          const tool = tools[name];
          const failed = Object.entries(tool.failed ?? {})
            .map(([status, count]) => `${status} ${count}`)
            .join(", ");
          return element(
            "tr",
            {},
            [name || "no tool named", tool.calls, failed || "none", seconds(tool.mean_s), seconds(tool.max_s)].map(
              (value) => element("td", {}, spelt(figure(value))),
            ),
          );
        }),
      ),
    ),
  );
}

function curve(points) {
  return points.tokens.map((tokens, place) => ({
    x: tokens,
    y: points.share[place],
    low: points.low[place],
    high: points.high[place],
  }));
}

function budgetCard({ run, tree }) {
  const left = (amount) => `${figure(amount.left)} of ${figure(amount.limit)}`;
  const entries = [
    ...Object.entries(run).map(([name, amount]) => [`${name}, run`, left(amount)]),
    ...Object.entries(tree).map(([name, amount]) => [`${name}, largest tree`, left(amount)]),
  ];
  return entries.length ? facts("Budget left", entries) : null;
}

// -- table ------------------------------------------------------------------------------------------------------------

function createTable(host, app) {
  let run = null;
  let rows = [];
  let names = [];
  const told = element("span", { class: "muted", role: "status" });
  const filter = element("input", {
    type: "search",
    class: "filter",
    placeholder: 'reward<0.3 and tool=="python" and tokens>200',
    "aria-label": "only trees of which this holds",
    oninput: () => later(() => app.go({ filter: filter.value }, { isReplaced: true })),
  });
  const head = element("tr", {});
  const body = element("tbody", {});
  const above = element("tr", { "aria-hidden": "true" }, element("td", {}));
  const below = element("tr", { "aria-hidden": "true" }, element("td", {}));
  const scroller = element(
    "div",
    {
      class: "scroller",
      tabindex: 0,
      role: "region",
      "aria-label": "trees of the run",
      onscroll: () => requestAnimationFrame(draw),
    },
    element("table", { class: "trees" }, element("thead", {}, head), body),
  );
  put(host, element("div", { class: "filter-line" }, element("label", {}, "trees where ", filter), told), scroller);
  let timer = 0;
  function later(act) {
    clearTimeout(timer);
    timer = setTimeout(act, TYPING_MS);
  }

  function show(next) {
    run = next;
    const { state } = app;
    if (document.activeElement !== filter) filter.value = state.filter;
    names = SHOWN.filter((name) =>
      run.trees[name]?.some((value) => value !== null && value !== 0 && value !== "" && value !== false),
    );
    put(
      head,
      names.map((name) =>
        element(
          "th",
          { scope: "col", class: run.columns[name] === "number" ? "number" : "", "aria-sort": sortOf(name) },
          button(name, () => sortBy(name), { class: "link", "data-focus": name }),
        ),
      ),
    );
    rows = run.trees.tree.map((_, place) => place);
    let fault = "";
    try {
      if (state.filter.trim()) {
        const holds = condition(state.filter, Object.keys(run.trees));
        rows = rows.filter((place) => holds((name) => run.trees[name][place]));
      }
    } catch (error) {
      fault = error.message;
    }
    sortRows();
    put(
      told,
      fault
        ? element("span", { class: "fault" }, spelt(fault))
        : `${figure(rows.length)} of ${figure(run.trees.tree.length)} trees`,
    );
    draw();
  }
  function sortOf(name) {
    return app.state.sort === name ? "ascending" : app.state.sort === `-${name}` ? "descending" : "none";
  }
  function sortBy(name) {
    app.go({ sort: app.state.sort === `-${name}` ? name : `-${name}` });
  }
  function sortRows() {
    const name = app.state.sort.replace(/^-/, "");
    const values = run.trees[name];
    if (!values) return;
    const sign = app.state.sort.startsWith("-") ? -1 : 1;
    const known = rows.filter((place) => values[place] !== null);
    known.sort(
      (one, other) => sign * (values[one] < values[other] ? -1 : values[one] > values[other] ? 1 : 0) || one - other,
    );
    rows = [...known, ...rows.filter((place) => values[place] === null)];
  }
  /** Draw the rows that can be seen; the others are two empty rows of their height. */
  function draw() {
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW_PX) - SPARE_ROWS);
    const last = Math.min(rows.length, first + Math.ceil(scroller.clientHeight / ROW_PX) + 2 * SPARE_ROWS);
    above.firstChild.style.height = `${first * ROW_PX}px`;
    below.firstChild.style.height = `${(rows.length - last) * ROW_PX}px`;
    put(body, above, rows.slice(first, last).map(rowElement), below);
  }
  function rowElement(place) {
    const number = run.trees.tree[place];
    const open = () => app.openTree(number);
    return element(
      "tr",
      { class: "tree-row", tabindex: 0, onclick: open, onkeydown: (event) => event.key === "Enter" && open() },
      names.map((name) =>
        element("td", { class: run.columns[name] === "number" ? "number" : "" }, cell(run.trees[name][place])),
      ),
    );
  }
  return { show };
}

function cell(value) {
  if (typeof value === "string") return spelt(oneLine(value, 80));
  if (Array.isArray(value)) return spelt(value.join(" "));
  return figure(value);
}

// -- search -----------------------------------------------------------------------------------------------------------

const MOST_HITS = 300;

function createSearch(host, app) {
  let running = null;
  const field = element("input", {
    type: "search",
    placeholder: "search all texts, or /regular expression/",
    "aria-label": "search the texts of all nodes",
    onkeydown: (event) => event.key === "Enter" && app.go({ query: field.value }),
  });
  const told = element("span", { class: "muted", role: "status" });
  const list = element("ol", { class: "hits" });
  put(
    host,
    element("label", {}, "search ", field),
    button("search", () => app.go({ query: field.value })),
    told,
    list,
  );

  /** Search for the text of the state. Resolves when all hits are found. */
  async function run() {
    const { state } = app;
    field.value = state.query;
    running?.abort();
    running = new AbortController();
    list.replaceChildren();
    app.setHits([]);
    told.textContent = "";
    if (!state.query) return;
    const hits = [];
    told.textContent = "searching …";
    try {
      const note = await app.source.search(
        state.run,
        state.query,
        (hit) => {
          hits.push(hit);
          if (hits.length <= MOST_HITS)
            list.append(
              element(
                "li",
                {},
                button(`tree ${hit.tree}, node ${hit.node}`, () => app.openTree(hit.tree, hit.node), { class: "link" }),
                " ",
                spelt(oneLine(hit.excerpt, 140)),
              ),
            );
        },
        running.signal,
      );
      app.setHits(hits);
      told.textContent = `${figure(hits.length)} nodes found${hits.length > MOST_HITS ? `; the first ${MOST_HITS} are listed` : ""}${note ? `; ${note}` : ""}; n and N step through them`;
    } catch (error) {
      if (error.name !== "AbortError") put(told, element("span", { class: "fault" }, spelt(error.message)));
    }
  }
  return { run, focus: () => field.focus() };
}
