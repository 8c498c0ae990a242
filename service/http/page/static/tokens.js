/** What the pictures of tokens share. */

/** The kind of a token decides its colour. */
export function kindOf({ special, segment, side }) {
  if (special) return "special";
  return (side ?? segment) ? "second" : "first";
}
