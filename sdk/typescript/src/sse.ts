/** A parser of server-sent events that takes its bytes in pieces of any size. */

/** One event: its type ("message" when the stream names none) and its data. */
export interface ServerSentEvent {
  event: string;
  data: string;
}

/**
 * Parses as the standard says: lines end in LF, CR or CRLF, a leading byte order mark is dropped, comments and
 * unknown fields are ignored, an event is complete at its empty line. What the end of a stream cuts off is dropped.
 */
export class EventParser {
  readonly #decoder = new TextDecoder(); // drops a leading byte order mark
  #line: string[] = []; // pieces of the line that has not ended yet
  #afterCR = false; // the last line ended in CR: an LF that follows belongs to it
  #event = "";
  #data: string[] = [];

  /** Takes the next bytes and returns the events that they complete. */
  push(bytes: Uint8Array): ServerSentEvent[] {
    const events: ServerSentEvent[] = [];
    const text = this.#decoder.decode(bytes, { stream: true });
    let start = 0;
    if (this.#afterCR && text !== "") {
      if (text[0] === "\n") start = 1;
      this.#afterCR = false;
    }
    const ends = /\r\n|\r|\n/g;
    ends.lastIndex = start;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      this.#line.push(text.slice(start, end.index));
      const line = this.#line.length === 1 ? (this.#line[0] ?? "") : this.#line.join("");
      this.#line = [];
      start = end.index + end[0].length;
      if (end[0] === "\r" && start === text.length) this.#afterCR = true;
      this.#endLine(line, events);
    }
    if (start < text.length) this.#line.push(text.slice(start));
    return events;
  }

  #endLine(line: string, events: ServerSentEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0)
        events.push({ event: this.#event || "message", data: this.#data.join("\n") });
      this.#event = "";
      this.#data = [];
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
  }
}
