// One running world: its socket, its decoder, its canvas. Survives a broken connection: the next socket takes the
// same world up again. Owns no page state, no words, and not when to try. Called by app.js.

import { codecOf } from "./h264.js";

const KEY_UNIT = 0x01;
const STEP_US = 1000; // timestamps only number the pictures; the server paces them
const MAX_DECODER_FAULTS = 3;
const BROKEN = 1006; // the browser's own code: no close frame came

/**
 * @typedef {object} PlayerEvents
 * @property {(hello: object, resumed: boolean) => void} hello   size, rate, limit and profile of the game
 * @property {(picture: {index: number, width: number, height: number}) => void} picture  just drawn
 * @property {(milliseconds: number) => void} latency  from a key's message to its first picture on the canvas
 * @property {(message: {code: string, message: string}) => void} error   the server refused one message
 * @property {(message: {message: string, limit_s: number}) => void} over   the session's time is up
 * @property {() => void} broken   the connection broke; the server keeps the world for `withinS`
 * @property {() => void} missed   `comeBack` did not reach the server
 * @property {(why: {code: number, reason: string, refused: boolean}) => void} closed   for good, at most once;
 *   `refused`: the server no longer has the world that `comeBack` asked for
 */

export class Player {
  /**
   * @param {(token: string | null) => string} urlOf address of a new game's socket, or of one that goes on
   * @param {HTMLCanvasElement} canvas takes the size of the video
   * @param {PlayerEvents} events
   */
  constructor(urlOf, canvas, events) {
    this.urlOf = urlOf;
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.events = events;
    this.decoder = null;
    this.faults = 0;
    this.shown = 0;
    this.seq = 0;
    this.ended = false;
    this.away = false; // the connection broke and no new one is greeted yet
    this.pass = null; // {token, within_s} of the last hello
    this.left = []; // sockets given up without a close frame, which would end the world
    this.#connect(null);
  }

  /** Seconds that the server keeps this world after a break; 0 when it does not. */
  get withinS() {
    return this.pass?.within_s ?? 0;
  }

  /** Milliseconds without a message. */
  get silentMs() {
    return performance.now() - this.heardAt;
  }

  /** Starts the count of silence again: a page that was frozen heard nothing. */
  forgiveSilence() {
    this.heardAt = performance.now();
  }

  /** Sends what is held, and `rates`. A repeat keeps the number of the change that it repeats. */
  sendKeys(pressed, rates, changed) {
    if (this.away || this.socket.readyState !== WebSocket.OPEN) return;
    if (changed) {
      this.seq += 1;
      this.sentAt.set(this.seq, performance.now());
    }
    this.sendText(JSON.stringify({ type: "keys", pressed, ...rates, seq: this.seq }));
  }

  /** Asks for the world of `seconds` ago. */
  rewind(seconds) {
    if (!this.away && this.socket.readyState === WebSocket.OPEN) this.sendText(JSON.stringify({ type: "rewind", seconds }));
  }

  sendText(text) {
    this.socket.send(text);
  }

  /** Gives up a connection that brings nothing any more. Does nothing where the server would not keep the world. */
  breakOff() {
    if (this.ended || this.away || this.withinS === 0) return;
    this.socket.onmessage = this.socket.onclose = null;
    this.left.push(this.socket);
    this.#broke();
  }

  /** Asks for the same world on a new connection. Then comes `hello`, `missed` or `closed`. */
  comeBack() {
    if (this.ended || !this.away) return;
    // Closing a socket that never opened sends nothing; one that did must stay, as a close frame ends the world.
    if (this.socket.readyState === WebSocket.CONNECTING) this.socket.close();
    else this.left.push(this.socket);
    this.#connect(this.pass.token);
  }

  /** Leaves. `closed` is not called for a leave of one's own. */
  close() {
    this.ended = true;
    this.#closeAll("left");
  }

