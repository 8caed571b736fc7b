// What the player measures: pictures a second, key-to-picture time, time left. Owns three numbers. Called by app.js.

const WINDOW_MS = 1000;
const LATENCIES = 5; // the median of the last few hides one odd frame without hiding a trend

export class Readout {
  /** @param {{rate: HTMLElement, latency: HTMLElement, left: HTMLElement}} places */
  constructor(places) {
    this.places = places;
    this.reset();
    setInterval(() => this.#paint(), 250);
  }

  /** Forgets the game. */
  reset() {
    this.limit = null;
    this.playedS = 0;
    this.#rest();
  }

  /** A connection begins. @param {number} limit seconds of play; 0 is none @param {number} playedS of them before */
  begin(limit, playedS) {
    this.limit = limit;
    this.playedS = playedS;
    this.startedAt = null;
  }

  /** The world waits: its clock stands still, and what was measured is over. */
  pause() {
    this.playedS = this.#elapsedS();
    this.#rest();
  }

  picture() {
    const now = performance.now();
    this.startedAt ??= now;
    this.times.push(now);
    while (this.times[0] < now - WINDOW_MS) this.times.shift();
  }

  latency(milliseconds) {
    this.latencies.push(milliseconds);
    if (this.latencies.length > LATENCIES) this.latencies.shift();
  }

  /** @returns {{picturesPerSecond: number | null, latencyMs: number | null, secondsLeft: number | null}} */
  values() {
    const now = performance.now();
    const running = this.startedAt !== null;
    const recent = this.times.filter((time) => time >= now - WINDOW_MS);
    const span = running ? Math.min(WINDOW_MS, Math.max(now - this.startedAt, 1)) : WINDOW_MS;
    const sorted = [...this.latencies].sort((a, b) => a - b);
    return {
      picturesPerSecond: running ? (recent.length * 1000) / span : null,
      latencyMs: sorted.length > 0 ? sorted[Math.floor(sorted.length / 2)] : null,
      secondsLeft: this.#begun() && this.limit ? Math.max(0, this.limit - this.#elapsedS()) : null,
    };
  }

  #begun() {
    return this.startedAt !== null || this.playedS > 0;
  }

  #elapsedS() {
    return this.playedS + (this.startedAt === null ? 0 : (performance.now() - this.startedAt) / 1000);
  }

  #rest() {
    this.startedAt = null; // of the first picture on this connection
    this.times = [];
    this.latencies = [];
    this.#paint();
  }

  #paint() {
    const { picturesPerSecond, latencyMs, secondsLeft } = this.values();
    const put = (place, text) => {
      if (place.textContent !== text) place.textContent = text;
    };
    put(this.places.rate, picturesPerSecond === null ? "–" : picturesPerSecond.toFixed(0));
    put(this.places.latency, latencyMs === null ? "–" : `${latencyMs.toFixed(0)} ms`);
    put(this.places.left, secondsLeft === null ? (this.#begun() ? "no limit" : "–") : minutes(secondsLeft));
  }
}

function minutes(seconds) {
  const whole = Math.ceil(seconds);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
