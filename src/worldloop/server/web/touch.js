// The on-screen pad: fingers as keys. Owns its buttons and which fingers are on them. Called by app.js.

const ARROWS = {
  w: "M6 3h2v2h2v2h2v2h2v2H0V9h2V7h2V5h2z",
  s: "M6 11h2V9h2V7h2V5h2V3H0v2h2v2h2v2h2z",
  a: "M3 6v2h2v2h2v2h2v2h2V0H9v2H7v2H5v2z",
  d: "M11 6v2H9v2H7v2H5v2H3V0h2v2h2v2h2v2z",
};
const NAMES = {
  w: "Up", a: "Left", s: "Down", d: "Right", left: "Look left", right: "Look right", space: "Jump", shift: "Sprint",
};
const LABELS = { left: "look ‹", right: "› look", space: "jump", shift: "sprint" };
const DEAD_ZONE = 0.16; // of the cross's width, around its middle

/** Keys that a point on the cross means, `x` and `y` in -0.5..0.5 from its middle. */
export function crossKeys(x, y, diagonals) {
  if (Math.hypot(x, y) < DEAD_ZONE) return [];
  const across = x < 0 ? "a" : "d";
  const along = y < 0 ? "w" : "s";
  if (!diagonals) return [Math.abs(x) > Math.abs(y) ? across : along];
  const lean = Math.abs(Math.atan2(Math.abs(y), Math.abs(x))) / (Math.PI / 2); // 0 across, 1 along
  return [...(lean < 0.75 ? [across] : []), ...(lean > 0.25 ? [along] : [])];
}

export class Pad {
  /**
   * @param {HTMLElement} root
   * @param {(keys: string[]) => void} changed called with everything that is held
   */
  constructor(root, changed) {
    this.root = root;
    this.changed = changed;
    this.fingers = new Map(); // pointer id -> keys
    this.diagonals = false;
    this.coarse = matchMedia("(pointer: coarse)");
    this.live = false;
    root.addEventListener("pointerdown", (event) => this.#down(event));
    root.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
      root.addEventListener(end, (event) => this.#lift(event));
    }
    root.addEventListener("contextmenu", (event) => event.preventDefault());
    this.coarse.addEventListener("change", () => this.show(this.live));
  }

  /** Draws the buttons of a world's controls. */
  useControls(controls) {
    const others = ["left", "right", "shift", "space"].filter((key) => controls.includes(key));
    this.diagonals = controls.includes("left"); // without turning, a world walks one axis at a time
    this.cross = document.createElement("div");
    this.cross.className = "cross";
    this.cross.append(...["w", "a", "d", "s"].map((key) => this.#button(key)));
    const rest = document.createElement("div");
    rest.className = "others";
    rest.append(...others.map((key) => this.#button(key)));
    this.root.replaceChildren(this.cross, ...(others.length > 0 ? [rest] : []));
    this.release();
  }

  /** Shown on touch screens while a world runs. */
  show(live) {
    this.live = live;
    this.root.hidden = !(live && this.coarse.matches);
    if (this.root.hidden) this.release();
  }

  release() {
    this.fingers.clear();
    this.#tell();
  }

  #button(key) {
    const button = document.createElement("button");
    button.type = "button";
    button.tabIndex = -1; // a keyboard has the keys themselves
    button.dataset.key = key;
    button.setAttribute("aria-label", NAMES[key]);
    if (ARROWS[key]) {
      const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      svg.setAttribute("viewBox", "0 0 14 14");
      svg.setAttribute("shape-rendering", "crispEdges");
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", ARROWS[key]);
      svg.append(path);
      button.append(svg);
    } else {
      button.textContent = LABELS[key];
    }
    return button;
  }

  #keysAt(event) {
    const box = this.cross.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width - 0.5;
    const y = (event.clientY - box.top) / box.height - 0.5;
    if (Math.abs(x) <= 0.6 && Math.abs(y) <= 0.6) return crossKeys(x, y, this.diagonals);
    const under = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-key]");
    return under && this.root.contains(under) && !this.cross.contains(under) ? [under.dataset.key] : [];
  }

  #down(event) {
    event.preventDefault();
    // The finger stays ours when it slides off the pad; which button is under it is found from its place.
    this.root.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, this.#keysAt(event));
    this.#tell();
  }

  #move(event) {
    if (!this.fingers.has(event.pointerId)) return;
    this.fingers.set(event.pointerId, this.#keysAt(event));
    this.#tell();
  }

  #lift(event) {
    if (this.fingers.delete(event.pointerId)) this.#tell();
  }

  #tell() {
    const held = [...new Set([...this.fingers.values()].flat())];
    for (const button of this.root.querySelectorAll("[data-key]")) {
      button.classList.toggle("held", held.includes(button.dataset.key));
    }
    const state = held.join();
    if (state === this.told) return;
    this.told = state;
    this.changed(held);
  }
}
