// A value that must be there by now: the types say that it may be missing, the order of the calls that it is not.

/**
 * The value itself. Throws if it is missing, which is an error of our own: something was used before it had come.
 * @template Value
 * @param {Value | null | undefined} value
 * @returns {Value}
 */
export function required(value) {
  if (value === null || value === undefined) throw new Error("a value is used before it has come");
  return value;
}
