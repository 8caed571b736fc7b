// Start pictures: the gallery, and a player's own by button, drop or paste. Owns no game. Called by app.js.

/**
 * @typedef {object} Picture
 * @property {string} name
 * @property {string} title what people read
 * @property {string} url for previews
 * @property {boolean} own brought by the player, so a photograph as a rule
 * @property {string} [id] the server's name of a picture that it drew from words
 * @property {() => Promise<Blob>} load
 */

/** @returns {Promise<Picture[]>} the server's start pictures; none is an answer too */
export async function listPictures() {
  const answer = await fetch(new URL("pictures", document.baseURI));
  if (!answer.ok) throw new Error(`the list of pictures could not be read (${answer.status})`);
  return (await answer.json()).map(({ name, title, caption }) => {
    const url = new URL(`pictures/${encodeURIComponent(name)}.png`, document.baseURI).href;
    const load = async () => {
      const picture = await fetch(url);
      if (!picture.ok) throw new Error(`the picture ${name} could not be read (${picture.status})`);
      return picture.blob();
    };
    return { name, title: title || name, caption: caption ?? "", url, own: false, load };
  });
}

/** @param {File} file @returns {Picture} */
export function ownPicture(file) {
  return {
    name: file.name || "picture", title: file.name || "your picture", caption: "",
    url: URL.createObjectURL(file), own: true, load: async () => file,
  };
}

const isServers = (picture) => picture !== null && !picture.own && !picture.id;

/** A picture that the server drew from words. @param {string} words @returns {Picture} */
export function drawnPicture(words, id, url) {
  return { name: "drawn.png", title: words, caption: "", url, own: false, id, load: async () => (await fetch(url)).blob() };
}

export class Gallery {
  /**
   * @param {HTMLElement} list
   * @param {HTMLInputElement} input
   * @param {{choose: (picture: Picture) => void, look: (picture: Picture | null) => void}} events
   *   `choose`: start from it; `look`: the pointer or the focus is on it, or (null) on none
   */
  constructor(list, input, events) {
    this.list = list;
    this.input = input;
    this.events = events;
    input.addEventListener("change", () => {
      if (input.files.length > 0) events.choose(ownPicture(input.files[0]));
      input.value = ""; // the same file may be chosen again
    });
    this.#watchDrops();
    addEventListener("paste", (event) => {
      const file = [...(event.clipboardData?.files ?? [])][0];
      if (!file) return;
      event.preventDefault();
      events.choose(ownPicture(file));
    });
  }

  /** @param {Picture[]} pictures */
  show(pictures) {
    this.list.replaceChildren(this.#ownItem(), ...pictures.map((picture) => this.#item(picture)));
  }

  mark(picture) {
    for (const button of this.list.querySelectorAll("button[data-name]")) {
      button.setAttribute("aria-current", String(isServers(picture) && button.dataset.name === picture.name));
    }
  }

  openFile() {
    this.input.click();
  }

  #ownItem() {
    const button = this.#button("own", "Your own");
    button.querySelector(".thumb").innerHTML =
      '<svg viewBox="0 0 14 14" aria-hidden="true" shape-rendering="crispEdges">' +
      '<path d="M6 2h2v4h4v2H8v4H6V8H2V6h4z"/></svg>';
    button.title = "Upload, drop or paste a picture";
    button.addEventListener("click", () => this.openFile());
    return this.#wrap(button);
  }

  #item(picture) {
    const button = this.#button("", picture.title);
    button.dataset.name = picture.name;
    button.title = picture.caption;
    const image = new Image();
    image.src = picture.url;
    image.alt = "";
    image.draggable = false;
    button.querySelector(".thumb").append(image);
    button.addEventListener("click", () => this.events.choose(picture));
    for (const on of ["pointerenter", "focus"]) button.addEventListener(on, () => this.events.look(picture));
    for (const off of ["pointerleave", "blur"]) button.addEventListener(off, () => this.events.look(null));
    return this.#wrap(button);
  }

  #button(kind, title) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = kind;
    const thumb = document.createElement("span");
    thumb.className = "thumb";
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = title;
    button.append(thumb, name);
    return button;
  }

  #wrap(button) {
    const item = document.createElement("li");
    item.append(button);
    return item;
  }

  #watchDrops() {
    const dragging = (on) => document.body.classList.toggle("dragging", on);
    const holdsFile = (event) => event.dataTransfer?.types.includes("Files") ?? false;
    addEventListener("dragover", (event) => {
      if (!holdsFile(event)) return;
      event.preventDefault();
      dragging(true);
    });
    addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) dragging(false);
    });
    addEventListener("drop", (event) => {
      if (!holdsFile(event)) return;
      event.preventDefault();
      dragging(false);
      const file = event.dataTransfer.files[0];
      if (file) this.events.choose(ownPicture(file));
    });
  }
}
