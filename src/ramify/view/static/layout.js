/**
 * Layouts: where the nodes of a tree stand. Pure: no canvas, no pixel.
 *
 * @typedef {import("./tree_model.js").TreeModel} TreeModel
 */
import { childrenOf, modelAt, pathTo } from "./tree_model.js";

/**
 * Icicle: a node's cell spans a share of the width, below the cell of its parent.
 *
 * Widths are those of the whole tree, so that no cell moves while a search is replayed; rows are those of the tree at
 * `time`. By "leaves" the children fill their parent. By "tokens" or "visits" the rest is the parent's own part.
 * @param {TreeModel} model
 * @param {{width?: string, time?: number | null}} options width: "leaves" | "tokens" | "visits"
 */
export function icicleLayout(model, { width = "leaves", time = null } = {}) {
  const share = cellShares(model, width);
  const [x0, x1] = [new Float64Array(model.count), new Float64Array(model.count)];
  x1[0] = 1;
  let narrowest = 1;
  for (const node of model.order) {
    const [start, end] = [model.childStart[node], model.childStart[node + 1]];
    let total = 0;
    for (let i = start; i < end; i++) total += share[model.children[i]];
    const unit = (x1[node] - x0[node]) / Math.max(total, share[node], 1e-300);
    for (let i = start, x = x0[node]; i < end; i++) {
      const child = model.children[i];
      x0[child] = x;
      x1[child] = x += share[child] * unit;
      if (x > x0[child]) narrowest = Math.min(narrowest, x - x0[child]);
    }
  }
  const shown = modelAt(model, time);
  return {
    x0,
    x1,
    narrowest,
    depth: shown.depth,
    order: shown.order,
    rowStart: rowStarts(shown),
    numRows: shown.numRows,
  };
}

/** What a cell's width stands for. A path counts at least one leaf, and a judge's question takes no width from it. */
function cellShares(model, width) {
  const { nodes, parent, order } = model;
  const share = new Float64Array(model.count);
  const isByVisits = width === "visits" && order.some((node) => model.visits[node] > 0);
  for (let i = order.length - 1; i >= 0; i--) {
    const node = order[i];
    if (width === "tokens") share[node] += Math.max(nodes.sampled[node], 0.5);
    else if (isByVisits) share[node] = Math.max(share[node], model.visits[node], 0.5);
    else share[node] = Math.max(share[node], 1);
    if (parent[node] >= 0 && (width === "tokens" || nodes.edge[node] === 0)) share[parent[node]] += share[node];
  }
  return share;
}

/** Where each row begins in the breadth-first order. */
function rowStarts(model) {
  const starts = new Int32Array(model.numRows + 1);
  for (const node of model.order) starts[model.depth[node] + 1]++;
  for (let row = 0; row < model.numRows; row++) starts[row + 1] += starts[row];
  return starts;
}

/** Children shown of a node that is not open; levels shown below the root and the selected node. */
const TOP_CHILDREN = 4;
const LEVELS_BELOW = 2;
/** So few nodes are shown without any stub. */
const FEW_NODES = 60;

/**
 * Node-link drawing of a part of the tree, from left to right: x = steps below `root`, y = rows.
 *
 * Shown: the paths to the selected and to the best node, the best children around them, and all children of open
 * nodes, `maxNodes` at most. The rest of a node's subtree becomes a stub with the number of nodes in it.
 * @param {TreeModel} model
 * @param {{root?: number, selected?: number, best?: number[], open?: Set<number>, maxNodes?: number}} options
 */
