/**
 * Outline: a tree as an indented list for reading. Only the rows in sight are in the page. Only forks indent, so that a
 * long chain stays readable; `aria-level` is the true depth.
 */
import { colouring } from "./colours.js";
import { element } from "./dom.js";
import { bestPath, isSameTree, modelAt, pathTo } from "./tree_model.js";

const OUTLINE_ROW = 26;
const [INDENT, MOST_INDENTS] = [16, 40];
const ROWS_BEYOND = 6;
/** A tree of at most so many nodes is shown open. */
const MOST_OPEN = 400;

/**
 * @param {HTMLElement} host
 * @param {{onSelect: (node: number) => void, onHover?: (node: number | null, event?: PointerEvent) => void}} callbacks
 */
export function createOutline(host, { onSelect, onHover }) {
  /** @type {any} */
  let scene = null;
  /** Node -> 1 if its children are shown. */
  let isOpen = new Uint8Array(0);
  let list = new Int32Array(0);
  /** @type {Map<number, HTMLElement>} the rows in the page */
  const rows = new Map();
  let request = 0;
  const sheet = element("div", { class: "outline-sheet", role: "none" });
  const box = element("div", { class: "outline", role: "tree", tabindex: 0, onscroll: schedule }, sheet);
  host.replaceChildren(box);
  const observer = new ResizeObserver(schedule);
  observer.observe(box);

  function show(model, view) {
    const isSame = isSameTree(scene?.model, model);
    const before = isOpen;
    scene = outlineScene(model, view, null);
    isOpen = firstOpen(scene);
    if (isSame) isOpen.set(before.subarray(0, model.count));
    else box.scrollTop = 0;
    relist();
    reveal(view.selected);
  }
  function update(view) {
    const last = scene;
    scene = outlineScene(last.model, view, last);
    if (scene.shown !== last.shown) relist();
    if (last.view.selected !== view.selected) reveal(view.selected);
    clearRows();
  }
  /** Show or hide what is below a node. */
  function toggle(node, isWanted = !isOpen[node]) {
    isOpen[node] = isWanted ? 1 : 0;
    relist();
  }
  function relist() {
    list = listed(scene.shown, isOpen);
    sheet.style.height = `${list.length * OUTLINE_ROW}px`;
    box.setAttribute("aria-label", `Outline of ${scene.shown.order.length} nodes with ${scene.shown.leaves[0]} leaves`);
    clearRows();
  }
  function clearRows() {
    rows.clear();
    sheet.replaceChildren();
    draw();
  }
  function schedule() {
    if (!request) request = requestAnimationFrame(draw);
  }
  function draw() {
    cancelAnimationFrame(request);
    request = 0;
    if (!scene) return;
    const first = Math.max(0, Math.floor(box.scrollTop / OUTLINE_ROW) - ROWS_BEYOND);
    const end = Math.min(list.length, Math.ceil((box.scrollTop + box.clientHeight) / OUTLINE_ROW) + ROWS_BEYOND);
    const inSight = new Set(list.subarray(first, end));
    for (const [node, row] of rows) if (!inSight.has(node)) rows.delete(node) && row.remove();
    for (let i = first; i < end; i++) if (!rows.has(list[i])) sheet.append(rowOf(list[i], i));
    const active = rows.get(scene.view.selected);
    if (active) box.setAttribute("aria-activedescendant", active.id);
    else box.removeAttribute("aria-activedescendant");
  }
  function rowOf(node, place) {
    const row = outlineRow(scene, node, Boolean(isOpen[node]));
    row.style.top = `${place * OUTLINE_ROW}px`;
    rows.set(node, row);
    return row;
  }
  /** Open everything above a node and scroll to it if it is out of sight. */
  function reveal(node, isCentred = false) {
    if (scene.shown.enter[node] < 0) return;
    const above = pathTo(scene.shown, node).slice(0, -1);
    const isHidden = above.some((each) => !isOpen[each]);
    for (const each of above) isOpen[each] = 1;
    if (isHidden) relist();
    const top = list.indexOf(node) * OUTLINE_ROW;
    const isInSight = top >= box.scrollTop && top + OUTLINE_ROW <= box.scrollTop + box.clientHeight;
    if (isCentred || !isInSight) box.scrollTop = top - box.clientHeight / 3;
    draw();
  }
  /** @param {any} event */
  const nodeAt = (event) => Number(event.target.closest?.("[data-node]")?.dataset.node ?? -1);
  sheet.addEventListener("click", (/** @type {any} */ event) => {
    const node = nodeAt(event);
    if (node < 0) return;
    if (event.target.closest(".outline-toggle")) toggle(node);
    else onSelect(node);
  });
  sheet.addEventListener("dblclick", (/** @type {any} */ event) => {
    if (nodeAt(event) >= 0 && !event.target.closest(".outline-toggle")) toggle(nodeAt(event));
  });
  sheet.addEventListener("pointerover", (event) => onHover?.(nodeAt(event) < 0 ? null : nodeAt(event), event));
  sheet.addEventListener("pointerleave", (event) => onHover?.(null, event));
  return {
    show,
    update,
    toggle,
    zoomTo: (node) => reveal(node, true),
    fit() {
      isOpen = firstOpen(scene);
      box.scrollTop = 0;
      relist();
    },
    destroy() {
      observer.disconnect();
      cancelAnimationFrame(request);
      host.replaceChildren();
    },
  };
}

