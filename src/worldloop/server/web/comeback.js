// When to try to take a world up again, and until when. Owns timers; no sockets, no words. Called by app.js.

const WAITS_MS = [0, 400, 800, 1600]; // before each try; the last one repeats
const ANSWER_MS = 6000; // a try that has not been answered by then is given up

export class Comeback {
  /** @param {{attempt: () => void, tick: (seconds: number) => void, late: () => void}} events */
  constructor(events) {
    this.events = events;
    this.timer = 0;
    this.ticker = 0;
  }

  /** Tries now, and again after every `missed`, for this many seconds. */
  begin(seconds) {
    this.end();
    this.until = performance.now() + seconds * 1000;
    this.tries = 0;
    this.waiting = false;
    this.ticker = setInterval(() => this.#tick(), 250);
    this.missed();
  }

  get secondsLeft() {
    return Math.max(0, Math.ceil((this.until - performance.now()) / 1000));
  }

  /** A try failed: plans the next one. */
  missed() {
    clearTimeout(this.timer);
    this.waiting = true;
    const wait = WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)];
    this.timer = setTimeout(() => this.now(), wait);
  }

  /** Tries at once instead of in a while: the network or the page is back. */
  now() {
    // A try under way goes on: the server may have heard it, and takes its token only once.
    if (!this.ticker || !this.waiting) return;
    clearTimeout(this.timer);
    this.waiting = false;
    this.tries += 1;
    this.timer = setTimeout(() => this.missed(), ANSWER_MS);
    this.events.attempt();
  }

  /** No more tries: the world is back, or was left. */
  end() {
    clearTimeout(this.timer);
    clearInterval(this.ticker);
    this.ticker = 0;
  }

  #tick() {
    if (this.secondsLeft > 0) return this.events.tick(this.secondsLeft);
    this.end();
    return this.events.late();
  }
}
