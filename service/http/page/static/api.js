/** Requests to the service, with the key, which is in this module's memory and nowhere else. */

let key = "";

/**
 * @typedef {object} Answer
 * @property {any} value the parsed body
 * @property {string} text the body
 * @property {[string, number][]} stages name and milliseconds, of server-timing
 * @property {number} milliseconds from the request to the last byte of the body, as the browser sees it
 */

/** A response without 200, or none at all (status 0). */
export class RequestError extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {string} requestId */
  constructor(status, code, message, requestId = "", retryAfter = "") {
    super(message);
    Object.assign(this, { status, code, requestId, retryAfter });
  }
}

/** @param {string} value the key that requests send from now on */
export function setKey(value) {
  key = value;
}

/** Whether the service requires a key: it says so in its HTML. */
export function isKeyRequired() {
  return document.documentElement.dataset.key === "required";
}

/** The address of a route: beside the page, which a proxy may serve below a path of its own. */
export function addressOf(path) {
  return new URL(path.replace(/^\//, ""), document.baseURI.replace(/#.*$/, "")).href;
}

/**
 * @param {string} path @param {any} body @param {AbortSignal} [signal]
 * @returns {Promise<Answer>}
 */
export function post(path, body, signal) {
  return send(path, { method: "POST", body: JSON.stringify(body), signal });
}

/** @returns {Promise<Answer>} */
export function get(path) {
  return send(path, { method: "GET", cache: "no-store" });
}

async function send(path, request) {
  const headers = { accept: "application/json, text/plain" };
  if (request.body !== undefined) headers["content-type"] = "application/json";
  if (key && request.method === "POST") headers.authorization = `Bearer ${key}`;
  const started = performance.now();
  let response, text;
  try {
    response = await fetch(addressOf(path), { ...request, headers });
    text = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, "unreachable", String(error.message));
  }
  const milliseconds = performance.now() - started;
  const isJson = (response.headers.get("content-type") ?? "").startsWith("application/json");
  const value = isJson ? JSON.parse(text) : text;
  if (!response.ok) throw errorOf(response, value);
  return { value, text, stages: parseTiming(response.headers.get("server-timing") ?? ""), milliseconds };
}

/** The error of a response. /score nests its message and code, as vLLM does. */
function errorOf(response, value) {
  const { error: stated, request_id: id = "", ...more } = typeof value === "object" ? value : {};
  const { message = response.statusText, code = "" } = typeof stated === "object" ? stated : { ...more, message: stated };
  return new RequestError(response.status, code, message, id, response.headers.get("retry-after") ?? "");
}

/** @param {string} header such as `queue;dur=0.1, forward;dur=2` @returns {[string, number][]} */
export function parseTiming(header) {
  const found = header.matchAll(/([\w-]+)\s*;\s*dur=([\d.]+)/g);
  return Array.from(found, ([, name, duration]) => [name, Number(duration)]);
}
