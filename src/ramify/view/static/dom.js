// DOM: makes elements of text nodes and attributes. Texts of a run are untrusted: no module writes markup.

const SVG = "http://www.w3.org/2000/svg";
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\u{e0000}|[\u{e0001}-\u{e0fff}]/gu;

/**
 * An element. `attributes`: `class`, `on…` functions, properties that begin with a dot, and attributes. Children that
 * are null are left out; texts become text nodes.
 * @param {string} tag @param {Record<string, any>} [attributes] @param {...any} children @returns {any}
 */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a picture. @returns {any} */
export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith(".")) made[name.slice(1)] = value;
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...wanted(children));
  return made;
}

function wanted(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Put `children` into `host` in place of what it holds. The focus goes to the child with the same `data-focus`. */
export function put(host, ...children) {
  const focused = host.contains(document.activeElement) ? document.activeElement.getAttribute("data-focus") : null;
  host.replaceChildren(...wanted(children));
  if (focused) host.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  return host;
}

/** @returns {any} */
export function button(label, onclick, attributes = {}) {
  return element("button", { type: "button", onclick, ...attributes }, label);
}

/** Nodes that show `text` exactly: characters that one cannot see, or that turn the direction, are spelt out. */
export function spelt(text) {
  const nodes = [];
  let last = 0;
  for (const match of text.matchAll(UNSEEN)) {
    if (match.index > last) nodes.push(document.createTextNode(text.slice(last, match.index)));
    nodes.push(element("span", { class: "unseen", title: "a character that cannot be seen" }, codeOf(match[0])));
    last = match.index + match[0].length;
  }
  if (last < text.length) nodes.push(document.createTextNode(text.slice(last)));
  return nodes;
}

/** `text` as one line for a cell or a label, at most `most` characters. */
export function oneLine(text, most = 120) {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  return cut.replace(/\n/g, "⏎").replace(UNSEEN, codeOf);
}

function codeOf(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}
