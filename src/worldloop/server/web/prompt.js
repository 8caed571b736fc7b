// The form that has a place drawn from words: what is asked for, and whether it can be. Owns no request and no picture.
// Called by app.js.

const MAX_SEED = 2 ** 32 - 1;

const roll = () => crypto.getRandomValues(new Uint32Array(1))[0];

/** @typedef {{prompt: string, seed: number, size?: string}} Order `size` is left out for the model's own */

export class Prompt {
  /**
   * @param {{form: HTMLFormElement, words: HTMLInputElement, seed: HTMLInputElement, dice: HTMLButtonElement,
   *   size: HTMLSelectElement, hint: HTMLElement}} parts
   * @param {(order: Order) => void} draw the player wants this
   */
  constructor(parts, draw) {
    this.parts = parts;
    this.draw = draw;
    this.longest = Infinity;
    parts.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    parts.dice.addEventListener("click", () => this.#roll());
    for (const field of [parts.words, parts.seed]) field.addEventListener("input", () => this.#complain(null, ""));
    this.#roll();
  }

  /** Shows the form for what is served: `{size, sizes, prompt_max}`. */
  show({ size, sizes, prompt_max: longest }) {
    const { form, size: select } = this.parts;
    this.longest = longest;
    select.replaceChildren(...sizes.map((each) => new Option(each.replace("x", " × "), each)));
    select.value = size;
    select.hidden = sizes.length < 2;
    form.hidden = false;
  }

  focus() {
    this.parts.words.focus();
  }

  /** The same words with another seed. */
  again() {
    this.#roll();
    this.#submit();
  }

  #roll() {
    this.parts.seed.value = String(roll());
    this.#complain(null, "");
  }

  #submit() {
    const { words, seed, size } = this.parts;
    const prompt = words.value.trim();
    if (prompt === "") return this.#complain(words, "Write a few words first, such as: a lake in the east, pine forest.");
    if (prompt.length > this.longest) {
      return this.#complain(words, `At most ${this.longest} characters; these are ${prompt.length}.`);
    }
    const number = seed.value.trim();
    if (!/^\d+$/.test(number) || Number(number) > MAX_SEED) {
      return this.#complain(seed, `A seed is a whole number from 0 to ${MAX_SEED}.`);
    }
    this.#complain(null, "");
    this.draw({ prompt, seed: Number(number), ...(size.hidden ? {} : { size: size.value }) });
  }

  /** Says what is wrong with a field, and goes there; null: nothing is. */
  #complain(field, why) {
    const { words, seed, hint } = this.parts;
    for (const each of [words, seed]) each.setAttribute("aria-invalid", String(each === field));
    hint.textContent = why;
    hint.hidden = why === "";
    field?.focus();
  }
}
