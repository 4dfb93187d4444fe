/**
 * Icicle, its painting: cells, labels and marks of the part in sight.
 *
 * Cells too narrow to see are merged by row and colour, so that a frame draws at most `MAX_RECTANGLES`.
 */
import { fittedText, isMotionReduced } from "./surface.js";
import { pathTo } from "./tree_model.js";

const MAX_RECTANGLES = 3000;
const MAX_LABELS = 260;
const LABEL_WIDTH = 60;
/** Cells narrower than so many pixels are merged; more where there are too many of them. */
const NARROW_CELL = 2;

/** The first place in a row whose cell ends right of `x`. */
export function firstEndingAfter({ order, rowStart, x1 }, row, x) {
  let [low, high] = [rowStart[row], rowStart[row + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x1[order[middle]] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

const rectangles = {
  from: new Float64Array(MAX_RECTANGLES),
  to: new Float64Array(MAX_RECTANGLES),
  row: new Int32Array(MAX_RECTANGLES),
  code: new Uint8Array(MAX_RECTANGLES),
  count: 0,
};

/** Fill `rectangles` with what is in sight, and `wide` with the nodes that have one of their own. */
function collectRectangles(surface, scene, geometry, narrow, wide) {
  const {
    layout,
    colours: { codes },
  } = scene;
  const { left, scale, span, top, rowHeight } = geometry;
  const weights = new Float64Array(16);
  const last = Math.min(layout.numRows, Math.ceil(top + surface.height / rowHeight));
  rectangles.count = wide.length = 0;
  for (let row = Math.floor(top); row < last; row++) {
    let [bucket, from, to] = [-1, 0, 0];
    const isFull = () => rectangles.count >= MAX_RECTANGLES;
    for (let i = firstEndingAfter(layout, row, left), end = layout.rowStart[row + 1]; i < end; i++) {
      const node = layout.order[i];
      if (layout.x0[node] >= left + span) break;
      const [x0, x1] = [(layout.x0[node] - left) * scale, (layout.x1[node] - left) * scale];
      const here = x1 - x0 >= narrow ? -1 : Math.floor((x0 + x1) / 2 / narrow);
      if (bucket >= 0 && here !== bucket) addMerged(weights, from, to, row);
      if (isFull()) return false;
      if (here < 0) {
        addRectangle(x0, x1, row, codes[node]);
        if (x1 - x0 >= 3) wide.push(node);
      } else {
        if (here !== bucket) from = x0;
        weights[codes[node]] += x1 - x0;
        to = x1;
      }
      bucket = here;
    }
    if (isFull()) return false;
    if (bucket >= 0) addMerged(weights, from, to, row);
  }
  return true;
}

function addRectangle(from, to, row, code) {
  const { count } = rectangles;
  rectangles.from[count] = from;
  rectangles.to[count] = to;
  rectangles.row[count] = row;
  rectangles.code[count] = code;
  rectangles.count++;
}

/** One rectangle in the colour that most of the merged cells have, joined to an equal one on its left. */
function addMerged(weights, from, to, row) {
  let code = 0;
  for (let i = 1; i < weights.length; i++) if (weights[i] > weights[code]) code = i;
  weights.fill(0);
  const before = rectangles.count - 1;
  const isJoined =
    before >= 0 &&
    rectangles.row[before] === row &&
    rectangles.code[before] === code &&
    from - rectangles.to[before] < 0.01;
  if (isJoined) rectangles.to[before] = to;
  else addRectangle(from, to, row, code);
}

export function paintCells(surface, scene, geometry) {
  const wide = [];
  for (let narrow = NARROW_CELL; !collectRectangles(surface, scene, geometry, narrow, wide); narrow *= 1.5);
  fillRectangles(surface, scene, geometry);
  paintEnds(surface, scene, geometry, wide);
  paintLabels(surface, scene, geometry, wide);
}

function fillRectangles(surface, { colours, fills }, { top, rowHeight }) {
  const { context, width } = surface;
  const gap = rowHeight >= 6 ? 1 : 0;
  colours.palette.forEach((colour, code) => {
    const styles = colours.patterns[code] && rowHeight >= 6 ? [colour, fills[code][colours.patterns[code]]] : [colour];
    for (const style of styles) {
      context.fillStyle = style;
      for (let i = 0; i < rectangles.count; i++) {
        if (rectangles.code[i] !== code) continue;
        const [from, to] = [Math.max(-2, rectangles.from[i]), Math.min(width + 2, rectangles.to[i])];
        const y = Math.round((rectangles.row[i] - top) * rowHeight);
        const height = Math.round((rectangles.row[i] + 1 - top) * rowHeight) - y - gap;
        const x = Math.round(from);
        context.fillRect(x, y, Math.max(1, Math.round(to) - x - (to - from >= 4 ? 1 : 0)), height);
      }
    }
  });
}

/** The place of a node's cell in pixels, cut at the edges of the canvas. */
function cellBox(surface, { layout }, { left, scale, top, rowHeight }, node) {
  const x0 = (layout.x0[node] - left) * scale;
  const x = Math.max(x0 < 0 ? -8 : 0, x0);
  const y = Math.round((layout.depth[node] - top) * rowHeight);
  const right = Math.min(surface.width + 8, (layout.x1[node] - left) * scale);
  return { x, y, width: right - x, height: Math.round((layout.depth[node] + 1 - top) * rowHeight) - y - 1 };
}

/** A solid foot under a path that ended, a dotted one under a path that stops without an end. */
function paintEnds(surface, scene, geometry, wide) {
  if (geometry.rowHeight < 8) return;
  const { context } = surface;
  const { nodes, isStub } = scene.shown;
  context.globalAlpha = 0.6;
  for (const node of wide) {
    if (nodes.stop[node] < 0 && !isStub[node]) continue;
    const { x, y, width, height } = cellBox(surface, scene, geometry, node);
    if (width < 4) continue;
    context.fillStyle = scene.colours.inks[scene.colours.codes[node]];
    const step = isStub[node] ? 6 : width;
    for (let foot = x; foot < x + width - 1; foot += step)
      context.fillRect(foot, y + height - 2, Math.min(isStub[node] ? 2 : width - 1, x + width - 1 - foot), 2);
  }
  context.globalAlpha = 1;
}

function paintLabels(surface, scene, geometry, wide) {
  if (geometry.rowHeight < 14) return;
  const { context } = surface;
  const { nodes } = scene.shown;
  const { codes, inks, valueText } = scene.colours;
  context.textBaseline = "middle";
  let number = 0;
  for (const node of wide) {
    const { x, y, width, height } = cellBox(surface, scene, geometry, node);
    const from = Math.max(0, x) + 7;
    const room = Math.min(surface.width, x + width) - from - 6;
    if (room < LABEL_WIDTH - 13 || ++number > MAX_LABELS) continue;
    const isTall = height >= 32;
    context.fillStyle = inks[codes[node]];
    context.fillText(
      fittedText(context, nodes.label[node] || `node ${node}`, room),
      from,
      y + height / 2 - (isTall ? 7 : -0.5),
    );
    if (!isTall) continue;
    context.globalAlpha = 0.72;
    context.fillText(fittedText(context, valueText(node), room), from, y + height / 2 + 8);
    context.globalAlpha = 1;
  }
}

/** Search hits, the best path, the path to the selected node, the selected node, the node under the pointer. */
export function paintMarks(surface, scene, geometry, hovered) {
  const context = surface.overContext;
  const { accent, ground, ink, mark } = surface.theme;
  paintHits(surface, scene, geometry, mark, ink);
  if (scene.best.length > 1) paintBest(surface, scene, geometry, { ground, ink });
  const isKnown = (node) => node >= 0 && scene.shown.enter[node] >= 0;
  const outline = (node, styles) => {
    const { x, y, width, height } = cellBox(surface, scene, geometry, node);
    if (x + width < 0 || x > surface.width || y > surface.height || y + height < 0) return;
    const [left, right] = [Math.max(x, -6) + 1, Math.min(x + Math.max(width, 9), surface.width + 6) - 2];
    for (const [colour, thickness] of styles) {
      context.strokeStyle = colour;
      context.lineWidth = thickness;
      context.strokeRect(left, y + 1, right - left, Math.max(1, height - 2));
    }
  };
  if (isKnown(scene.view.selected)) {
    const path = pathTo(scene.shown, scene.view.selected);
    const [first, last] = [Math.floor(geometry.top), Math.ceil(geometry.top + surface.height / geometry.rowHeight)];
    for (const node of path.slice(first, Math.min(last + 1, path.length - 1))) outline(node, [[accent, 1.5]]);
    outline(scene.view.selected, [
      [ground, 6],
      [accent, 3],
    ]);
  }
  if (isKnown(hovered))
    outline(hovered, [
      [ground, 3],
      [ink, 1.5],
    ]);
}

function paintHits(surface, scene, geometry, mark, ink) {
  const context = surface.overContext;
  let [row, right] = [-1, 0];
  for (const node of scene.marked) {
    const { x, y, width, height } = cellBox(surface, scene, geometry, node);
    if (y + height < 0 || y > surface.height || x + width < 0 || x > surface.width) continue;
    if (scene.layout.depth[node] === row && x + 2 < right) continue;
    const shown = Math.max(3, width - 1);
    [row, right] = [scene.layout.depth[node], x + shown];
    context.fillStyle = ink;
    context.fillRect(x, y, shown, Math.min(5, height));
    context.fillStyle = mark;
    context.fillRect(x, y, shown, Math.min(4, height));
  }
}

/** A line along the left edge of the best path. */
function paintBest(surface, scene, geometry, { ground, ink }) {
  const context = surface.overContext;
  const [first, last] = [
    Math.max(0, Math.floor(geometry.top) - 1),
    Math.ceil(geometry.top + surface.height / geometry.rowHeight) + 1,
  ];
  context.beginPath();
  for (const node of scene.best.slice(first, last)) {
    const { x, y, width, height } = cellBox(surface, scene, geometry, node);
    const across = Math.max(Math.min(2.5, width / 2), x + Math.min(3, width / 2));
    context.lineTo(across, y);
    context.lineTo(across, y + height);
  }
  for (const [colour, thickness] of [
    [ground, 5],
    [ink, 2.5],
  ]) {
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.stroke();
  }
  const end = cellBox(surface, scene, geometry, scene.best[scene.best.length - 1]);
  paintDisc(context, Math.max(6, end.x + Math.min(3, end.width / 2)), end.y + end.height, { ground, ink });
}

function paintDisc(context, x, y, { ground, ink }) {
  context.beginPath();
  context.arc(x, y, 4.5, 0, 7);
  context.fillStyle = ink;
  context.strokeStyle = ground;
  context.lineWidth = 2;
  context.fill();
  context.stroke();
}

/** Nodes in flight; says whether they have to be drawn again. */
export function paintPending(surface, scene, geometry, now) {
  const pending = [...(scene.view.pending ?? [])].filter((node) => scene.shown.enter[node] >= 0);
  if (!pending.length) return false;
  const context = surface.overContext;
  const isStill = isMotionReduced();
  context.fillStyle = surface.theme.accent;
  context.globalAlpha = isStill ? 0.5 : 0.3 + 0.25 * Math.sin(now / 260);
  for (const node of pending) {
    const { x, y, width, height } = cellBox(surface, scene, geometry, node);
    context.fillRect(x, y, Math.max(3, width - 1), height);
  }
  context.globalAlpha = 1;
  return !isStill;
}
