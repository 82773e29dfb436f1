//! Server-sent events with a limited size, from chunks of any size.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use sse_stream::{Error, Sse, SseByteStream};

/// Maximum size of one event, in bytes. One transition needs far less.
const MAX_EVENT_BYTES: usize = 1024 * 1024;

/// Parses events. The stream ends at the end of the chunks, after an error, and in an event above
/// [`MAX_EVENT_BYTES`].
pub(crate) fn parse_events(chunks: impl Stream<Item = Bytes>) -> impl Stream<Item = Result<Sse, Error>> {
    let bounded = chunks.scan(EventSize::default(), |size, chunk| {
        let is_within = size.add(&chunk) <= MAX_EVENT_BYTES;
        ready(is_within.then_some(Ok::<Bytes, Infallible>(chunk)))
    });
    SseByteStream::new(bounded)
}

/// The size of the event that the parser reads.
#[derive(Default)]
struct EventSize {
    bytes: usize,
    line_has_text: bool,
}

impl EventSize {
    /// Adds a chunk. Returns the size of the largest event that has bytes in it. A blank line ends an event.
    fn add(&mut self, chunk: &[u8]) -> usize {
        let mut largest = 0;
        for byte in chunk {
            self.bytes += 1;
            largest = largest.max(self.bytes);
            match byte {
                b'\n' if self.line_has_text => self.line_has_text = false,
                b'\n' => self.bytes = 0,
                b'\r' => {}
                _ => self.line_has_text = true,
            }
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn parse(chunks: impl Iterator<Item = &[u8]>) -> Vec<Result<Sse, ()>> {
        let chunks: Vec<Bytes> = chunks.map(Bytes::copy_from_slice).collect();
        parse_events(futures_util::stream::iter(chunks)).map(|event| event.map_err(drop)).collect().await
    }

    #[tokio::test]
    async fn events_do_not_depend_on_the_chunk_size() {
        let text =
            ": alive\n\nretry: 5\nid: 7.0\nevent: granted\ndata: {\"a\":1}\n\nid:8\r\n\r\ndata: a\u{e9}\ndata: b\n\n";
        let expected = [
            Ok(Sse::default().retry(5).id("7.0").event("granted").data("{\"a\":1}")),
            Ok(Sse::default().id("8")),
            Ok(Sse::default().data("a\u{e9}\nb")),
        ];
        for size in 1..text.len() {
            assert_eq!(parse(text.as_bytes().chunks(size)).await, expected, "in chunks of {size} bytes");
        }
    }

    #[tokio::test]
    async fn invalid_utf8_ends_the_stream() {
        let text = b"data: a\n\ndata: \xff\n\ndata: b\n\n";
        assert_eq!(parse([text.as_slice()].into_iter()).await, [Ok(Sse::default().data("a")), Err(())]);
    }

    #[tokio::test]
    async fn events_of_1_mib_are_accepted() {
        // The last line feed ends the event and counts.
        let event = |bytes: usize| {
            let line = "data: 3456789\n".repeat(bytes / 14);
            format!("{line}{}\n\n", ":".repeat(bytes - line.len() - 2))
        };
        let largest = event(MAX_EVENT_BYTES);
        assert_eq!(largest.len(), 1_048_576);
        let text = format!("{largest}: alive\n\n{largest}data: later\n\n");
        let found = parse(text.as_bytes().chunks(64 * 1024)).await;
        assert_eq!((found.len(), found.last()), (3, Some(&Ok(Sse::default().data("later")))));
        let text = format!("data: first\n\n{}data: later\n\n", event(MAX_EVENT_BYTES + 1));
        assert_eq!(parse(text.as_bytes().chunks(13)).await, [Ok(Sse::default().data("first"))]);
    }

    #[tokio::test]
    async fn endless_event_is_not_kept() {
        for endless in ["x", "data: x\n", "data: x\r", ": x\n", "event: x\r\n"] {
            let endless = Bytes::from(endless.repeat(1024));
            let mut read = 0;
            let chunks = futures_util::stream::repeat_with(|| {
                read += endless.len();
                endless.clone()
            });
            assert_eq!(parse_events(chunks).count().await, 0);
            assert!(read <= MAX_EVENT_BYTES + endless.len(), "{read}");
        }
    }
}
