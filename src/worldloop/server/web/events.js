// Server-sent events of an answer's body, which `EventSource` can't read: it can't post. Called by server.js.

/** @param {ReadableStream<Uint8Array>} body @returns {AsyncGenerator<object>} the data of each event, parsed */
export async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const events = text.split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5));
        if (data.length > 0 && data[0].trim() !== "[DONE]") yield JSON.parse(data.join("\n"));
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // hangs up when the reader has enough
  }
}
