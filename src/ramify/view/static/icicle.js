/**
 * Icicle: the overview of a tree on a canvas. Depth runs down, a cell's width is its share, its colour a value.
 *
 * The part in sight is a port: its left edge, its first row, and how many times larger than the fitted drawing it is.
 */
import { colouring } from "./colours.js";
import { firstEndingAfter, paintCells, paintMarks, paintPending } from "./icicle_paint.js";
import { icicleLayout } from "./layout.js";
import { createSurface, drawingSummary, followPointer, isMotionReduced, patternFills } from "./surface.js";
import { bestPath, isSameTree, modelAt } from "./tree_model.js";

const [LEAST_ROW, READING_ROW, TALLEST_ROW] = [3, 30, 46];
const ZOOM_MS = 220;

/**
 * @param {HTMLElement} host
 * @param {{onSelect: (node: number) => void, onHover?: (node: number | null, event?: PointerEvent) => void}} callbacks
 */
export function createIcicle(host, { onSelect, onHover }) {
  /** @type {any} everything drawn: the whole tree, the tree at view.time, its layout, colours and marks */
  let scene = null;
  let port = { left: 0, top: 0, zoom: 1, rows: 1 };
  let [hovered, moving] = [-1, 0];
  const surface = createSurface(host, "icicle", { paint, paintOver, resized: () => scene && movePort({}) });

  function show(model, view) {
    const isSame = isSameTree(scene?.model, model);
    scene = icicleScene(surface, model, view, null);
    hovered = -1;
    if (isSame) movePort({});
    else fit();
  }
  function update(view) {
    scene = icicleScene(surface, scene.model, view, scene);
    movePort({});
  }
  function paint() {
    if (!scene) return;
    paintCells(surface, scene, portGeometry(surface, scene, port));
  }
  function paintOver(now) {
    if (!scene) return false;
    const geometry = portGeometry(surface, scene, port);
    paintMarks(surface, scene, geometry, hovered);
    return paintPending(surface, scene, geometry, now);
  }
  function movePort(change) {
    cancelAnimationFrame(moving);
    port = boundPort(surface, scene, { ...port, ...change });
    surface.redraw();
  }
  function glide(target) {
    cancelAnimationFrame(moving);
    const [start, end, begun] = [port, boundPort(surface, scene, target), performance.now()];
    if (isMotionReduced() || !surface.width) return movePort(end);
    const step = (now) => {
      const share = Math.min(1, Math.max(0, now - begun) / ZOOM_MS);
      port = share < 1 ? portBetween(surface, scene, start, end, 1 - (1 - share) ** 3) : end;
      surface.redraw();
      if (share < 1) moving = requestAnimationFrame(step);
    };
    moving = requestAnimationFrame(step);
  }
  function zoomTo(node) {
    const { layout } = scene;
    if (layout.depth[node] < 0 || scene.shown.enter[node] < 0) return;
    const width = Math.max(layout.x1[node] - layout.x0[node], layout.narrowest / 2);
    const zoom = 0.94 / width;
    const target = { zoom, rows: READING_ROW, left: layout.x0[node] - 0.03 / zoom, top: 0 };
    const { rowHeight } = portGeometry(surface, scene, target);
    glide({ ...target, top: layout.depth[node] - Math.min(2, surface.height / rowHeight / 3) });
  }
  function fit() {
    glide({ left: 0, top: 0, zoom: 1, rows: 1 });
  }
  followPointer(surface, {
    pan(dx, dy) {
      if (!scene) return;
      const { span, rowHeight } = portGeometry(surface, scene, port);
      movePort({ left: port.left - (dx / surface.width) * span, top: port.top - dy / rowHeight });
    },
    zoom(factor, x, y) {
      if (scene) movePort(portAround(surface, scene, port, { factor, x, y }));
    },
    click(point) {
      const node = scene ? cellAt(surface, scene, port, point) : -1;
      if (node >= 0) onSelect(node);
    },
    open(point) {
      const node = scene ? cellAt(surface, scene, port, point) : -1;
      if (node >= 0) zoomTo(node);
    },
    hover(point, event) {
      const node = scene && point ? cellAt(surface, scene, port, point) : -1;
      if (node !== hovered) surface.redrawOver();
      if (node !== hovered || node >= 0) onHover?.(node < 0 ? null : node, event);
      hovered = node;
    },
  });
  return { show, update, zoomTo, fit, destroy: surface.destroy };
}

