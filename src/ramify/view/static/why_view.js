// Why view: the decisions that made and ended a node, with the scores that each candidate had then.

import { button, element, put, spelt } from "./dom.js";
import { fieldsOf } from "./fields_view.js";
import { figure } from "./numbers.js";
import { childrenOf } from "./tree_model.js";

/** Show why `node` is there. */
export async function showWhy(host, tree, node, app) {
  const { document: known, model } = tree;
  if (!known.events.length)
    return put(host, element("p", { class: "muted" }, "Nothing is known of the decisions that grew this tree."));
  const decisions = decisionsAbout(known, node);
  const { strategy } = await app.run(app.state.run);
  return put(
    host,
    forkElement(known, node, app),
    decisions.length
      ? null
      : element(
          "p",
          { class: "muted" },
          node === 0 ? "The root is the problem; nobody chose it." : "No command names this node.",
        ),
    decisions.map((decision) => decisionElement(tree, decision, app)),
    element(
      "p",
      { class: "muted" },
      `children: ${childrenOf(model, node).length}; events of the tree: ${known.events.length}`,
    ),
    fieldsOf("the strategy and its options, as configured or planned", strategy),
  );
}

/** The commands that grew, judged or closed a node, in the order of their events. */
export function decisionsAbout(known, node) {
  const commands = commandsOf(known);
  const found = [];
  known.events.forEach((event, number) => {
    if (event.told !== undefined && event.nodes.includes(node))
      found.push({ what: "grew it", ...commands.get(event.told), told: number });
    for (const [place, command] of (event.commands ?? []).entries()) {
      const names =
        command.command === "judge"
          ? command.nodes.includes(node)
          : command.command === "close" && command.node === node;
      if (names)
        found.push({
          what: command.command === "judge" ? "judged it" : "ended it",
          ...commands.get(event.asked + place),
        });
    }
  });
  return found;
}

/** Command id -> {id, command, asked: number of the event that asked it, outcome}. */
function commandsOf(known) {
  const commands = new Map();
  known.events.forEach((event, number) => {
    (event.commands ?? []).forEach((command, place) => {
      const siblings = event.commands;
      // The first of several siblings carries the candidates of all.
      const from = siblings
        .slice(0, place + 1)
        .reverse()
        .find((each) => each.why?.length && each.node === command.node);
      commands.set(event.asked + place, {
        id: event.asked + place,
        command,
        asked: number,
        why: command.why ?? from?.why ?? [],
      });
    });
    if (event.told !== undefined) Object.assign(commands.get(event.told) ?? {}, { outcome: event });
  });
  return commands;
}

function decisionElement(tree, decision, app) {
  const { document: known } = tree;
  const { command, outcome } = decision;
  const details = Object.entries(command).filter(
    ([name, value]) => !["command", "why", "fork"].includes(name) && value !== null,
  );
  return element(
    "section",
    { class: "decision" },
    element("h3", {}, `command ${decision.id} ${decision.what}`),
    element(
      "p",
      {},
      `${command.command} `,
      spelt(details.map(([name, value]) => `${name} ${JSON.stringify(value)}`).join(", ")),
    ),
    outcome
      ? element("p", {}, `outcome: ${outcome.ending}${outcome.reason ? `, ${outcome.reason}` : ""}`)
      : element("p", {}, "in flight"),
    element("p", { class: "muted" }, budgetThen(known, decision.asked)),
    optionsTable(tree, decision, app),
    button(`show the tree before this decision (event ${decision.asked})`, () =>
      app.go({ time: Math.max(0, decision.asked - 1) }),
    ),
  );
}

/** The candidates of a decision, the best first, term by term. */
function optionsTable(tree, decision, app) {
  if (!decision.why.length)
    return element("p", { class: "muted" }, "The strategy weighed no candidates here: its rule alone decides.");
  const terms = [...new Set(decision.why.flatMap((option) => (option.terms ?? []).map(([name]) => name)))];
  const chosen = decision.command.node ?? decision.command.nodes?.[0];
  const options = [...decision.why].sort((one, other) => other.score - one.score);
  return element(
    "table",
    { class: "options" },
    element("caption", {}, "candidates, with their scores then"),
    element(
      "thead",
      {},
      element(
        "tr",
        {},
        ["node", "score", ...terms].map((name) => element("th", { scope: "col" }, spelt(name))),
      ),
    ),
    element(
      "tbody",
      {},
      options.map((option) =>
        element(
          "tr",
          { class: option.node === chosen ? "chosen" : "" },
          element(
            "td",
            {},
            button(`${option.node}${option.node === chosen ? " chosen" : ""}`, () => app.go({ node: option.node }), {
              class: "link",
            }),
          ),
          element("td", { title: String(option.score) }, figure(option.score)),
          terms.map((name) => {
            const term = (option.terms ?? []).find(([each]) => each === name);
            return element("td", { title: term ? String(term[1]) : "" }, figure(term?.[1]));
          }),
        ),
      ),
    ),
  );
}

/** What the tree had sampled when event `number` came, and what its limits left. */
export function budgetThen(known, number) {
  const { born, billed } = known.nodes;
  const spent = billed.reduce((total, tokens, node) => total + (born[node] < number ? tokens : 0), 0);
  const limit = known.limits.decode;
  return `${figure(spent)} tokens sampled until then${limit ? `, ${figure(Math.max(0, limit - spent))} of ${figure(limit)} left` : ""}`;
}

function forkElement(known, node, app) {
  const fork = known.forks[known.nodes.fork[node]];
  if (!fork) return null;
  const share = fork.shares[known.nodes.index[node]] ?? fork.shares[0];
  const facts = {
    rule: fork.rule,
    "planned children": fork.num_siblings,
    "share of this one": share,
    "at token": fork.position,
    probability: fork.probability === null ? "1, no draw" : fork.probability,
    score: fork.score,
    "probability of the place": fork.select_prob,
    "after the continuation was sampled": fork.is_post_hoc,
  };
  return element(
    "section",
    { class: "decision" },
    element(
      "h3",
      {},
      `decision ${fork.decision_id} planned it, at `,
      button(`node ${fork.node}`, () => app.go({ node: fork.node }), { class: "link" }),
    ),
    element(
      "dl",
      {},
      Object.entries(facts)
        .filter(([, value]) => value !== null)
        .map(([name, value]) => [element("dt", {}, name), element("dd", {}, spelt(figure(value)))]),
    ),
  );
}
