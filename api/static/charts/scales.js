// Ranges and ticks of axes.

/**
 * [least, largest] of some numbers; of thousands, too.
 * @param {Iterable<number>} values
 * @returns {[number, number]}
 */
export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/**
 * [low, high] with a `share` of their distance added at both ends; [0, 1] without values.
 * @param {number} low
 * @param {number} high
 * @param {number} [share]
 * @returns {[number, number]}
 */
export function padded(low, high, share = 0.06) {
  if (!Number.isFinite(low)) return [0, 1];
  const pad = high > low ? (high - low) * share : Math.abs(high) * 0.1 || 1;
  return [low - pad, high + pad];
}

/**
 * 1, 2 and 5 times powers of ten from `low` to `high`; only powers if that would be more than nine.
 * @param {number} low above 0
 * @param {number} high
 * @returns {number[]}
 */
export function oneTwoFive(low, high) {
  /** @type {number[]} */
  const powers = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1)
    powers.push(Number(`1e${power}`));
  /** @type {(values: number[]) => number[]} */
  const inside = (values) => values.filter((value) => value >= low && value <= high);
  const all = inside(powers.flatMap((power) => [power, 2 * power, 5 * power]));
  return all.length > 9 ? inside(powers) : all;
}

/**
 * 1, 2 or 5 times a power of ten, so that at most `most` ticks fit.
 * @param {number} whole length of the axis
 * @param {number} most
 * @returns {number}
 */
export function tickSize(whole, most) {
  const least = whole / most;
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find((times) => power * times >= least * (1 - 1e-9)) ?? 10);
}