export function tidyLayout(model, { root = 0, selected = 0, best = [], open = new Set(), maxNodes = 500 } = {}) {
  const isShown = shownNodes(model, { root, selected, best, open, maxNodes });
  const { nodes, rows } = shownWalk(model, root, isShown);
  /** @type {Map<number, {x: number, y: number}>} */
  const positions = new Map();
  /** @type {{parent: number, hidden: number, x: number, y: number}[]} */
  const stubs = [];
  let numRows = 0;
  for (const { node, hidden } of rows) {
    const x = model.depth[node < 0 ? -1 - node : node] - model.depth[root];
    if (node >= 0) positions.set(node, { x, y: numRows++ });
    else stubs.push({ parent: -1 - node, hidden, x: x + 1, y: numRows++ });
  }
  const ends = new Map(stubs.map((stub) => [stub.parent, stub.y]));
  const [isOnPath, isOnBest] = [new Set(pathTo(model, selected)), new Set(best)];
  for (const node of nodes.reverse()) {
    const children = childrenShown(model, node, isShown);
    const rowsBelow = children.map((child) => positions.get(child)?.y ?? 0).concat(ends.get(node) ?? []);
    const straight =
      children.find((child) => isOnPath.has(child)) ?? children.find((child) => isOnBest.has(child)) ?? -1;
    const middle = (rowsBelow[0] + rowsBelow[rowsBelow.length - 1]) / 2;
    if (rowsBelow.length)
      positions.set(node, { x: model.depth[node] - model.depth[root], y: positions.get(straight)?.y ?? middle });
  }
  return { root, positions, stubs, numRows, isShown };
}

/** @returns {Set<number>} */
function shownNodes(model, { root, selected, best, open, maxNodes }) {
  if (model.size[root] <= FEW_NODES)
    return new Set(model.preorder.subarray(model.enter[root], model.enter[root] + model.size[root]));
  const isShown = new Set([root]);
  const isBelow = (node) =>
    model.enter[node] >= model.enter[root] && model.enter[node] < model.enter[root] + model.size[root];
  /** Node -> levels still to show below it. */
  const queue = [[root, LEVELS_BELOW + (selected === root ? 1 : 0)]];
  for (const path of [pathTo(model, selected), best]) {
    for (const node of path.filter(isBelow)) {
      if (isShown.size >= maxNodes / 2 || isShown.has(node)) continue;
      isShown.add(node);
      queue.push([node, node === selected ? LEVELS_BELOW : 1]);
    }
  }
  for (const [node, levels] of queue) {
    const below = open.has(node) ? childrenOf(model, node) : levels > 0 ? topChildren(model, node) : [];
    for (const child of below) {
      if (isShown.size >= maxNodes) return isShown;
      if (isShown.has(child)) continue;
      isShown.add(child);
      queue.push([child, open.has(node) ? Math.max(1, levels - 1) : levels - 1]);
    }
  }
  return isShown;
}

/** The children with the best reward below, the most visits, the most leaves; then in canonical order. */
function topChildren(model, node) {
  const known = (value) => (Number.isNaN(value) ? -Infinity : value);
  const better = (column) => (a, b) =>
    known(column[a]) === known(column[b]) ? 0 : known(column[b]) - known(column[a]);
  const rules = [better(model.best), better(model.visits), better(model.leaves)];
  const below = childrenOf(model, node);
  return below.sort((a, b) => rules.reduce((found, rule) => found || rule(a, b), 0)).slice(0, TOP_CHILDREN);
}

function childrenShown(model, node, isShown) {
  return childrenOf(model, node).filter((child) => isShown.has(child));
}

/** The shown nodes, parents first, and what takes a row: nodes without anything below, and stubs as -1 - parent. */
function shownWalk(model, root, isShown) {
  /** @type {number[]} */
  const nodes = [];
  const rows = [];
  const stack = [root];
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    if (node < 0) {
      const below = childrenShown(model, -1 - node, isShown).reduce((sum, child) => sum + model.size[child], 0);
      rows.push({ node, hidden: model.size[-1 - node] - 1 - below });
      continue;
    }
    nodes.push(node);
    const below = childrenShown(model, node, isShown);
    if (model.size[node] === 1) rows.push({ node, hidden: 0 });
    if (below.length < model.childStart[node + 1] - model.childStart[node]) stack.push(-1 - node);
    stack.push(...below.reverse());
  }
  return { nodes, rows };
}
