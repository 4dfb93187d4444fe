/**
 * Graph: the part of a tree around the selected node as boxes and links, from left to right. What is left out stands
 * there as a stub with its number of nodes; a click on it opens it.
 */
import { colouring } from "./colours.js";
import { BOX, COLUMN, paintFlights, paintGraph, paintOutline, placeAbove, ROW_PITCH, STUB } from "./graph_paint.js";
import { tidyLayout } from "./layout.js";
import { createSurface, drawingSummary, followPointer, patternFills } from "./surface.js";
import { bestPath, isSameTree, modelAt, pathTo } from "./tree_model.js";

const MAX_SHOWN = 500;
const MARGIN = 16;
const [LEAST_SCALE, MOST_SCALE, READING_SCALE] = [0.06, 2.5, 0.8];
/** How far above the selected node the drawing begins, and how far below the beginning it may lie. */
const [STEPS_UP, MOST_STEPS] = [12, 40];

/**
 * @param {HTMLElement} host
 * @param {{onSelect: (node: number) => void, onHover?: (node: number | null, event?: PointerEvent) => void}} callbacks
 */
export function createGraph(host, { onSelect, onHover }) {
  /** @type {any} everything drawn */
  let scene = null;
  /** Nodes whose children are all shown. */
  let open = new Set();
  let port = { x: 0, y: 0, scale: 1 };
  let hovered = null;
  let isPlaced = false;
  const surface = createSurface(host, "graph", { paint, paintOver, resized: () => scene && !isPlaced && fit() });

  function show(model, view) {
    const isSame = isSameTree(scene?.model, model);
    if (!isSame) open = new Set();
    const last = isSame ? scene : null;
    const root = rootNear(modelAt(model, view.time), view.selected, last?.layout.root ?? 0);
    scene = graphScene(surface, model, view, { open, node: view.selected, root, layout: null });
    if (last) hold(last, view.selected);
    else fit();
  }
  function update(view) {
    const last = scene;
    const isKept =
      last.view.time === view.time && last.view.best === view.best && last.layout.positions.has(view.selected);
    const root = rootNear(modelAt(last.model, view.time), view.selected, last.layout.root);
    scene = graphScene(surface, last.model, view, {
      open,
      node: view.selected,
      root,
      layout: isKept ? last.layout : null,
    });
    if (!isKept) hold(last, last.view.selected);
    if (view.selected !== last.view.selected) reveal(view.selected);
    surface.redraw();
  }
  /** Keep the place of a node on the screen while everything around it moves. */
  function hold(last, node) {
    hovered = null;
    const [before, after] = [last.layout.positions.get(node), scene.layout.positions.get(node)];
    if (before && after) {
      port.x -= (after.x - before.x) * COLUMN * port.scale;
      port.y -= (after.y - before.y) * ROW_PITCH * port.scale;
    } else reveal(scene.view.selected);
    surface.redraw();
  }
  function reveal(node) {
    const place = scene.layout.positions.get(node);
    if (!place) return;
    const [x, y] = [port.x + place.x * COLUMN * port.scale, port.y + place.y * ROW_PITCH * port.scale];
    const [width, height] = [BOX.width * port.scale, BOX.height * port.scale];
    if (x < 0 || x + width > surface.width || y - height < 0 || y + height > surface.height) centre(node, port.scale);
  }
  function centre(node, scale) {
    const place = scene.layout.positions.get(node);
    if (!place) return;
    const wanted = {
      x: surface.width / 3 - place.x * COLUMN * scale,
      y: surface.height / 2 - place.y * ROW_PITCH * scale,
    };
    port = boundGraphPort(surface, scene.layout, { scale, ...wanted });
    surface.redraw();
  }
  function fit() {
    isPlaced = surface.width > 0;
    const { width, height } = graphSize(scene.layout);
    const scale = Math.min(1, (surface.width - 2 * MARGIN) / width, (surface.height - 2 * MARGIN) / height);
    centre(scene.view.selected, Math.max(scale, READING_SCALE));
  }
  function zoomTo(node) {
    if (!scene.layout.positions.has(node))
      scene = graphScene(surface, scene.model, scene.view, { open, ...around(node) });
    centre(node, Math.max(1, port.scale));
  }
  /** The node to lay out around, and where to begin. */
  function around(node) {
    return { node, root: rootNear(modelAt(scene.model, scene.view.time), node, scene.layout.root), layout: null };
  }
  function rebuild(root, held) {
    const last = scene;
    scene = graphScene(surface, last.model, last.view, { open, node: last.view.selected, root, layout: null });
    hold(last, held);
  }
  function paint() {
    if (scene) paintGraph(surface, scene, port);
  }
  function paintOver(now) {
    if (!scene) return false;
    if (hovered) paintOutline(surface, scene, port, hovered);
    return paintFlights(surface, scene, port, now);
  }
  followPointer(surface, {
    pan(dx, dy) {
      port = { ...port, x: port.x + dx, y: port.y + dy };
      surface.redraw();
    },
    zoom(factor, x, y) {
      const scale = Math.min(MOST_SCALE, Math.max(LEAST_SCALE, port.scale * factor));
      const grown = scale / port.scale;
      port = { scale, x: x - (x - port.x) * grown, y: y - (y - port.y) * grown };
      surface.redraw();
    },
    click(point) {
      const found = scene && thingAt(scene, port, point);
      if (found?.node >= 0) return onSelect(found.node);
      if (found?.isAbove) return rebuild(rootAbove(scene.shown, scene.layout.root), scene.layout.root);
      if (!found?.stub) return;
      open.add(found.stub.parent);
      rebuild(scene.layout.root, found.stub.parent);
    },
    open(point) {
      const found = scene && thingAt(scene, port, point);
      if (found?.node >= 0) zoomTo(found.node);
    },
    hover(point, event) {
      const found = scene && point ? thingAt(scene, port, point) : null;
      if (found?.node !== hovered?.node || found?.stub !== hovered?.stub) surface.redrawOver();
      const node = found?.node ?? -1;
      if (node >= 0 || hovered?.node >= 0) onHover?.(node >= 0 ? node : null, event);
      surface.base.classList.toggle("is-over", Boolean(found));
      hovered = found;
    },
  });
  return { show, update, zoomTo, fit, destroy: surface.destroy };
}

