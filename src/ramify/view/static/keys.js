// Keys: what each key does, in one table, which is also the help.

export const KEYS = {
  j: "next node, in the order of the outline",
  k: "node before it",
  h: "parent",
  l: "first child",
  "[": "previous sibling",
  "]": "next sibling",
  b: "leaf of the best path",
  "/": "search the texts of all nodes",
  n: "next node that was found",
  N: "node found before it",
  c: "next colour",
  v: "next drawing",
  d: "why this node",
  p: "path",
  x: "remember this node; on another node: compare the two",
  e: "save the path to this node as JSON",
  ",": "one event back",
  ".": "one event on",
  " ": "replay the search",
  0: "fit the drawing",
  t: "light or dark",
  u: "back to the table of trees",
  "?": "this help",
};

/** Call `acts[key]` for keys that are pressed outside of fields. @param {Record<string, () => void>} acts */
export function listenToKeys(acts) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("input:not([type=range]), select, textarea, dialog")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (event.key === " " && target.closest("button, summary")) return;
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
}
