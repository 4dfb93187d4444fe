// Overlays: the list of keys, and the facts beside what the pointer is on.

import { button, element, put, spelt } from "./dom.js";
import { KEYS } from "./keys.js";

const GAP_PX = 6;
const EDGE_PX = 8;

/** Show what each key does. */
export function showHelp() {
  const lines = Object.entries(KEYS).map(([key, says]) => [
    element("dt", {}, element("kbd", {}, key === " " ? "space" : key)),
    element("dd", {}, says),
  ]);
  const close = button("close", () => dialog.close());
  const dialog = element(
    "dialog",
    { class: "help", "aria-label": "keys" },
    element("h2", {}, "Keys"),
    element("dl", {}, lines),
    close,
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * Show facts beside an element; in the drawing of a tree, at its lower edge.
 * @param {any} host @param {any} target null = show none @param {() => Record<string, any>} [makeFacts]
 */
export function showHint(host, target, makeFacts) {
  host.hidden = !target;
  if (!target) return;
  const facts = Object.entries(makeFacts()).map(([name, value]) => [
    element("dt", {}, name),
    element("dd", {}, spelt(String(value))),
  ]);
  put(host, element("dl", {}, facts));
  const box = target.getBoundingClientRect();
  const [width, height] = [host.offsetWidth, host.offsetHeight];
  const isDrawing = target.classList.contains("stage");
  const below = isDrawing ? box.bottom - height - EDGE_PX : box.bottom + GAP_PX;
  const top = below + height > window.innerHeight ? box.top - height - GAP_PX : below;
  host.style.left = `${Math.min(window.innerWidth - width - EDGE_PX, Math.max(EDGE_PX, box.left))}px`;
  host.style.top = `${Math.max(EDGE_PX, top)}px`;
}
