/** Cosines and principal components of a few vectors. */

/** @param {number[]} a @param {number[]} b */
export function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i += 1) sum += a[i] * b[i];
  return sum;
}

/** @param {number[]} a @param {number[]} b @returns {number} 0 where one of them is zero */
export function cosine(a, b) {
  const length = Math.sqrt(dot(a, a) * dot(b, b));
  return length > 0 ? dot(a, b) / length : 0;
}

/**
 * The coordinates of each vector on the first two principal components, and the share of the variance that each
 * explains. Of n vectors: the eigenvectors of their n x n Gram matrix, so the cost does not grow with the square of
 * the vectors' length. A component's sign is that which makes its largest coordinate positive.
 *
 * @param {number[][]} vectors
 * @returns {{points: [number, number][], shares: [number, number]}}
 */
export function project(vectors) {
  const means = vectors[0].map((_, i) => vectors.reduce((sum, one) => sum + one[i], 0) / vectors.length);
  const centred = vectors.map((one) => one.map((value, i) => value - means[i]));
  const gram = centred.map((a) => centred.map((b) => dot(a, b)));
  const variance = gram.reduce((sum, row, i) => sum + row[i], 0) || 1;
  const [first, second] = [takeComponent(gram, variance), takeComponent(gram, variance)];
  return {
    points: vectors.map((_, i) => [first.coordinates[i], second.coordinates[i]]),
    shares: [first.value / variance, second.value / variance],
  };
}

const ITERATIONS = 1000;
const PRECISION = 1e-12;

/** The largest eigenvalue by power iteration; its part is then taken from the matrix. */
function takeComponent(matrix, variance) {
  let vector = normalize(matrix.map((_, i) => Math.cos(1 + i * i)));
  for (let i = 0; i < ITERATIONS; i += 1) {
    const next = normalize(matrix.map((row) => dot(row, vector)));
    const change = Math.abs(1 - Math.abs(dot(next, vector)));
    vector = next;
    if (change < PRECISION) break;
  }
  const value = Math.max(0, dot(vector, matrix.map((row) => dot(row, vector))));
  if (value < 1e-9 * variance) return { value: 0, coordinates: vector.map(() => 0) };
  matrix.forEach((row, i) => row.forEach((_, j) => (row[j] -= value * vector[i] * vector[j])));
  const largest = vector.reduce((most, one) => (Math.abs(one) > Math.abs(most) ? one : most), 0);
  return { value, coordinates: vector.map((one) => Math.sign(largest) * one * Math.sqrt(value)) };
}

function normalize(vector) {
  const length = Math.sqrt(dot(vector, vector)) || 1;
  return vector.map((one) => one / length);
}
