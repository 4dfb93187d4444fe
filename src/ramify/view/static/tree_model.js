/**
 * Tree model: the columns of a tree document as typed arrays, with the order and the sums of all subtrees.
 *
 * Canonical order: breadth first; siblings by edge, then in the order they were requested. Nothing here recurses, so a
 * chain may be as deep as memory allows. NaN = not computed, which is not 0; -1 = no such node.
 *
 * @typedef {object} TreeModel
 * @property {number} count number of nodes of the document, the invisible ones included
 * @property {any} document the tree document
 * @property {any} nodes its columns
 * @property {Int32Array} parent
 * @property {Int32Array} childStart the children of `n` are `children[childStart[n]]` up to `childStart[n + 1]`
 * @property {Int32Array} children
 * @property {Int32Array} place where a node stands in `children`
 * @property {Int32Array} order visible nodes, breadth first
 * @property {Int32Array} preorder visible nodes, depth first
 * @property {Int32Array} enter where a node stands in `preorder`; -1 = invisible
 * @property {Int32Array} depth
 * @property {Int32Array} size number of nodes of the subtree
 * @property {number} numRows depth of the deepest node + 1
 * @property {Int32Array} leaves number of leaves of the subtree
 * @property {Float64Array} tokens sampled tokens of the subtree
 * @property {Float64Array} visits the node's own column: a visit below counts already
 * @property {Float64Array} mean mean reward of the leaves of the subtree
 * @property {Float64Array} best best reward of the leaves of the subtree
 * @property {Float64Array} reward
 * @property {Uint8Array} isStub whether a path stops here without having ended
 */

/**
 * @param {any} document a tree document
 * @returns {TreeModel}
 */
export function treeModel(document) {
  const nodes = document.nodes;
  const count = nodes.parent.length;
  const parent = new Int32Array(nodes.parent);
  const table = childTable(parent, null);
  sortSiblings(table, nodes);
  return completedModel({ count, document, nodes, reward: numberColumn(nodes.reward), parent, ...table });
}

/**
 * The tree as it was after event `time`: the same arrays over the nodes born by then. null = the whole tree.
 * A split makes a head that is younger than its tail; until then the tail hangs from what is above the head.
 * @param {TreeModel} model @param {number | null | undefined} time @returns {TreeModel}
 */
export function modelAt(model, time) {
  if (time === null || time === undefined) return model;
  const kept = modelsAtTime.get(model);
  if (kept && kept.time === time) return kept.shown;
  const visible = visibleAt(model, time);
  const parent = new Int32Array(model.count).fill(-1);
  const nearest = new Int32Array(model.count);
  for (const node of model.order) {
    const above = node === 0 ? -1 : nearest[model.parent[node]];
    nearest[node] = visible[node] ? node : above;
    if (visible[node]) parent[node] = above;
  }
  const { count, document, nodes, reward } = model;
  const shown = completedModel({ count, document, nodes, reward, parent, ...childTable(parent, model.preorder) });
  modelsAtTime.set(model, { time, shown });
  return shown;
}

/** @type {WeakMap<TreeModel, {time: number, shown: TreeModel}>} */
const modelsAtTime = new WeakMap();

/** A column with nulls as numbers. @param {(number | null)[]} values */
export function numberColumn(values) {
  const column = new Float64Array(values.length);
  for (let i = 0; i < values.length; i++) column[i] = values[i] ?? NaN;
  return column;
}

/** Children of every node, in the order of `sequence`; null = by number. */
function childTable(parent, sequence) {
  const count = parent.length;
  const childStart = new Int32Array(count + 1);
  for (let node = 0; node < count; node++) if (parent[node] >= 0) childStart[parent[node] + 1]++;
  for (let node = 0; node < count; node++) childStart[node + 1] += childStart[node];
  const children = new Int32Array(childStart[count]);
  const next = childStart.slice();
  for (let i = 0, end = sequence ? sequence.length : count; i < end; i++) {
    const node = sequence ? sequence[i] : i;
    if (parent[node] >= 0) children[next[parent[node]]++] = node;
  }
  return { childStart, children };
}

function sortSiblings({ childStart, children }, { edge, index }) {
  const compare = (a, b) => edge[a] - edge[b] || index[a] - index[b] || a - b;
  for (let node = 0; node + 1 < childStart.length; node++) {
    const [start, end] = [childStart[node], childStart[node + 1]];
    for (let i = start + 1; i < end; i++) {
      if (compare(children[i - 1], children[i]) > 0) {
        children.subarray(start, end).sort(compare);
        break;
      }
    }
  }
}

function completedModel(base) {
  const walked = { ...base, ...walkedOrders(base) };
  return { ...walked, ...subtreeSums(walked) };
}

/** Breadth-first and depth-first order, without a stack. */
function walkedOrders({ count, parent, childStart, children }) {
  const order = new Int32Array(children.length + 1);
  const [depth, size, place] = [new Int32Array(count), new Int32Array(count), new Int32Array(count).fill(-1)];
  const enter = new Int32Array(count).fill(-1);
  for (let i = 0, end = 1; i < order.length; i++) {
    const node = order[i];
    for (let j = childStart[node]; j < childStart[node + 1]; j++) {
      const child = children[j];
      place[child] = j;
      depth[child] = depth[node] + 1;
      order[end++] = child;
    }
  }
  for (let i = order.length - 1; i >= 0; i--) {
    size[order[i]]++;
    if (parent[order[i]] >= 0) size[parent[order[i]]] += size[order[i]];
  }
  const preorder = new Int32Array(order.length);
  enter[0] = 0;
  for (const node of order) {
    preorder[enter[node]] = node;
    for (let j = childStart[node], next = enter[node] + 1; j < childStart[node + 1]; j++) {
      enter[children[j]] = next;
      next += size[children[j]];
    }
  }
  return { order, preorder, enter, depth, size, place, numRows: depth[order[order.length - 1]] + 1 };
}

