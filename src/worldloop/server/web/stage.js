// The stage: its size, the picture under it, the words over it. Owns the look of a state, not the state.
// Called by app.js.

// What stands above and below the stage, in CSS pixels; on low windows the gallery goes below the fold.
const CHROME_HEIGHT = { usual: 186, low: 118 };
const LOW_WINDOW = 560;
const MIN_HEIGHT = 190;
const SMALL_PICTURE = 320; // up to this width a picture is pixel art and keeps its edges
// An integer scale is used when it keeps this share of the width; on fine screens uneven pixels hardly show.
const WORTH_IT = { coarse: 0.72, fine: 0.9 };

export class Stage {
  constructor(root, parts) {
    this.root = root;
    this.parts = parts; // preview, screen, title, text, progress, actions, announce, notice
    this.reserved = 0; // CSS pixels of the page that is below the stage and should be in view, beside the gallery
    this.size = { width: 160, height: 96 };
    addEventListener("resize", () => this.fit());
    document.addEventListener("fullscreenchange", () => this.fit());
    parts.preview.addEventListener("error", () => {
      parts.preview.hidden = true; // a video or a format that only the server reads
    });
    this.fit();
  }

  /** Takes the size of the pictures, in pixels. A stream that enlarges every pixel keeps the size it enlarges. */
  setSize(width, height) {
    const scale = width / this.size.width;
    if (Number.isInteger(scale) && height === this.size.height * scale) return;
    this.size = { width, height };
    this.fit();
  }

  /** Leaves so many CSS pixels more below the stage. */
  reserve(height) {
    this.reserved = height;
    this.fit();
  }

  fit() {
    const { width, height } = this.size;
    const page = document.documentElement;
    page.style.setProperty("--aspect", `${width} / ${height}`);
    const room = document.body.clientWidth - 24;
    const chrome = innerHeight < LOW_WINDOW ? CHROME_HEIGHT.low : CHROME_HEIGHT.usual;
    const tall = Math.max(MIN_HEIGHT, innerHeight - chrome - this.reserved);
    page.style.setProperty("--stage-w", `${this.#widthWithin(room, tall)}px`);
    page.style.setProperty("--stage-full-w", `${this.#widthWithin(innerWidth, innerHeight - 64)}px`);
    this.root.classList.toggle("pixels", width <= SMALL_PICTURE);
  }

  #widthWithin(room, tall) {
    const { width, height } = this.size;
    const widest = Math.min(room, (tall * width) / height);
    const device = width / devicePixelRatio;
    const whole = Math.floor(widest / device) * device;
    const share = devicePixelRatio >= 2 ? WORTH_IT.fine : WORTH_IT.coarse;
    return whole >= widest * share ? whole : widest;
  }

  /** Shows a start picture the way the server will crop it: covering, centred. Null shows none. */
  preview(picture) {
    const { preview } = this.parts;
    preview.hidden = picture === null;
    if (picture === null) return;
    if (preview.src !== picture.url) preview.src = picture.url;
    this.root.classList.toggle("photo", picture.own);
  }

  showScreen(on) {
    this.parts.screen.hidden = !on;
  }

  /**
   * Puts a state's words on the stage and tells them to screen readers.
   * @param {{state: string, title: string, text?: string, loud?: boolean, live?: boolean, focus?: boolean,
   *   actions?: {label: string, run: () => void, primary?: boolean}[]}} scene `focus`: on the first action
   */
  scene({ state, title, text = "", loud = false, live = false, focus = loud, actions = [] }) {
    const { parts } = this;
    document.body.dataset.state = state;
    document.body.dataset.tone = loud ? "loud" : "quiet";
    document.body.dataset.live = String(live);
    parts.title.textContent = title;
    this.words(text);
    this.progress(null);
    parts.announce.textContent = [title, text].filter(Boolean).join(". ");
    const hadFocus = parts.actions.contains(document.activeElement);
    parts.actions.replaceChildren(...actions.map((action) => this.#button(action)));
    // A choice that must be made takes the focus, so that Enter answers it.
    if ((focus || hadFocus) && actions.length > 0) parts.actions.firstElementChild.focus({ preventScroll: true });
  }

  /** Replaces the text of the scene without telling it again: for countdowns. */
  words(text) {
    this.parts.text.textContent = text;
    this.parts.text.hidden = text === "";
  }

  /** How far something is: a share of 1; null shows nothing. */
  progress(share) {
    this.parts.progress.hidden = share === null;
    if (share !== null) this.parts.progress.value = share;
  }

  /** A line in the corner of a running world. */
  notice(text) {
    const { notice } = this.parts;
    notice.textContent = text;
    notice.hidden = text === "";
    clearTimeout(this.noticeTimer);
    if (text !== "") this.noticeTimer = setTimeout(() => this.notice(""), 4000);
  }

  #button({ label, run, primary = false }) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = label;
    button.className = primary ? "primary" : "";
    button.addEventListener("click", run);
    return button;
  }
}