  #connect(token) {
    const socket = new WebSocket(this.urlOf(token));
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => {
      if (this.ended || socket !== this.socket) return;
      this.heardAt = performance.now();
      if (typeof data === "string") this.#text(data);
      else this.#unit(data);
    };
    socket.onclose = ({ code, reason }) => {
      if (!this.ended && socket === this.socket) this.#gone(code, reason);
    };
    this.socket = socket;
    this.heardAt = performance.now();
    this.waitsForKey = true;
    this.received = 0;
    this.sentAt = new Map(); // seq of a changed state -> when it was sent
    this.awaited = []; // acknowledged changes whose first picture is not drawn yet
  }

  #gone(code, reason) {
    if (this.away && code === BROKEN) this.events.missed();
    else if (code === BROKEN && this.withinS > 0) this.#broke();
    else this.#end({ code, reason, refused: this.away });
  }

  #broke() {
    this.away = true;
    this.#dropDecoder();
    this.events.broken();
  }

  #end(why) {
    this.ended = true;
    this.#closeAll("over");
    this.events.closed(why);
  }

  #closeAll(reason) {
    for (const socket of [this.socket, ...this.left]) socket.close(1000, reason);
    this.left = [];
    this.#dropDecoder();
  }

  #text(data) {
    const message = JSON.parse(data);
    if (message.type === "hello") this.#greeted(message);
    else if (message.type === "ack") this.#acknowledged(message);
    else if (message.type === "error") this.events.error(message);
    else if (message.type === "session_over") this.events.over(message);
  }

  #greeted(hello) {
    const resumed = this.away;
    this.away = false;
    this.pass = hello.resume ?? null;
    for (const socket of this.left) socket.close(1000, "taken up elsewhere");
    this.left = [];
    this.events.hello(hello, resumed);
  }

  #acknowledged({ seq, frame }) {
    // Changes made before the acknowledged one never reached a picture of their own.
    let at = null;
    for (const [known, time] of this.sentAt) {
      if (known > seq) break;
      this.sentAt.delete(known);
      at = time;
    }
    if (at !== null) this.awaited.push({ frame, at });
  }

  #unit(buffer) {
    const key = new Uint8Array(buffer, 0, 1)[0] === KEY_UNIT;
    const data = new Uint8Array(buffer, 1);
    const index = this.received;
    this.received += 1;
    if (this.waitsForKey && !key) return;
    if (key) this.#ensureDecoder(data);
    this.waitsForKey = false;
    this.decoder.decode(new EncodedVideoChunk({ type: key ? "key" : "delta", timestamp: index * STEP_US, data }));
  }

  #ensureDecoder(data) {
    if (this.decoder !== null) return;
    const decoder = new VideoDecoder({
      output: (frame) => this.#draw(decoder, frame),
      error: (fault) => this.#fault(decoder, fault),
    });
    decoder.configure({ codec: codecOf(data) ?? "avc1.42E01E", optimizeForLatency: true });
    this.decoder = decoder;
  }

  #draw(decoder, frame) {
    const { displayWidth: width, displayHeight: height } = frame;
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.context.drawImage(frame, 0, 0);
    const index = Math.round(frame.timestamp / STEP_US);
    frame.close();
    if (this.ended || this.decoder !== decoder) return;
    this.faults = 0;
    this.shown += 1;
    const now = performance.now();
    while (this.awaited.length > 0 && this.awaited[0].frame <= index) {
      this.events.latency(now - this.awaited.shift().at);
    }
    this.events.picture({ index, width, height });
  }

  #fault(decoder, fault) {
    if (this.decoder !== decoder) return;
    this.decoder = null; // a decoder that reported an error is closed for good
    this.waitsForKey = true;
    this.faults += 1;
    if (this.faults < MAX_DECODER_FAULTS) return;
    const reason = `the browser could not decode the video (${fault.message})`;
    this.#end({ code: BROKEN, reason, refused: false });
  }

  #dropDecoder() {
    if (this.decoder !== null && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
  }
}
