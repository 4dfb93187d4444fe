/**
 * Graph, its painting: boxes, links and stubs. One unit is one pixel at scale 1.
 */
import { fittedText, isMotionReduced } from "./surface.js";

export const COLUMN = 228;
export const ROW_PITCH = 50;
export const BOX = { width: 184, height: 38 };
export const STUB = { width: 112, height: 24 };
/** Below this scale a box has no text. */
const LEAST_TEXT_SCALE = 0.4;

/** The stub of everything above the first node; null = that is the root. */
export function placeAbove({ root, positions }) {
  return root === 0 ? null : { x: -(STUB.width + 26) / COLUMN, y: positions.get(root).y };
}

export function paintGraph(surface, scene, port) {
  const { context } = surface;
  context.save();
  context.translate(port.x, port.y);
  context.scale(port.scale, port.scale);
  const isInSight = ({ x, y }) => {
    const [left, middle] = [port.x + x * COLUMN * port.scale, port.y + y * ROW_PITCH * port.scale];
    const [width, height] = [BOX.width * port.scale, BOX.height * port.scale];
    return left < surface.width && left + width > 0 && middle - height < surface.height && middle + height > 0;
  };
  paintLinks(surface, scene);
  context.textBaseline = "middle";
  for (const [node, place] of scene.layout.positions)
    if (isInSight(place)) paintBox(surface, scene, node, place, port.scale);
  for (const stub of scene.layout.stubs)
    if (isInSight(stub)) paintStub(surface, stub, `+${stub.hidden.toLocaleString("en")} more`);
  const above = placeAbove(scene.layout);
  if (above) paintStub(surface, above, `${scene.shown.depth[scene.layout.root].toLocaleString("en")} above`);
  context.restore();
}

