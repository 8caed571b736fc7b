// The "More" panel: choices that few need, each with a line that explains it and what the server does now. Owns the
// player's choices and how the protocol spells them. Called by app.js.

import { FocusPainter } from "./focus.js";

const OWN = "";
const numbers = (...values) => values.map((value) => [String(value), String(value)]);
const percent = (share) => `${Math.round(share * 100)} %`;

/**
 * One choice.
 * @typedef {object} Knob
 * @property {string} field name in the protocol
 * @property {string} label
 * @property {string} why one line
 * @property {(details: object) => [value: string, label: string][]} values the first one is the server's own
 * @property {(now: object, chosen: Record<string, string>) => string} [now] what the server does, from `GET /models`
 * @property {(details: object, chosen: Record<string, string>) => string | null} [blocked] why it can't be chosen
 */

/** @type {Knob[]} sent with every keys message */
const LIVE = [
  {
    field: "stream_fps", label: "Pictures a second",
    why: "How fast the pictures come; walking gets faster with them.",
    values: () => [[OWN, "server’s own"], ...numbers(5, 10, 15, 20, 25, 30, 35, 45, 60, 90, 120)],
    now: ({ hello }, { stream_fps: chosen }) => (hello ? String(chosen ?? hello.fps) : ""),
  },
  {
    field: "fps_embedding", label: "The model’s rate",
    why: "The pictures a second that the model is told of. With none it dreams on its own and hears no keys.",
    values: () => [
      [OWN, "server’s own"], ["none", "none: dream on its own"],
      ...numbers(4, 8, 12, 16, 24, 30, 60),
    ],
  },
];

/** @type {Knob[]} sent with the start picture */
const START = [
  {
    field: "nfe", label: "Passes a frame",
    why: "More passes draw each frame with more care, and take longer.",
    values: ({ timesteps }) => [
      [OWN, `model’s own, ${timesteps.length}`],
      ...numbers(...[4, 6, 8, 12].filter((n) => n > timesteps.length).slice(0, 2)),
    ],
    now: ({ nfe }) => `${nfe.active_steps}, at noise levels ${nfe.timesteps.join(", ")}`,
  },
  {
    field: "nfe_mode", label: "Noise levels",
    why: "Repeat visits the model’s own noise levels again. Grid spreads the passes on levels that are new to it.",
    values: () => [[OWN, "repeat"], ["grid", "grid"]],
    now: ({ nfe }) => nfe.mode,
    blocked: (_, chosen) => (chosen.nfe ? null : "Choose a number of passes first."),
  },
  {
    field: "sphere", label: "Sphere",
    why: "Pulls what was dreamed back to its usual strength: for the picture alone, or in every pass.",
    values: () => [[OWN, "off"], ["decode", "for the picture"], ["all", "in every pass"]],
    now: ({ sphere }) => sphere.mode,
  },
  {
    field: "reprefill_every", label: "Rebuild memory",
    why: "Starts it afresh from the start picture and the last clean frames: holds drift back, with a hitch each time.",
    values: () => [
      [OWN, "as it is now"], ["0", "never"], ...[32, 64, 128, 256].map((n) => [String(n), `every ${n} frames`]),
    ],
    now: ({ reprefill }) => (reprefill.every ? `every ${reprefill.every} frames, ${reprefill.count} so far` : "never"),
    blocked: ({ cache_mode: mode }) => (mode === "recache" ? null : "This model has no clean pass to rebuild from."),
  },
  {
    field: "focus_mask", label: "Focus",
    why: "The part of the start picture that the model should look at most.",
    values: () => [[OWN, "the middle"], ["none", "none"], ["painted", "painted by you"]],
    now: ({ focus }) => (focus.mode ? `${focus.mode}, ${percent(focus.coverage)}` : focus.default),
    blocked: ({ focus }) => (focus === "none" ? "This model knows no focus." : null),
  },
];

