/**
 * Surface: a canvas that fills its host, with a second one above it for what changes often, and what a pointer does
 * there. Painters get pixels of the page; the ratio of device pixels is set before they are called.
 */

const THEME_COLOURS = {
  ground: ["#ffffff", "#16191d"],
  ink: ["#1b1f24", "#e8eaed"],
  muted: ["#667079", "#98a1ab"],
  line: ["#d5d9de", "#3a4048"],
  accent: ["#0b62d6", "#6cb0ff"],
  panel: ["#f6f7f9", "#1e2227"],
  mark: ["#e5b000", "#ffd43b"],
};
const CLICK_DISTANCE = 4;
const SURFACE_FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif';

/**
 * @param {HTMLElement} host @param {string} className
 * @param {{paint: () => void, paintOver: (now: number) => boolean, resized?: () => void}} painters `paintOver` says
 *   whether it has to be called again for the next frame
 */
export function createSurface(host, className, { paint, paintOver, resized }) {
  const base = document.createElement("canvas");
  const over = document.createElement("canvas");
  base.className = `drawing ${className}`;
  base.tabIndex = 0;
  base.setAttribute("role", "img");
  over.className = "drawing-over";
  over.setAttribute("aria-hidden", "true");
  host.classList.add("drawing-host");
  host.replaceChildren(base, over);
  const surface = {
    base,
    over,
    width: 0,
    height: 0,
    ratio: 1,
    theme: themeOf(base, false),
    context: contextOf(base),
    overContext: contextOf(over),
    redraw,
    redrawOver,
    setTheme,
    describe,
    destroy,
  };
  let [isStale, isOverStale, request] = [false, false, 0];

  function frame(now) {
    request = 0;
    if (surface.width && isStale) cleared(surface, surface.context, paint);
    if (surface.width && isOverStale) isOverStale = cleared(surface, surface.overContext, () => paintOver(now));
    isStale = false;
    if (isOverStale) schedule();
  }
  function schedule() {
    if (!request) request = requestAnimationFrame(frame);
  }
  function redraw() {
    isStale = isOverStale = true;
    schedule();
  }
  function redrawOver() {
    isOverStale = true;
    schedule();
  }
  function setTheme(isDark) {
    surface.theme = themeOf(base, isDark);
    surface.context.font = surface.overContext.font = SURFACE_FONT;
  }
  function describe(text) {
    if (base.getAttribute("aria-label") !== text) base.setAttribute("aria-label", text);
  }
  function fit() {
    const [width, height] = [host.clientWidth, host.clientHeight];
    const ratio = window.devicePixelRatio || 1;
    if (width === surface.width && height === surface.height && ratio === surface.ratio) return;
    Object.assign(surface, { width, height, ratio });
    for (const canvas of [base, over]) {
      canvas.width = Math.max(1, Math.round(width * ratio));
      canvas.height = Math.max(1, Math.round(height * ratio));
    }
    surface.context.font = surface.overContext.font = SURFACE_FONT;
    resized?.();
    redraw();
  }
  const observer = new ResizeObserver(fit);
  observer.observe(host);
  fit();
  function destroy() {
    observer.disconnect();
    cancelAnimationFrame(request);
    host.classList.remove("drawing-host");
    host.replaceChildren();
  }
  return surface;
}

function contextOf(canvas) {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser has no canvas");
  return context;
}

function cleared(surface, context, paint) {
  context.setTransform(surface.ratio, 0, 0, surface.ratio, 0, 0);
  context.clearRect(0, 0, surface.width, surface.height);
  return paint();
}

/** The colours of the page, resolved by the browser. */
function themeOf(canvas, isDark) {
  const theme = { isDark };
  for (const [name, [light, dark]] of Object.entries(THEME_COLOURS)) {
    canvas.style.color = `var(--${name}, ${isDark ? dark : light})`;
    theme[name] = getComputedStyle(canvas).color;
  }
  canvas.style.color = "";
  return theme;
}

