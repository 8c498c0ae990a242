/** What the pictures of tokens and of candidates share. */

/** The kind of a token decides its colour. */
export function kindOf({ special, segment, side }) {
  if (special) return "special";
  return (side ?? segment) ? "second" : "first";
}

/** A candidate of /fill-mask without the marks of its vocabulary: "##ing" and " the". */
export function plain(word) {
  return word.replace(/^##/, "").trim() || word;
}

/** Whether the candidate is the word. */
export function isWord({ token_str: candidate }, word) {
  return plain(candidate).toLowerCase() === word.toLowerCase();
}

export const RANKS = 200; // candidates among which the rank of a word is looked for
