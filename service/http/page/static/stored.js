/** The choices of this page that the browser keeps; if it keeps nothing, a choice lasts as long as the page. */

/** The value that is kept under a name; null if it is none of `known`. @param {string} name @param {string[]} known */
export function recall(name, known) {
  try {
    const value = localStorage.getItem(name);
    return known.includes(value) ? value : null;
  } catch {
    return null;
  }
}

/** @param {string} name @param {string} value */
export function keep(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // as above
  }
}
