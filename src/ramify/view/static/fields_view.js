// Fields view: everything that the run holds of a node, name by name, so that nothing stays unseen.

import { button, element, oneLine, put, spelt } from "./dom.js";
import { figure } from "./numbers.js";

/** Show every field of `node`, of its segments, and of its tree. */
export async function showFields(host, tree, node) {
  const { document: known } = tree;
  const columns = Object.fromEntries(Object.entries(known.nodes).map(([name, values]) => [name, values[node]]));
  for (const name of ["edge", "role", "action", "stop"]) columns[name] = known[`${name}s`][columns[name]] ?? null;
  const { nodes, events, rows, stop_meanings, ...whole } = known;
  const { segments } = await tree.segmentsOf(node);
  put(
    host,
    fieldsOf("node", {
      node,
      ...columns,
      scores: known.scores[node],
      notes: known.notes[node],
      calls: known.calls[node],
    }),
    segments.map((segment, place) => fieldsOf(`segment ${place}`, segment)),
    fieldsOf("tree", whole),
  );
}

/** A value as nested lists of names and values. */
export function fieldsOf(title, values) {
  return element(
    "details",
    { class: "fields", open: title === "node" },
    element("summary", {}, title),
    valueElement(values),
  );
}

function valueElement(value) {
  if (value === null || value === undefined) return element("span", { class: "muted" }, "–");
  if (Array.isArray(value)) return listElement(value);
  if (typeof value === "object") {
    return element(
      "dl",
      {},
      Object.entries(value).map(([name, each]) => [
        element("dt", {}, spelt(name)),
        element("dd", {}, valueElement(each)),
      ]),
    );
  }
  return element(
    "span",
    { class: "value", title: oneLine(String(value), 400) },
    spelt(typeof value === "number" ? String(value) : String(value).slice(0, 2000)),
  );
}

const MOST_ITEMS = 40;

function listElement(values) {
  if (values.every((value) => typeof value !== "object" || value === null)) {
    return element(
      "span",
      { class: "value" },
      spelt(values.slice(0, MOST_ITEMS).map(figure).join(" ")),
      values.length > MOST_ITEMS ? ` … ${values.length} in all` : "",
    );
  }
  const host = element("ol", { start: 0 });
  const show = (from) => {
    values.slice(from, from + MOST_ITEMS).forEach((value) => host.append(element("li", {}, valueElement(value))));
    if (from + MOST_ITEMS >= values.length) return;
    const more = button(`show more of ${values.length}`, () => {
      more.remove();
      show(from + MOST_ITEMS);
    });
    host.append(more);
  };
  show(0);
  return host;
}
