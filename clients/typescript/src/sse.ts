/** Maximum size of one event, in characters. One transition needs far less. */
const MAX_EVENT_CHARS = 1024 * 1024;

/** One block of a stream of server-sent events. */
export interface ServerSentEvent {
  readonly id: string | undefined;
  readonly event: string | undefined;
  readonly data: string | undefined;
}

/** Parses server-sent events from chunks of any size. An event above 1 MiB ends the stream with an error. */
export async function* parseEvents(
  chunks: AsyncIterable<Uint8Array>,
): AsyncGenerator<ServerSentEvent, void, undefined> {
  const decoder = new TextDecoder("utf-8", { fatal: true });
  let rest = "";
  for await (const chunk of chunks) {
    rest += decoder.decode(chunk, { stream: true });
    for (;;) {
      const end = /\r?\n\r?\n/.exec(rest);
      if (end === null) {
        break;
      }
      const block = parseBlock(rest.slice(0, end.index));
      rest = rest.slice(end.index + end[0].length);
      if (block !== undefined) {
        yield block;
      }
    }
    if (rest.length > MAX_EVENT_CHARS) {
      throw new Error(`an event has more than ${MAX_EVENT_CHARS} characters`);
    }
  }
}

/** The fields of a block. A block of comments has none. */
function parseBlock(text: string): ServerSentEvent | undefined {
  const fields = new Map<string, string>();
  for (const line of text.split(/\r?\n/)) {
    // Without the flag `s`, a value with a line separator of Unicode does not match.
    const [, name, value] = /^([a-z]+): ?(.*)$/s.exec(line) ?? [];
    if (name !== undefined && value !== undefined) {
      const before = name === "data" ? fields.get(name) : undefined;
      fields.set(name, before === undefined ? value : `${before}\n${value}`);
    }
  }
  if (fields.size === 0) {
    return undefined;
  }
  return { id: fields.get("id"), event: fields.get("event"), data: fields.get("data") };
}