/**
 * Tell what a pointer does on a surface: `pan` by pixels, `zoom` by a factor around a point, `click`, `open` (double
 * click), and `hover` (null = it left).
 */
export function followPointer(surface, { pan, zoom, click, open, hover }) {
  const canvas = surface.base;
  let held = null;
  const pointOf = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { ...pointOf(event), isDrag: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const point = pointOf(event);
    if (!held) return hover(point, event);
    held.isDrag ||= Math.hypot(point.x - held.x, point.y - held.y) > CLICK_DISTANCE;
    if (!held.isDrag) return;
    canvas.classList.add("is-dragged");
    pan(point.x - held.x, point.y - held.y);
    Object.assign(held, point);
  });
  const release = (event) => {
    if (held && !held.isDrag && event.type === "pointerup") click(pointOf(event));
    held = null;
    canvas.classList.remove("is-dragged");
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => hover(null, event));
  canvas.addEventListener("dblclick", (event) => open(pointOf(event)));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? surface.height : 1;
      const { x, y } = pointOf(event);
      if (event.shiftKey) pan(0, -(event.deltaY || event.deltaX) * unit);
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(-event.deltaX * unit, 0);
      else zoom(Math.exp(-event.deltaY * unit * (event.ctrlKey ? 0.008 : 0.0018)), x, y);
    },
    { passive: false },
  );
}

const glyphWidths = new Map();

/** The beginning of `text` that fits into `room` pixels; "…" stands for the rest. */
export function fittedText(context, text, room) {
  let [width, cut] = [0, 0];
  const dots = glyphWidth(context, "…");
  for (let i = 0; i < text.length;) {
    const glyph = String.fromCodePoint(text.codePointAt(i) ?? 32);
    width += glyphWidth(context, glyph);
    if (width > room) return cut > 0 ? `${text.slice(0, cut)}…` : "";
    i += glyph.length;
    if (width + dots <= room) cut = i;
  }
  return text;
}

function glyphWidth(context, glyph) {
  const kept = glyphWidths.get(glyph);
  if (kept !== undefined) return kept;
  const width = context.measureText(glyph).width;
  if (glyphWidths.size < 5000) glyphWidths.set(glyph, width);
  return width;
}

/** Fill styles that stand for a step's pattern, in `ink`. */
export function patternFills(surface, ink) {
  return { stripes: tile(surface, ink, stripesTile), dots: tile(surface, ink, dotsTile) };
}

function tile(surface, ink, paint) {
  const size = Math.round(6 * surface.ratio);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size;
  const context = contextOf(canvas);
  context.fillStyle = context.strokeStyle = ink;
  paint(context, size, surface.ratio);
  const pattern = surface.context.createPattern(canvas, "repeat");
  pattern?.setTransform(new DOMMatrix([1 / surface.ratio, 0, 0, 1 / surface.ratio, 0, 0]));
  return pattern ?? "transparent";
}

function stripesTile(context, size, ratio) {
  context.globalAlpha = 0.45;
  context.lineWidth = 1.2 * ratio;
  context.beginPath();
  for (const shift of [-size, 0, size]) {
    context.moveTo(shift - 1, size + 1);
    context.lineTo(shift + size + 1, -1);
  }
  context.stroke();
}

function dotsTile(context, size, ratio) {
  context.globalAlpha = 0.3;
  context.fillRect(Math.floor(size / 2), Math.floor(size / 2), Math.ceil(ratio), Math.ceil(ratio));
}

export function isMotionReduced() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

/** One sentence on a tree and its selected node, for people who do not see the drawing. */
export function drawingSummary(model, selected, kind) {
  const numbers = `${kind} of ${model.order.length} nodes with ${model.leaves[0]} leaves`;
  return `${numbers}; selected: node ${selected}, ${model.nodes.label[selected] || "no text"}`;
}