function outlineScene(model, view, last) {
  const shown = modelAt(model, view.time);
  const isKept = (...names) => last && last.shown === shown && names.every((name) => last.view[name] === view[name]);
  return {
    model,
    shown,
    view: { ...view },
    indents: isKept() ? last.indents : forkIndents(shown),
    colours: isKept("colour", "isDark") ? last.colours : colouring(shown, view.colour, { isDark: view.isDark }),
    best: isKept("best") ? last.best : new Set(view.best ? bestPath(shown) : []),
    path: new Set(shown.enter[view.selected] >= 0 ? pathTo(shown, view.selected) : []),
  };
}

function forkIndents(model) {
  const indents = new Int32Array(model.count);
  for (const node of model.order.subarray(1)) {
    const above = model.parent[node];
    indents[node] = indents[above] + (above === 0 || model.childStart[above + 1] - model.childStart[above] > 1 ? 1 : 0);
  }
  return indents;
}

/** A small tree is open; of a large one, the first levels and the best path. */
function firstOpen({ shown, best, model }) {
  const isOpen = new Uint8Array(model.count);
  if (model.count <= MOST_OPEN) return isOpen.fill(1);
  for (const node of shown.order) isOpen[node] = shown.depth[node] < 2 || best.has(node) ? 1 : 0;
  return isOpen;
}

/** The nodes with a row, in order. */
function listed({ preorder, size, count }, isOpen) {
  const list = new Int32Array(count);
  let length = 0;
  for (let i = 0; i < preorder.length; i += isOpen[preorder[i]] ? 1 : size[preorder[i]]) list[length++] = preorder[i];
  return list.subarray(0, length);
}

function outlineRow(scene, node, isOpen) {
  const { shown, view, colours, best, path } = scene;
  const { nodes } = shown;
  const hasChildren = shown.size[node] > 1;
  const stop = nodes.stop[node] < 0 ? (shown.isStub[node] ? "not ended" : "") : shown.document.stops[nodes.stop[node]];
  const flags = {
    "is-selected": node === view.selected,
    "is-path": path.has(node),
    "is-best": best.size > 1 && best.has(node),
    "is-marked": view.marked?.has(node),
    "is-pending": view.pending?.has(node),
  };
  const gap = element("span", { class: "outline-gap" });
  gap.style.width = `${Math.min(scene.indents[node], MOST_INDENTS) * INDENT}px`;
  const swatch = element("span", { class: `outline-swatch ${colours.patterns[colours.codes[node]]}` });
  swatch.style.backgroundColor = colours.palette[colours.codes[node]];
  const above = shown.parent[node];
  const attributes = {
    id: `outline-node-${node}`,
    class: ["outline-row", ...Object.keys(flags).filter((name) => flags[name])].join(" "),
    role: "treeitem",
    "data-node": node,
    "aria-level": shown.depth[node] + 1,
    "aria-selected": String(node === view.selected),
    "aria-expanded": hasChildren ? String(isOpen) : null,
    "aria-posinset": above < 0 ? 1 : shown.place[node] - shown.childStart[above] + 1,
    "aria-setsize": above < 0 ? 1 : shown.childStart[above + 1] - shown.childStart[above],
  };
  return element(
    "div",
    attributes,
    gap,
    element("span", { class: "outline-toggle", "aria-hidden": "true" }, hasChildren ? (isOpen ? "▾" : "▸") : ""),
    swatch,
    element("span", { class: "outline-number" }, String(node)),
    element("span", { class: "outline-label" }, nodes.label[node] || "(no text)"),
    hasChildren && !isOpen
      ? element("span", { class: "outline-more" }, `+${(shown.size[node] - 1).toLocaleString("en")}`)
      : null,
    element("span", { class: "outline-stop" }, stop),
    element("span", { class: "outline-value" }, colours.valueText(node)),
  );
}
