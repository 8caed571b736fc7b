"""What a real browser makes of the stream: WebCodecs gives back the encoder's colours."""

from __future__ import annotations

import base64
import shutil

import numpy as np
import pytest
from numpy.typing import NDArray

from worldloop.codec.h264 import H264Encoder

sync_api = pytest.importorskip("playwright.sync_api")

Picture = NDArray[np.uint8]

DECODE = """async ([data, codec, width, height]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  let decoded;
  const decoder = new VideoDecoder({
    output: (frame) => { decoded = frame; },
    error: (problem) => { throw problem; },
  });
  decoder.configure({codec, optimizeForLatency: true});
  decoder.decode(new EncodedVideoChunk({type: "key", timestamp: 0, data: bytes}));
  await decoder.flush();
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.drawImage(decoded, 0, 0);
  decoded.close();
  const pixels = context.getImageData(0, 0, width, height).data;
  return btoa(Array.from(pixels, (value) => String.fromCharCode(value)).join(""));
}"""


@pytest.mark.browser
def test_webcodecs_gives_back_flat_colours_within_three_levels(colours: Picture) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on PATH")
    unit = H264Encoder(height=96, width=160).encode(colours)

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        # WebCodecs needs a secure origin; nothing leaves this process.
        page.route("**/*", lambda route: route.fulfill(body="<p>", content_type="text/html"))
        page.goto("https://stream.test/")
        answer = page.evaluate(DECODE, [base64.b64encode(unit.data).decode(), "avc1.42C01E", 160, 96])
        browser.close()

    picture = np.frombuffer(base64.b64decode(answer), np.uint8).reshape(96, 160, 4)[..., :3]
    fields = (picture.astype(int) - colours).reshape(2, 48, 4, 40, 3)[:, 8:-8, :, 8:-8]
    assert np.abs(fields).max() <= 3
