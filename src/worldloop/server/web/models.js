// Which model plays: the select beside the pictures, and what sets the models apart. Owns the player's pick; the
// server's answer to `GET /models` comes from app.js.

/** @param {{cache_mode: string, timesteps: number[]}} details of one model */
function passes({ cache_mode: mode, timesteps }) {
  const count = `${timesteps.length} ${timesteps.length === 1 ? "pass" : "passes"}`;
  return mode === "recache" ? `${count} + clean pass` : `${count}, no clean pass`;
}

function character({ cache_mode: mode }) {
  return mode === "recache" ? "Steady for long." : "Faster, drifts sooner.";
}

export class Models {
  /**
   * @param {{row: HTMLElement, select: HTMLSelectElement, hint: HTMLElement}} parts
   * @param {() => void} changed the player picked another one
   */
  constructor(parts, changed) {
    this.parts = parts;
    this.answer = null;
    this.picked = ""; // as the form takes it: empty keeps what is served
    parts.select.addEventListener("change", () => {
      this.picked = parts.select.value;
      this.#hint();
      changed();
    });
  }

  /** @param {object} answer of `GET /models` */
  show(answer) {
    this.answer = answer;
    if (!answer.models.includes(this.picked)) this.picked = "";
    const { row, select } = this.parts;
    row.hidden = answer.models.length < 2;
    select.replaceChildren(
      ...answer.models.map((id) => new Option(`${id} · ${passes(answer.details[id])}`, id)),
    );
    select.value = this.id;
    this.#hint();
  }

  /** Keeps what is served instead of the pick. */
  keepActive() {
    this.picked = "";
    if (this.answer !== null) this.show(this.answer);
  }

  /** What the next game is played with, or null before the server answered. */
  get id() {
    return this.picked || this.active || this.answer?.default_model_id || null;
  }

  get active() {
    return this.answer?.active_model_id ?? null;
  }

  /** Whether the next game makes the server change its model. */
  get switches() {
    return this.active !== null && this.id !== this.active;
  }

  /** The details of `id`, or null. */
  get details() {
    return this.answer?.details[this.id] ?? null;
  }

  #hint() {
    const wait = this.switches ? " Loading it takes a moment." : "";
    this.parts.hint.textContent = this.details === null ? "" : character(this.details) + wait;
  }
}
