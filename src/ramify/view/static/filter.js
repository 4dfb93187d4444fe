// Filter: a condition over the columns of a table, such as `reward<0.3 and tool=="python" and tokens>200`.
//
// The grammar is that of `ramify show --where`: comparisons (== != < <= > >= in) of columns with numbers and texts, joined
// by and, or, not and parentheses. Nothing is executed. A column without a value fulfils no comparison but == None and !=.

const TOKEN =
  /\s*(?:(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|([A-Za-z_]\w*)|(==|!=|<=|>=|<|>|\(|\)|-))/y;
const SIGNS = ["==", "!=", "<", "<=", ">", ">=", "in"];

/**
 * A function of a row (a function column -> value) that says whether the condition holds. Throws an Error that says what
 * is wrong and what is allowed.
 * @param {string} text @param {string[]} columns
 */
export function condition(text, columns) {
  const tokens = tokensIn(text);
  let at = 0;
  const peek = () => tokens[at];
  const take = (...wanted) =>
    peek() && peek().kind !== "text" && wanted.includes(peek().value) ? tokens[at++].value : null;

  function either() {
    const tests = [both()];
    while (take("or")) tests.push(both());
    return (row) => tests.some((test) => test(row));
  }
  function both() {
    const tests = [single()];
    while (take("and")) tests.push(single());
    return (row) => tests.every((test) => test(row));
  }
  function single() {
    if (take("not")) {
      const test = single();
      return (row) => !test(row);
    }
    if (take("(")) {
      const test = either();
      if (!take(")")) throw new Error("a ) is missing");
      return test;
    }
    return comparison();
  }
  function comparison() {
    const left = operand();
    const sign = take(...SIGNS);
    if (!sign) throw new Error(`a comparison is missing behind ${left.said}: ${SIGNS.join(" ")}`);
    const right = operand();
    return (row) => compared(left.of(row), sign, right.of(row));
  }
  function operand() {
    const sign = take("-") ? -1 : 1;
    const token = tokens[at++];
    if (!token) throw new Error("it ends too early");
    if (token.kind === "number") return { said: token.value, of: () => sign * Number(token.value) };
    if (token.kind === "text") return { said: token.value, of: () => token.value };
    if (token.value === "None") return { said: "None", of: () => null };
    if (token.kind === "name" && columns.includes(token.value))
      return { said: token.value, of: (row) => row(token.value) };
    throw new Error(`there is no column ${token.value}; columns: ${columns.join(", ")}`);
  }
  const test = either();
  if (at < tokens.length) throw new Error(`${tokens[at].value} is not understood; join comparisons by and, or`);
  return test;
}

function tokensIn(text) {
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.trimEnd().length) {
    const at = TOKEN.lastIndex;
    const found = TOKEN.exec(text);
    if (!found) throw new Error(`${text.slice(at, at + 12)} is not understood; write reward<0.3 and tool=="python"`);
    if (found[1]) tokens.push({ kind: "number", value: found[1] });
    else if (found[2]) tokens.push({ kind: "text", value: found[2].slice(1, -1).replace(/\\(.)/g, "$1") });
    else tokens.push({ kind: found[3] ? "name" : "sign", value: found[3] ?? found[4] });
  }
  return tokens;
}

function compared(left, sign, right) {
  if (sign === "in") return right !== null && left !== null && right.includes(left);
  if (Array.isArray(left) || Array.isArray(right)) {
    const [words, word] = Array.isArray(left) ? [left, right] : [right, left];
    const holds = word === null ? words.length === 0 : words.includes(word);
    return sign === "==" ? holds : !holds;
  }
  if (sign === "==") return left === right;
  if (sign === "!=") return left !== right;
  if (left === null || right === null || typeof left !== typeof right) return false;
  return { "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right }[sign];
}
