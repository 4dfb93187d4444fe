// Numbers: how figures are written, and the intervals that are computed on the page.

/** A number for people: at most four significant digits; "–" = not computed. */
export function figure(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(3) : String(Number(value.toPrecision(4)));
}

/** A duration for people. @param {number | null} value seconds */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1e-3) return `${figure(value * 1e6)} µs`;
  return value < 1 ? `${figure(value * 1e3)} ms` : `${figure(value)} s`;
}

export function percent(share) {
  return share === null || share === undefined ? "–" : `${Number((100 * share).toPrecision(3))}%`;
}

/**
 * The mean difference of two lists of shares from 0 to 1, paired, with its 95 % interval: Bonett and Price (Statistics
 * in Medicine 31, 2012), as in `ramify compare`.
 * @returns {{value: number, low: number, high: number}}
 */
export function pairedDifference(values, baseline) {
  const differences = values.map((value, place) => value - baseline[place]);
  const sum = differences.reduce((total, each) => total + each, 0);
  const squares = differences.reduce((total, each) => total + each * each, 0);
  const number = differences.length + 2;
  const middle = sum / number;
  const half = student975(number - 1) * Math.sqrt(((squares + 2) / number - middle ** 2) / number);
  const value = differences.length ? sum / differences.length : 0;
  return { value, low: Math.max(-1, middle - half), high: Math.min(1, middle + half) };
}

/** The 97.5 % quantile of Student's t (Abramowitz and Stegun, 26.7.5). */
function student975(freedom) {
  const z = 1.959963984540054;
  const v = freedom;
  return (
    z +
    (z ** 3 + z) / (4 * v) +
    (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * v ** 2) +
    (3 * z ** 7 + 19 * z ** 5 + 17 * z ** 3 - 15 * z) / (384 * v ** 3)
  );
}
