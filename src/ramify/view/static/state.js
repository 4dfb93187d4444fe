// State: what the page shows, kept in the fragment of its address, so that every view has a link.

const NUMBERS = { r: "run", t: "tree", n: "node", k: "time", p: "token" };
const TEXTS = {
  c: "colour",
  w: "width",
  d: "drawing",
  b: "tab",
  f: "filter",
  s: "sort",
  q: "query",
  o: "other",
  v: "page",
};
export const DEFAULTS = {
  page: "run",
  run: 0,
  tree: null,
  node: 0,
  time: null,
  token: null,
  colour: "reward",
  width: "leaves",
  drawing: "icicle",
  tab: "path",
  filter: "",
  sort: "",
  query: "",
  other: "",
};

/** The state that a fragment names. What it does not name, or names wrongly, has its default. */
export function readState(fragment) {
  const state = { ...DEFAULTS };
  for (const [key, value] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    if (NUMBERS[key] && /^\d{1,9}$/.test(value)) state[NUMBERS[key]] = Number(value);
    if (TEXTS[key]) state[TEXTS[key]] = value.slice(0, 500);
  }
  return state;
}

export function writeState(state) {
  const said = new URLSearchParams();
  for (const [key, name] of Object.entries({ ...TEXTS, ...NUMBERS })) {
    if (state[name] !== DEFAULTS[name] && state[name] !== null) said.set(key, state[name]);
  }
  return `#${said}`;
}

/** The three numbers of a leaf elsewhere, "run.tree.node"; null = the text is none. */
export function placeOf(text) {
  const found = text.match(/^(\d+)\.(\d+)\.(\d+)$/);
  return found && { run: Number(found[1]), tree: Number(found[2]), node: Number(found[3]) };
}
