// The server's addresses as calls. Owns the user id and the ticket of this page. Called by app.js.

const query = new URLSearchParams(location.search);

/** A ticket names its user before its last three fields; without one, any name that nobody else has will do. */
const ticket = query.get("ticket") ?? "";
export const user = ticket ? ticket.split(".").slice(0, -3).join(".") : `web-${randomHex(8)}`;

/** An answer that is not a success: its status, and words for people. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function randomHex(bytes) {
  return [...crypto.getRandomValues(new Uint8Array(bytes))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

function address(path, search = {}) {
  const url = new URL(path, document.baseURI);
  for (const [key, value] of Object.entries(search)) if (value) url.searchParams.set(key, value);
  return url;
}

async function answerOf(response) {
  if (response.ok) return response.json();
  const body = await response.text();
  let detail = body;
  if (response.headers.get("content-type")?.includes("json")) {
    detail = JSON.parse(body).detail ?? body;
    if (Array.isArray(detail)) detail = detail.map((entry) => entry.msg ?? JSON.stringify(entry)).join("; ");
  }
  throw new Refusal(response.status, String(detail) || `status ${response.status}`);
}

/** Gives the server a start picture. @returns {Promise<{profile: {controls: string[]}}>} */
export async function sendPicture(blob, name, signal) {
  const form = new FormData();
  form.set("z0_image", blob, name);
  if (ticket) form.set("ticket", ticket);
  return answerOf(await fetch(address(`z0/${user}`), { method: "POST", body: form, signal }));
}

/** Reserves a place. */
export async function reserve(signal) {
  return answerOf(await fetch(address(`create-game/${user}`, { ticket }), { signal }));
}

/**
 * What the active model answers to, or null when no model is active.
 * @returns {Promise<{controls: string[]} | null>}
 */
export async function activeProfile() {
  const { active_model_id: active, details } = await answerOf(await fetch(address("models")));
  return details[active]?.profile ?? null;
}

/** Address of the game's socket. */
export function socketUrl() {
  const url = address(`ws/${user}`, { ticket });
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

export const autoplay = query.get("autoplay");