/** Links of one look are one path. */
function paintLinks(surface, scene) {
  const { context, theme } = surface;
  const { shown, layout, best, path } = scene;
  const looks = {
    plain: { colour: theme.muted, dim: 0.6, thickness: 1.2, dashes: [], links: [] },
    quotes: { colour: theme.muted, dim: 0.6, thickness: 1.2, dashes: [4, 4], links: [] },
    best: { colour: theme.ink, thickness: 3, dashes: [], links: [] },
    path: { colour: theme.accent, thickness: 2.5, dashes: [], links: [] },
  };
  for (const [node, place] of layout.positions) {
    if (node === layout.root) continue;
    const look = path.has(node) ? "path" : best.has(node) ? "best" : shown.nodes.edge[node] ? "quotes" : "plain";
    looks[look].links.push([layout.positions.get(shown.parent[node]), place]);
  }
  for (const stub of layout.stubs) looks.quotes.links.push([layout.positions.get(stub.parent), stub]);
  for (const { colour, dim = 1, thickness, dashes, links } of Object.values(looks)) {
    context.beginPath();
    for (const [from, to] of links)
      addLink(context, from.x * COLUMN + BOX.width, from.y * ROW_PITCH, to.x * COLUMN, to.y * ROW_PITCH);
    context.globalAlpha = dim;
    context.strokeStyle = colour;
    context.lineWidth = thickness;
    context.setLineDash(dashes);
    context.stroke();
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
}

function addLink(context, x0, y0, x1, y1) {
  const bend = (x0 + x1) / 2;
  context.moveTo(x0, y0);
  context.bezierCurveTo(bend, y0, bend, y1, x1, y1);
}

function paintBox(surface, scene, node, place, scale) {
  const { context, theme } = surface;
  const { codes, palette, inks, patterns, valueText } = scene.colours;
  const { nodes, isStub } = scene.shown;
  const [x, y] = [place.x * COLUMN, place.y * ROW_PITCH - BOX.height / 2];
  const code = codes[node];
  const stripe = scale < LEAST_TEXT_SCALE ? BOX.width : 10;
  boxPath(context, x, y, BOX, 6);
  context.fillStyle = theme.panel;
  context.fill();
  context.save();
  context.clip();
  for (const style of [palette[code], patterns[code] ? scene.fills[inks[code]][patterns[code]] : null]) {
    if (!style) continue;
    context.fillStyle = style;
    context.fillRect(x, y, stripe, BOX.height);
  }
  context.restore();
  strokeBox(surface, scene, node, x, y);
  if (scale < LEAST_TEXT_SCALE) return;
  const stop = nodes.stop[node] < 0 ? (isStub[node] ? "not ended" : "") : scene.shown.document.stops[nodes.stop[node]];
  const room = BOX.width - 26;
  context.fillStyle = theme.ink;
  context.fillText(fittedText(context, nodes.label[node] || `node ${node}`, room), x + 18, y + 12);
  context.fillStyle = theme.muted;
  context.fillText(fittedText(context, stop ? `${valueText(node)} · ${stop}` : valueText(node), room), x + 18, y + 27);
}

/** The edge of a box: selected, on the path, a search hit; dotted = the path stops here without an end. */
function strokeBox({ context, theme }, scene, node, x, y) {
  const isSelected = node === scene.view.selected;
  const isHit = scene.view.marked?.has(node);
  boxPath(context, x, y, BOX, 6);
  context.strokeStyle =
    isSelected || scene.path.has(node) ? theme.accent : scene.best.has(node) ? theme.ink : theme.line;
  context.lineWidth = isSelected ? 3 : scene.path.has(node) || scene.best.has(node) ? 1.6 : 1.2;
  context.setLineDash(scene.shown.isStub[node] && !isSelected ? [3, 3] : []);
  context.stroke();
  context.setLineDash([]);
  if (!isHit) return;
  context.beginPath();
  context.arc(x + BOX.width - 2, y + 2, 6, 0, 7);
  context.fillStyle = theme.mark;
  context.strokeStyle = theme.ink;
  context.lineWidth = 1.2;
  context.fill();
  context.stroke();
}

function paintStub({ context, theme }, place, text) {
  const [x, y] = [place.x * COLUMN, place.y * ROW_PITCH - STUB.height / 2];
  boxPath(context, x, y, STUB, STUB.height / 2);
  context.fillStyle = theme.ground;
  context.fill();
  context.strokeStyle = theme.muted;
  context.lineWidth = 1;
  context.stroke();
  context.fillStyle = theme.muted;
  const shown = fittedText(context, text, STUB.width - 16);
  context.fillText(shown, x + (STUB.width - context.measureText(shown).width) / 2, y + STUB.height / 2 + 0.5);
}

function boxPath(context, x, y, { width, height }, radius) {
  context.beginPath();
  context.roundRect(x, y, width, height, radius);
}

export function paintOutline(surface, { layout }, port, { node, stub }) {
  const place = stub ?? layout.positions.get(node) ?? placeAbove(layout);
  if (place) overBox(surface, port, place, node >= 0 ? BOX : STUB, (context) => context.stroke());
}

export function paintFlights(surface, { layout, view }, port, now) {
  const pending = [...(view.pending ?? [])].filter((node) => layout.positions.has(node));
  const isStill = isMotionReduced();
  surface.overContext.globalAlpha = isStill ? 0.35 : 0.25 + 0.15 * Math.sin(now / 260);
  for (const node of pending) overBox(surface, port, layout.positions.get(node), BOX, (context) => context.fill());
  surface.overContext.globalAlpha = 1;
  return pending.length > 0 && !isStill;
}

function overBox({ overContext, theme }, port, place, size, paint) {
  overContext.save();
  overContext.translate(port.x, port.y);
  overContext.scale(port.scale, port.scale);
  overContext.fillStyle = theme.accent;
  overContext.strokeStyle = theme.ink;
  overContext.lineWidth = 1.5 / port.scale;
  boxPath(
    overContext,
    place.x * COLUMN,
    place.y * ROW_PITCH - size.height / 2,
    size,
    size === BOX ? 6 : size.height / 2,
  );
  paint(overContext);
  overContext.restore();
}
