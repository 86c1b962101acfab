/** Figures as text. What was not measured is a dash. */

export const UNKNOWN = "-";

export function number(value, digits = 2) {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  // what rounds to nothing has no sign
  const shown = Math.abs(value) < 0.5 / 10 ** digits ? 0 : value;
  return shown.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

export function percent(share) {
  return share === null || share === undefined ? UNKNOWN : `${number(100 * share, 0)} %`;
}

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return value < 1 ? `${number(1000 * value, 0)} ms` : `${number(value, 2)} s`;
}

export function times(ratio) {
  return ratio === null || ratio === undefined ? UNKNOWN : `${number(ratio, 2)}x`;
}

export function count(amount, thing) {
  return `${number(amount, 0)} ${thing}${amount === 1 ? "" : "s"}`;
}

/** Return a number with three digits that matter and the prefix of its size. */
export function large(value, unit) {
  if (value === null || value === undefined) return UNKNOWN;
  const sizes = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, prefix] = sizes.find(([least]) => value >= least) ?? [1, ""];
  return `${(value / size).toPrecision(3)} ${prefix}${unit}`;
}
