// A picture in the making on the stage: its place in the queue, its steps, what is seen of it so far. Owns how the
// server's news are told. Called by app.js.

const TELL = {
  queued({ position, eta_seconds: eta }) {
    if (position === 0) return { words: "The server takes up your words." };
    const before = position === 1 ? "One picture comes before yours" : `${position} pictures come before yours`;
    return { words: before + left(eta) };
  },
  step({ done, of, eta_seconds: eta }) {
    return { words: `Step ${done} of ${of}${left(eta)}`, share: done / of };
  },
  partial_image({ b64_json: data, output_format: format }) {
    return { url: urlOf(data, format) };
  },
};

const left = (seconds) => (seconds == null ? "." : `, about ${Math.max(1, Math.round(seconds))}\u00a0s left.`);

/** Address of a picture that came as text. */
export const urlOf = (data, format) => `data:image/${format};base64,${data}`;

/** @param {import("./stage.js").Stage} stage @param {{type: string}} event of the server's */
export function tell(stage, event) {
  const { words, share, url } = TELL[event.type.split(".").pop()]?.(event) ?? {};
  if (words !== undefined) stage.words(words);
  if (share !== undefined) stage.progress(share);
  if (url !== undefined) stage.preview({ url, own: false });
}
