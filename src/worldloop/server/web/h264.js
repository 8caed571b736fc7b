// Reads what a decoder must know out of H.264 Annex-B bytes. Owns no decoder. Called by player.js.

/**
 * Codec string of the first sequence parameter set, `avc1.PPCCLL` (profile, constraints, level in hex).
 * @param {Uint8Array} unit one access unit with start codes
 * @returns {string | null} null when the unit holds no sequence parameter set
 */
export function codecOf(unit) {
  for (let i = 0; i + 6 < unit.length; i += 1) {
    if (unit[i] !== 0 || unit[i + 1] !== 0 || unit[i + 2] !== 1) continue;
    if ((unit[i + 3] & 0x1f) !== 7) continue;
    return "avc1." + [4, 5, 6].map((at) => unit[i + at].toString(16).padStart(2, "0")).join("").toUpperCase();
  }
  return null;
}

/**
 * Why this browser cannot show the stream, or null when it can.
 * @returns {Promise<"insecure" | "webcodecs" | "h264" | null>}
 */
export async function whyUnsupported() {
  if (typeof VideoDecoder !== "function" || typeof EncodedVideoChunk !== "function") {
    // WebCodecs exists on secure pages only: the same browser would work at localhost or over https.
    return window.isSecureContext ? "webcodecs" : "insecure";
  }
  const { supported } = await VideoDecoder.isConfigSupported({ codec: "avc1.42E01E", optimizeForLatency: true });
  return supported ? null : "h264";
}
