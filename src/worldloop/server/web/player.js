// One running world: its socket, its decoder, its canvas. Owns no page state and no words. Called by app.js.

import { codecOf } from "./h264.js";

const KEY_UNIT = 0x01;
const STEP_US = 1000; // timestamps only number the pictures; the server paces them
const MAX_DECODER_FAULTS = 3;

/**
 * @typedef {object} PlayerEvents
 * @property {(hello: object) => void} hello        size, rate, limit and profile of the game
 * @property {(picture: {index: number, width: number, height: number}) => void} picture  just drawn
 * @property {(milliseconds: number) => void} latency  from a key's message to its first picture on the canvas
 * @property {(message: {code: string, message: string}) => void} error   the server refused one message
 * @property {(message: {message: string, limit_s: number}) => void} over   the session's time is up
 * @property {(why: {code: number, reason: string}) => void} closed   the socket is closed, at most once
 */

export class Player {
  /**
   * @param {string} url address of the socket
   * @param {HTMLCanvasElement} canvas takes the size of the video
   * @param {PlayerEvents} events
   */
  constructor(url, canvas, events) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.events = events;
    this.decoder = null;
    this.waitsForKey = true;
    this.faults = 0;
    this.received = 0;
    this.shown = 0;
    this.seq = 0;
    this.sentAt = new Map(); // seq of a changed state -> when it was sent
    this.awaited = []; // acknowledged changes whose first picture is not drawn yet
    this.ended = false;
    this.socket = new WebSocket(url);
    this.socket.binaryType = "arraybuffer";
    this.socket.onmessage = ({ data }) => (typeof data === "string" ? this.#text(data) : this.#unit(data));
    this.socket.onclose = ({ code, reason }) => this.#end(code, reason);
  }

  /** Sends what is held. A repeat keeps the number of the change that it repeats. */
  sendKeys(pressed, changed) {
    if (this.socket.readyState !== WebSocket.OPEN) return;
    if (changed) {
      this.seq += 1;
      this.sentAt.set(this.seq, performance.now());
    }
    this.sendText(JSON.stringify({ type: "keys", pressed, seq: this.seq }));
  }

  sendText(text) {
    this.socket.send(text);
  }

  /** Leaves. `closed` is not called for a leave of one's own. */
  close() {
    this.ended = true;
    this.socket.close(1000, "left");
    this.#dropDecoder();
  }

  #end(code, reason) {
    this.#dropDecoder();
    if (this.ended) return;
    this.ended = true;
    this.events.closed({ code, reason });
  }

  #text(data) {
    if (this.ended) return;
    const message = JSON.parse(data);
    if (message.type === "hello") this.events.hello(message);
    else if (message.type === "ack") this.#acknowledged(message);
    else if (message.type === "error") this.events.error(message);
    else if (message.type === "session_over") this.events.over(message);
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
    if (this.ended) return;
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
      output: (frame) => this.#draw(frame),
      error: (fault) => this.#fault(decoder, fault),
    });
    decoder.configure({ codec: codecOf(data) ?? "avc1.42E01E", optimizeForLatency: true });
    this.decoder = decoder;
  }

  #draw(frame) {
    const { displayWidth: width, displayHeight: height } = frame;
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    this.context.drawImage(frame, 0, 0);
    const index = Math.round(frame.timestamp / STEP_US);
    frame.close();
    if (this.ended) return;
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
    this.socket.close(1000, "decoder");
    this.#end(1006, `the browser could not decode the video (${fault.message})`);
  }

  #dropDecoder() {
    if (this.decoder !== null && this.decoder.state !== "closed") this.decoder.close();
    this.decoder = null;
  }
}