/** What to draw: the tree as of `view.time`, its colours, and `layout` or else a new one of what is around `node`. */
function graphScene(surface, model, view, { open, node, root, layout }) {
  surface.setTheme(view.isDark);
  const shown = modelAt(model, view.time);
  const best = view.best ? bestPath(shown) : [];
  const path = pathTo(shown, visibleOrRoot(shown, view.selected));
  const options = { root, selected: visibleOrRoot(shown, node), best, open, maxNodes: MAX_SHOWN };
  const colours = colouring(shown, view.colour, { isDark: view.isDark });
  const fills = Object.fromEntries([...new Set(colours.inks)].map((ink) => [ink, patternFills(surface, ink)]));
  surface.describe(drawingSummary(shown, view.selected, "Graph"));
  const marks = { best: new Set(best), path: new Set(path) };
  return { model, shown, view: { ...view }, colours, fills, ...marks, layout: layout ?? tidyLayout(shown, options) };
}

function visibleOrRoot(model, node) {
  return model.enter[node] >= 0 ? node : 0;
}

/** Where to begin so that `node` is in the drawing: at `root` if that is not too far above it. */
function rootNear(model, node, root) {
  const path = pathTo(model, visibleOrRoot(model, node));
  const isNear = path.includes(root) && path.length - 1 - model.depth[root] <= MOST_STEPS;
  return isNear ? root : path[Math.max(0, path.length - 1 - STEPS_UP)];
}

function graphSize({ positions, numRows }) {
  const numColumns = Math.max(...[...positions.values()].map((place) => place.x)) + 1.5;
  return { width: numColumns * COLUMN, height: numRows * ROW_PITCH };
}

/** `port` moved so that the drawing leaves no more room free than needed. */
function boundGraphPort(surface, layout, { scale, x, y }) {
  const { width, height } = graphSize(layout);
  const left = layout.root === 0 ? MARGIN : MARGIN + (STUB.width + 26) * scale;
  const top = MARGIN + (ROW_PITCH / 2) * scale;
  return {
    scale,
    x: insideOf(surface.width - left - MARGIN, width * scale, x - left) + left,
    y: insideOf(surface.height - 2 * MARGIN, height * scale, y - top) + top,
  };
}

/** Where a drawing of some size begins in some room: in the middle if it is smaller, else filling it. */
function insideOf(room, size, wanted) {
  return size <= room ? (room - size) / 2 : Math.min(0, Math.max(wanted, room - size));
}

function rootAbove(model, root) {
  let above = root;
  for (let i = 0; i < STEPS_UP && model.parent[above] >= 0; i++) above = model.parent[above];
  return above;
}

/** What lies under a point: {node}, {stub} or {isAbove}; null = nothing. */
function thingAt({ layout }, port, point) {
  const [x, y] = [(point.x - port.x) / port.scale, (point.y - port.y) / port.scale];
  const isIn = (place, { width, height }) =>
    x >= place.x * COLUMN && x <= place.x * COLUMN + width && Math.abs(y - place.y * ROW_PITCH) <= height / 2;
  for (const [node, place] of layout.positions) if (isIn(place, BOX)) return { node };
  for (const stub of layout.stubs) if (isIn(stub, STUB)) return { stub };
  const above = placeAbove(layout);
  return above && isIn(above, STUB) ? { isAbove: true } : null;
}
