// The server's addresses as calls. Owns the user id and the ticket of this page. Called by app.js.

import { eventsOf } from "./events.js";

const query = new URLSearchParams(location.search);
const GONE = 404;
const PARTIALS = 4; // pictures on the way

/** A ticket names its user before its last three fields; without one, any name that nobody else has will do. */
const ticket = query.get("ticket") ?? "";
export const user = ticket ? ticket.split(".").slice(0, -3).join(".") : `web-${randomHex(8)}`;

/** An answer that is not a success: its status (0: it broke off half-way), and words for people. */
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
    const answer = JSON.parse(body);
    detail = answer.error?.message ?? answer.detail ?? body;
    if (Array.isArray(detail)) detail = detail.map((entry) => entry.msg ?? JSON.stringify(entry)).join("; ");
  }
  throw new Refusal(response.status, String(detail) || `status ${response.status}`);
}

/**
 * Gives the server a start picture and the choices of its game.
 * @param {import("./pictures.js").Picture} picture
 * @param {Record<string, string>} choices form fields beside the picture
 * @returns {Promise<{model_id: string, profile: {controls: string[]}, nfe: object, sphere: object, reprefill: object,
 *   focus: object}>}
 */
export async function sendPicture(picture, choices, signal) {
  const send = async (...source) => {
    const form = new FormData();
    form.set(...source);
    for (const [field, value] of Object.entries(choices)) form.set(field, value);
    if (ticket) form.set("ticket", ticket);
    return answerOf(await fetch(address(`z0/${user}`), { method: "POST", body: form, signal }));
  };
  if (picture.id) {
    try {
      return await send("picture_id", picture.id);
    } catch (error) {
      if (error.status !== GONE) throw error; // the server keeps it for a while; its file is still here
    }
  }
  return send("z0_image", await picture.load(), picture.name);
}

/**
 * Has the server draw a picture. Aborting hangs up, which ends the drawing.
 * @param {import("./prompt.js").Order} order
 * @param {(news: object) => void} tell called with every event on the way
 * @returns {Promise<object>} the event that says that it is done
 */
export async function draw(order, tell, signal) {
  const body = JSON.stringify({ ...order, output_format: "png", stream: true, partial_images: PARTIALS });
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(address("v1/images/generations"), { method: "POST", headers, body, signal });
  if (!response.ok) return answerOf(response);
  for await (const event of eventsOf(response.body)) {
    if (event.error) throw new Refusal(0, event.error.message);
    if (event.type.endsWith(".completed")) return event;
    tell(event);
  }
  throw new Refusal(0, "The server broke off before the picture was done.");
}

/** What this page offers beside start pictures: the answer of `GET /page`. */
export async function page() {
  return answerOf(await fetch(address("page")));
}

/** Reserves a place. */
export async function reserve(signal) {
  return answerOf(await fetch(address(`create-game/${user}`, { ticket }), { signal }));
}

/** What can be served and what is: the answer of `GET /models`. */
export async function models() {
  return answerOf(await fetch(address("models")));
}

/** Address of the game's socket; with a token, of the game that a broken connection left. */
export function socketUrl(token) {
  const url = address(`ws/${user}`, { ticket, resume: token });
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url.href;
}

export const autoplay = query.get("autoplay");