/** What to draw, of which parts of `last` are kept that a new view does not change. */
function icicleScene(surface, model, view, last) {
  surface.setTheme(view.isDark);
  const shown = modelAt(model, view.time);
  const isKept = (...names) => last && last.shown === shown && names.every((name) => last.view[name] === view[name]);
  const layout = isKept("width") ? last.layout : icicleLayout(model, { width: view.width, time: view.time });
  const colours = isKept("colour", "isDark") ? last.colours : colouring(shown, view.colour, { isDark: view.isDark });
  const marked = view.marked?.size ? shown.order.filter((node) => view.marked.has(node)) : [];
  const best = view.best ? (isKept("best") ? last.best : bestPath(shown)) : [];
  const fills = isKept("colour", "isDark") ? last.fills : inkFills(surface, colours.inks);
  surface.describe(drawingSummary(shown, view.selected, "Icicle"));
  return { model, shown, view: { ...view }, layout, colours, marked, best, fills };
}

function inkFills(surface, inks) {
  const made = new Map([...new Set(inks)].map((ink) => [ink, patternFills(surface, ink)]));
  return inks.map((ink) => made.get(ink));
}

/** Pixels of a port. `rows`: how many times taller the rows are than in the fitted drawing, as far as they grow. */
function portGeometry(surface, { layout }, port) {
  const fitted = Math.min(TALLEST_ROW, Math.max(LEAST_ROW, surface.height / layout.numRows));
  const rowHeight = Math.min(Math.max(fitted, READING_ROW), fitted * Math.max(1, port.rows));
  const span = Math.max(1 / Math.max(1, port.zoom), layout.narrowest / 2);
  return { ...port, span, rowHeight, rows: rowHeight / fitted, scale: surface.width / span };
}

/** `port` moved back onto the tree. */
function boundPort(surface, scene, port) {
  const zoom = Math.min(Math.max(1, port.zoom), Math.max(2 / scene.layout.narrowest, READING_ROW / LEAST_ROW));
  const { span, rowHeight, rows } = portGeometry(surface, scene, { ...port, zoom });
  const numRows = surface.height / rowHeight;
  return {
    zoom,
    rows,
    left: Math.max(0, Math.min(port.left, 1 - span)),
    top: Math.max(0, Math.min(port.top, scene.layout.numRows + (scene.layout.numRows > numRows ? 1 : 0) - numRows)),
  };
}

/** `port` zoomed by `factor`, with the point under the pointer where it was. */
function portAround(surface, scene, port, { factor, x, y }) {
  const before = portGeometry(surface, scene, port);
  const { zoom } = boundPort(surface, scene, { ...port, zoom: port.zoom * factor });
  const rows =
    factor > 1 ? Math.max(port.rows, zoom ** 0.7) : Math.min(port.rows, Math.max(port.rows * factor, zoom ** 0.7));
  const after = portGeometry(surface, scene, { ...port, zoom, rows });
  const across = port.left + (x / surface.width) * before.span;
  const down = port.top + y / before.rowHeight;
  return { zoom, rows: after.rows, left: across - (x / surface.width) * after.span, top: down - y / after.rowHeight };
}

function portBetween(surface, scene, start, end, share) {
  const zoom = start.zoom * (end.zoom / start.zoom) ** share;
  const spanOf = (port) => portGeometry(surface, scene, port).span;
  const [from, to, now] = [spanOf(start), spanOf(end), spanOf({ ...start, zoom })];
  const along = Math.abs(to - from) > 1e-12 ? (now - from) / (to - from) : share;
  const rows = start.rows + (end.rows - start.rows) * share;
  return {
    zoom,
    rows,
    left: start.left + (end.left - start.left) * along,
    top: start.top + (end.top - start.top) * share,
  };
}

function cellAt(surface, { layout }, port, { x, y }) {
  const geometry = portGeometry(surface, { layout }, port);
  const row = Math.floor(port.top + y / geometry.rowHeight);
  if (row < 0 || row >= layout.numRows) return -1;
  const across = port.left + x / geometry.scale;
  const found = firstEndingAfter(layout, row, across);
  if (found >= layout.rowStart[row + 1]) return -1;
  const node = layout.order[found];
  return layout.x0[node] <= across ? node : -1;
}
