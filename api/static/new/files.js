// The files that a user chooses for a workload: each with its path, without what no workload needs.

/** @typedef {{path: string, file: Blob & {size: number}}} Chosen */

const SKIPPED = new Set(["__pycache__", "node_modules", "venv"]); // as `scamp submit --working-dir` does

/**
 * Files that were chosen one by one, each under its name, and those of a folder under their paths inside of it. A later
 * one replaces an earlier one with the same path.
 * @param {Iterable<File>} single
 * @param {Iterable<File>} inFolder
 * @returns {Chosen[]} by path
 */
export function chosenFiles(single, inFolder) {
  /** @type {Map<string, File>} */
  const files = new Map();
  for (const file of inFolder) {
    const path = file.webkitRelativePath.split("/").slice(1).join("/");
    if (isWanted(path)) files.set(path, file);
  }
  for (const file of single) files.set(file.name, file);
  return [...files].map(([path, file]) => ({ path, file })).sort((a, b) => (a.path < b.path ? -1 : 1));
}

/**
 * @param {string} path
 * @returns {boolean}
 */
function isWanted(path) {
  const parts = path.split("/");
  return !path.endsWith(".pyc") && parts.every((part) => !part.startsWith(".") && !SKIPPED.has(part));
}