function subtreeSums({ count, nodes, reward, parent, childStart, order }) {
  const [leaves, rewarded, isStub] = [new Int32Array(count), new Int32Array(count), new Uint8Array(count)];
  const [tokens, mean, best] = [new Float64Array(count), new Float64Array(count), new Float64Array(count).fill(NaN)];
  const visits = new Float64Array(nodes.visits);
  for (let i = order.length - 1; i >= 0; i--) {
    const node = order[i];
    const above = parent[node];
    tokens[node] += nodes.sampled[node];
    isStub[node] = childStart[node] === childStart[node + 1] && nodes.stop[node] < 0 ? 1 : 0;
    if (nodes.is_leaf[node]) {
      leaves[node]++;
      if (!Number.isNaN(reward[node])) {
        rewarded[node]++;
        mean[node] += reward[node];
        if (!(best[node] >= reward[node])) best[node] = reward[node];
      }
    }
    if (above >= 0) {
      leaves[above] += leaves[node];
      rewarded[above] += rewarded[node];
      tokens[above] += tokens[node];
      mean[above] += mean[node];
      if (best[node] > best[above] || Number.isNaN(best[above])) best[above] = best[node];
    }
    mean[node] = rewarded[node] ? mean[node] / rewarded[node] : NaN;
  }
  return { leaves, tokens, visits, mean, best, isStub };
}

/** Whether two models, or null, are of one tree. @param {any} one @param {any} other */
export function isSameTree(one, other) {
  return Boolean(one && other) && one.document.uid === other.document.uid && one.document.tree === other.document.tree;
}

/** Nodes from the root to `node`, both included. @param {TreeModel} model @param {number} node */
export function pathTo(model, node) {
  const path = [];
  for (let current = node; current >= 0; current = model.parent[current]) path.push(current);
  return path.reverse();
}

/**
 * The path to the leaf with the best reward, of equal ones the first in canonical order. Without rewards: from the
 * root down to the child with the highest q, or else value, as far as it is known.
 * @param {TreeModel} model @returns {number[]}
 */
export function bestPath(model) {
  let found = -1;
  const isBetter = (node) => found < 0 || model.reward[node] > model.reward[found];
  for (const node of model.order) {
    if (model.nodes.is_leaf[node] && !Number.isNaN(model.reward[node]) && isBetter(node)) found = node;
  }
  return pathTo(model, found < 0 ? greedyEnd(model) : found);
}

function greedyEnd(model) {
  const worth = (node) => model.nodes.q[node] ?? model.nodes.value[node] ?? -Infinity;
  for (let node = 0; ;) {
    let best = -1;
    for (let i = model.childStart[node]; i < model.childStart[node + 1]; i++) {
      const child = model.children[i];
      if (worth(child) > (best < 0 ? -Infinity : worth(best))) best = child;
    }
    if (best < 0) return node;
    node = best;
  }
}

/** 1 for every node born by event `time`; null = all. @param {TreeModel} model @param {number | null} time */
export function visibleAt(model, time) {
  const visible = new Uint8Array(model.count);
  if (time === null) return visible.fill(1);
  for (let node = 0; node < model.count; node++) visible[node] = node === 0 || model.nodes.born[node] <= time ? 1 : 0;
  return visible;
}

/**
 * The nearest visible ancestor; -1 = none.
 * @param {TreeModel} model @param {Uint8Array} visible @param {number} node
 */
export function parentAt(model, visible, node) {
  let above = model.parent[node];
  while (above >= 0 && !visible[above]) above = model.parent[above];
  return above;
}

/** @param {TreeModel} model @param {number} node */
export function firstChildOf(model, node) {
  return model.childStart[node] < model.childStart[node + 1] ? model.children[model.childStart[node]] : -1;
}

/** @param {TreeModel} model @param {number} node */
export function parentOf(model, node) {
  return model.parent[node];
}

/** @param {TreeModel} model @param {number} node */
export function nextSibling(model, node) {
  return siblingAt(model, node, 1);
}

/** @param {TreeModel} model @param {number} node */
export function previousSibling(model, node) {
  return siblingAt(model, node, -1);
}

function siblingAt(model, node, step) {
  const above = model.parent[node];
  const place = model.place[node] + step;
  const isThere = above >= 0 && place >= model.childStart[above] && place < model.childStart[above + 1];
  return isThere ? model.children[place] : -1;
}

/** The next node, depth first; -1 = it was the last. @param {TreeModel} model @param {number} node */
export function nextInOrder(model, node) {
  return model.preorder[model.enter[node] + 1] ?? -1;
}

/** The node before it, depth first; -1 = it was the root. @param {TreeModel} model @param {number} node */
export function previousInOrder(model, node) {
  return model.preorder[model.enter[node] - 1] ?? -1;
}

/** The children of a node in canonical order; of no node (-1): none. @returns {number[]} */
export function childrenOf(model, node) {
  return node < 0 ? [] : Array.from(model.children.subarray(model.childStart[node], model.childStart[node + 1]));
}
