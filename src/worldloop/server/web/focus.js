// Painting a focus region on the start picture, one cell a latent position. Owns the cells. Called by options.js.

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const [EMBER, DARK, LIGHT] = ["rgb(240 164 92 / 70%)", "rgb(150 70 10 / 80%)", "rgb(246 244 234 / 75%)"];

export class FocusPainter {
  /** @param {() => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.height = this.width = 0;
    this.trained = [0, 100];
    this.cells = [];
    this.cursor = 0; // for the keyboard
    this.brush = null; // true paints, false wipes, null: no finger is down
    this.root = document.createElement("div");
    this.root.className = "painter";
    this.root.hidden = true;
    this.root.innerHTML = `
      <div class="board">
        <img alt="" draggable="false">
        <canvas tabindex="0" role="application" data-owns-keys></canvas>
      </div>
      <p><span role="status"></span> <button type="button">Clear</button></p>`;
    this.image = this.root.querySelector("img");
    this.canvas = this.root.querySelector("canvas");
    this.status = this.root.querySelector("[role=status]");
    this.root.querySelector("button").addEventListener("click", () => this.#set(() => this.cells.fill(false)));
    this.canvas.setAttribute("aria-label", "Focus on the start picture: arrow keys move, space paints or wipes a cell");
    this.canvas.addEventListener("pointerdown", (event) => this.#down(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) {
      this.canvas.addEventListener(end, () => {
        this.brush = null;
      });
    }
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    for (const way of ["focus", "blur"]) this.canvas.addEventListener(way, () => this.#draw());
  }

  /** Takes the grid and the range of shares that the model was trained with; another grid forgets what was painted. */
  setGrid(height, width, trained) {
    this.trained = trained.map((share) => Math.round(share * 100));
    if (height === this.height && width === this.width) return;
    [this.height, this.width] = [height, width];
    [this.canvas.height, this.canvas.width] = [height, width];
    this.cells = Array(height * width).fill(false);
    this.cursor = Math.floor(height / 2) * width + Math.floor(width / 2);
    this.#draw();
  }

  setPicture(picture) {
    this.image.hidden = picture === null;
    if (picture !== null) this.image.src = picture.url;
  }

  /** As the form takes it: `HxW:bits`, or `none` when nothing is painted. */
  mask() {
    if (!this.cells.includes(true)) return "none";
    return `${this.height}x${this.width}:${this.cells.map(Number).join("")}`;
  }

  #set(change) {
    change();
    this.#draw();
    this.changed();
  }

  #cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const along = (value, size) => Math.min(size - 1, Math.max(0, Math.floor(value * size)));
    const column = along((event.clientX - box.left) / box.width, this.width);
    return along((event.clientY - box.top) / box.height, this.height) * this.width + column;
  }

  #down(event) {
    this.canvas.setPointerCapture(event.pointerId);
    const cell = this.#cellAt(event);
    this.brush = !this.cells[cell];
    this.#set(() => {
      this.cells[cell] = this.brush;
    });
  }

  #move(event) {
    if (this.brush === null) return;
    const cell = this.#cellAt(event);
    if (this.cells[cell] === this.brush) return;
    this.#set(() => {
      this.cells[cell] = this.brush;
    });
  }

  #key(event) {
    if (event.code === "Space") {
      this.#set(() => {
        this.cells[this.cursor] = !this.cells[this.cursor];
      });
    } else if (ARROWS[event.code]) {
      const [down, right] = ARROWS[event.code];
      const row = Math.min(this.height - 1, Math.max(0, Math.floor(this.cursor / this.width) + down));
      const column = Math.min(this.width - 1, Math.max(0, (this.cursor % this.width) + right));
      this.cursor = row * this.width + column;
      this.#draw();
    } else {
      return;
    }
    event.preventDefault();
  }

  #draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    const paint = (cell, colour) => {
      context.fillStyle = colour;
      context.fillRect(cell % this.width, Math.floor(cell / this.width), 1, 1);
    };
    this.cells.forEach((on, cell) => on && paint(cell, EMBER));
    if (this.canvas.matches(":focus-visible")) paint(this.cursor, this.cells[this.cursor] ? DARK : LIGHT);
    const share = this.cells.length > 0 ? this.cells.filter(Boolean).length / this.cells.length : 0;
    const [least, most] = this.trained;
    const painted = `${Math.round(share * 100)}\u00a0% painted; best ${least}\u2060–\u2060${most}\u00a0%.`;
    this.status.textContent = share > 0 ? painted : "Paint on the picture.";
  }
}
