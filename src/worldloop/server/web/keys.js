// The keyboard as the protocol's keys. Owns what is held down; the on-screen pad adds to it. Called by app.js.

/** Keys of the protocol, in its order. */
export const KEYS = ["w", "a", "s", "d", "left", "right", "space", "shift"];

// Places on the keyboard, not letters, so that the cross of keys stays a cross on every layout.
const FIXED = {
  KeyW: "w", KeyA: "a", KeyS: "s", KeyD: "d", Space: "space", ShiftLeft: "shift", ShiftRight: "shift",
};
const TURNING = { ArrowUp: "w", ArrowDown: "s", ArrowLeft: "left", ArrowRight: "right" };
const WALKING = { ArrowUp: "w", ArrowDown: "s", ArrowLeft: "a", ArrowRight: "d" };

/** Whether a key pressed on this element belongs to the element. */
function ownsKey(target, code) {
  if (!(target instanceof Element)) return false;
  if (target.closest("input, textarea, [contenteditable], [data-owns-keys]")) return true;
  if (target.closest("select")) return !code.startsWith("Key"); // a list is walked through with the other keys
  return (code === "Space" || code === "Enter") && target.closest("button, a[href]") !== null;
}

export class Keys {
  /** @param {(pressed: Record<string, boolean>) => void} changed called on every change while enabled */
  constructor(changed) {
    this.changed = changed;
    this.enabled = false;
    this.controls = new Set(KEYS);
    this.codes = new Map(); // place on the keyboard -> key of the protocol
    this.touched = new Set();
    addEventListener("keydown", (event) => this.#down(event));
    addEventListener("keyup", (event) => this.#up(event));
    addEventListener("blur", () => this.releaseAll());
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.releaseAll();
    });
  }

  /** @param {string[]} controls keys that the world answers to */
  useControls(controls) {
    this.controls = new Set(controls);
  }

  get turns() {
    return this.controls.has("left");
  }

  /** What is held now, with every key of the protocol in it. */
  pressed() {
    const held = new Set([...this.codes.values(), ...this.touched]);
    return Object.fromEntries(KEYS.map((key) => [key, held.has(key)]));
  }

  /** Replaces what the on-screen pad holds. */
  touch(keys) {
    this.touched = new Set(keys);
    this.#tell();
  }

  enable() {
    this.enabled = true;
  }

  disable() {
    this.releaseAll();
    this.enabled = false;
  }

  releaseAll() {
    if (this.codes.size + this.touched.size === 0) return;
    this.codes.clear();
    this.touched.clear();
    this.#tell();
  }

  #keyOf(code) {
    return FIXED[code] ?? (this.turns ? TURNING : WALKING)[code];
  }

  #down(event) {
    if (!this.enabled) return;
    if (event.ctrlKey || event.metaKey || event.altKey) {
      this.releaseAll(); // some systems never report the release of a key held with these
      return;
    }
    const key = this.#keyOf(event.code);
    if (key === undefined || ownsKey(event.target, event.code)) return;
    event.preventDefault();
    if (this.codes.has(event.code)) return; // a repeat of a key that was down before the game counts as a press
    this.codes.set(event.code, key);
    this.#tell();
  }

  #up(event) {
    if (this.codes.delete(event.code)) this.#tell();
  }

  #tell() {
    if (this.enabled) this.changed(this.pressed());
  }
}