export class Options {
  /**
   * @param {{button: HTMLButtonElement, panel: HTMLElement, live: HTMLElement, start: HTMLElement,
   *   reset: HTMLButtonElement}} parts
   * @param {{opened: () => void, rates: () => void, done: () => void}} events `rates`: a choice for the running
   *   game has changed; `done`: a pointer is done here, so the keyboard may go back to the world
   */
  constructor(parts, events) {
    this.parts = parts;
    this.events = events;
    this.now = null;
    this.details = null;
    this.painter = new FocusPainter(() => this.#paint());
    this.rows = new Map();
    this.#build(parts.live, LIVE, () => events.rates());
    this.#build(parts.start, START, () => {});
    this.rows.get("focus_mask").row.append(this.painter.root);
    parts.button.addEventListener("click", ({ detail: clicks }) => {
      this.toggle();
      if (clicks > 0) events.done(); // 0: the keyboard pressed the button, and goes on from it
    });
    parts.reset.addEventListener("click", () => {
      for (const { select } of this.rows.values()) select.value = OWN;
      this.#paint();
      events.rates();
    });
    this.#paint();
  }

  toggle() {
    const open = this.parts.panel.hidden;
    this.parts.panel.hidden = !open;
    this.parts.button.setAttribute("aria-expanded", String(open));
    if (!open) return;
    this.events.opened();
    this.parts.live.scrollIntoView({ block: "nearest" }); // not the whole panel: it would push the world away
  }

  /** Takes what the server does now, and the details of the model that the next game is played with. */
  show(now, details) {
    this.now = now;
    this.details = details;
    for (const knob of [...LIVE, ...START]) {
      const { select } = this.rows.get(knob.field);
      const chosen = select.value;
      select.replaceChildren(...knob.values(details).map(([value, label]) => new Option(label, value)));
      select.value = chosen;
      if (select.selectedIndex < 0) select.value = OWN; // the other model has no such choice
    }
    this.painter.setGrid(...now.focus.grid, now.focus.coverage_trained);
    this.#paint();
  }

  /** The start picture that a focus is painted on. */
  showPicture(picture) {
    this.painter.setPicture(picture);
  }

  /** Fields of a start; what is the server's own is left out. */
  get fields() {
    const chosen = this.#chosen(START);
    if (chosen.focus_mask === "painted") chosen.focus_mask = this.painter.mask();
    // What is left out stays as the last player had it, which this model may not be able to do.
    if (this.details !== null && this.details.cache_mode !== "recache") chosen.reprefill_every = "0";
    return chosen;
  }

  /** Fields of a keys message. `own` is the server's rate, which a message that leaves it out would not bring back. */
  rates(own) {
    const { stream_fps: stream, fps_embedding: told } = this.#chosen(LIVE);
    return {
      ...(stream || own ? { stream_fps: stream ? Number(stream) : own } : {}),
      ...(told ? { fps_embedding: told === "none" ? null : Number(told) } : {}),
    };
  }

  #chosen(knobs) {
    const all = knobs.map(({ field }) => ({ field, select: this.rows.get(field).select }));
    const chosen = all.filter(({ select }) => select.value !== OWN && !select.disabled);
    return Object.fromEntries(chosen.map(({ field, select }) => [field, select.value]));
  }

  #build(place, knobs, changed) {
    for (const { field, label, why } of knobs) {
      const row = document.createElement("div");
      const select = document.createElement("select");
      const name = document.createElement("label");
      const [reason, now] = [document.createElement("p"), document.createElement("p")];
      row.className = "knob";
      select.id = `knob-${field}`;
      select.append(new Option("server’s own", OWN));
      select.setAttribute("aria-describedby", `why-${field} now-${field}`);
      let pointed = false;
      select.addEventListener("pointerdown", () => (pointed = true));
      select.addEventListener("keydown", () => (pointed = false));
      select.addEventListener("change", () => {
        this.#paint();
        changed();
        if (pointed) this.events.done();
      });
      [name.htmlFor, name.textContent] = [select.id, label];
      [reason.id, reason.className, reason.textContent] = [`why-${field}`, "why", why];
      [now.id, now.className] = [`now-${field}`, "now"];
      row.append(name, select, reason, now);
      place.append(row);
      this.rows.set(field, { row, select, reason, now });
    }
  }

  #paint() {
    if (this.details !== null) {
      for (const knob of [...LIVE, ...START]) this.#paintRow(knob);
      this.rows.get("focus_mask").row.hidden = !this.now.focus.trained;
    }
    const changed = Object.keys({ ...this.#chosen(LIVE), ...this.#chosen(START) }).length;
    this.parts.button.textContent = changed > 0 ? `More (${changed})` : "More";
    this.parts.reset.disabled = changed === 0;
    this.painter.root.hidden = this.rows.get("focus_mask").select.value !== "painted";
  }

  #paintRow({ field, why, now, blocked }) {
    const row = this.rows.get(field);
    const chosen = this.#chosen([...LIVE, ...START]);
    const reason = blocked?.(this.details, chosen) ?? null;
    row.select.disabled = reason !== null;
    row.reason.textContent = reason ?? why;
    const told = now?.(this.now, chosen) ?? "";
    row.now.textContent = told ? `Now: ${told}` : "";
    row.now.hidden = told === "";
  }
}
