/**
 * The closed forms of pilotfish.accounting, for one context; tests compare them number by number.
 *
 * a is how likely a draft token is accepted once those before it are, k the number of draft tokens
 * in a round. Costs are in steps of the target, what plain decoding takes for a token.
 */

const BISECTIONS = 60;
const BYTES_PER_LOGIT = 4;

/** What passes cost by their width, as measured; straight lines between, and beyond the widest. */
export class CostCurve {
  constructor(widths, ratios) {
    this.widths = widths;
    this.ratios = ratios;
  }

  static flat() {
    return new CostCurve([1, 64], [1, 1]);
  }

  get widest() {
    return this.widths.at(-1);
  }

  at(width) {
    const { widths, ratios, widest } = this;
    if (widths.length === 1) return ratios[0];
    if (width <= widest) return between(widths, ratios, width);
    const last = (ratios.at(-1) - ratios.at(-2)) / (widest - widths.at(-2));
    const mean = (ratios.at(-1) - ratios[0]) / (widest - 1);
    return ratios.at(-1) + Math.max(last, mean, 0) * (width - widest);
  }
}

function between(places, values, place) {
  const after = places.findIndex((each) => each > place);
  const upper = after < 0 ? places.length - 1 : Math.max(1, after);
  const [left, right] = [places[upper - 1], places[upper]];
  const share = (place - left) / (right - left);
  return values[upper - 1] + share * (values[upper] - values[upper - 1]);
}

/** Return T(k + 1) + k D; a step without a draft. */
export function roundSteps(curve, draftCost, length) {
  return length === 0 ? curve.at(1) : curve.at(length + 1) + length * draftCost;
}

/** Return E = 1 + a + ... + a**k. */
export function tokensPerRound(acceptance, length) {
  let [tokens, reached] = [1, 1];
  for (let i = 0; i < length; i += 1) {
    reached *= acceptance;
    tokens += reached;
  }
  return tokens;
}

/** Return the time of plain decoding over that with drafts. */
export function speedup(acceptance, length, curve, draftCost) {
  return (tokensPerRound(acceptance, length) / roundSteps(curve, draftCost, length)) * curve.at(1);
}

/** Return the number of draft tokens with the highest speedup, the smallest among equals. */
export function bestLength(acceptance, curve, draftCost, maxLength) {
  let best = 0;
  for (let length = 1; length <= maxLength; length += 1) {
    if (speedup(acceptance, length, curve, draftCost) > speedup(acceptance, best, curve, draftCost)) best = length;
  }
  return best;
}

/** Return the acceptance at which drafts neither save nor cost time; null where none does. */
export function breakEven(length, curve, draftCost) {
  const needed = roundSteps(curve, draftCost, length) / curve.at(1);
  if (length === 0 || needed > length + 1) return null;
  if (needed <= 1) return 0;
  let [low, high] = [0, 1];
  for (let i = 0; i < BISECTIONS; i += 1) {
    const middle = (low + high) / 2;
    if (tokensPerRound(middle, length) < needed) low = middle;
    else high = middle;
  }
  return high;
}

/**
 * Return the three costs of decoding with `length` draft tokens a round; 0 is plain.
 *
 * machine: {curve, draftCost, stepSeconds, context, target, draft, pricePerHour}, where what is null
 * is unknown, and target and draft are sizes as the server gives them.
 */
export function predictedCosts(acceptance, length, machine) {
  const { curve, draftCost, stepSeconds, context, pricePerHour } = machine;
  const draft = length ? machine.draft : null;
  const byModel = draftCost > 0 || draft !== null;
  const draftPasses = byModel ? length : 0;
  // a draft model of unknown size makes the sums unknown, not smaller
  const target = draft === null && draftPasses ? null : machine.target;
  const tokens = tokensPerRound(acceptance, length);
  const steps = roundSteps(curve, draftCost, length);
  const rows = length + 1;
  const roundSeconds = stepSeconds === null ? null : steps * stepSeconds;
  const speed = roundSeconds === null ? null : tokens / roundSeconds;
  const sums = target === null ? null : passSums({ target, draft, rows, draftPasses, context });
  return {
    latency: {
      seconds_per_token: roundSeconds === null ? null : roundSeconds / tokens,
      speedup: curve.at(1) / (steps / tokens),
    },
    compute: {
      target_passes_per_token: 1 / tokens,
      verified_rows_per_token: rows / tokens,
      wasted_rows_per_token: (rows - tokens) / tokens,
      draft_passes_per_token: draftPasses / tokens,
      flops_per_token: sums && sums.flops / tokens,
      bytes_read_per_token: sums && sums.bytes / tokens,
    },
    serving: {
      memory_bytes: target && held(target, rows, context) + (draft ? held(draft, 1, context) : 0),
      tokens_per_second: speed,
      price_per_million_tokens: pricePerHour === null || speed === null ? null : (pricePerHour / 3600 / speed) * 1e6,
    },
  };
}

function passSums({ target, draft, rows, draftPasses, context }) {
  let flops = flopsOf(target, rows, rows * context);
  let bytes = bytesOf(target, 1, context);
  if (draft) {
    flops += flopsOf(draft, draftPasses, draftPasses * context);
    bytes += bytesOf(draft, draftPasses, draftPasses * context);
  }
  return { flops, bytes };
}

function flopsOf(size, rows, attendedTokens) {
  return 2 * size.parameters * rows + size.attention_flops_per_token * attendedTokens;
}

function bytesOf(size, passes, contextTokens) {
  return size.step_bytes * passes + size.cache_bytes_per_token * contextTokens;
}

function held(size, rows, context) {
  return size.weight_bytes + size.cache_bytes_per_token * context + BYTES_PER_LOGIT * size.vocabulary * rows;
}
