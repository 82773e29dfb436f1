//! A parser of server-sent events. Its input arrives in chunks of any size.

/// Longest line, in bytes. One transition needs far less.
const MAX_LINE_BYTES: usize = 1024 * 1024;

/// One event of the stream. `data` is empty if the server only sends the position of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    pub id: Option<String>,
    pub event: String,
    pub data: String,
}

/// The parser: it holds the input that does not complete a frame yet.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    buffer: Vec<u8>,
    partial: Frame,
}

/// The stream violates the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream has a line of more than {MAX_LINE_BYTES} bytes, or one that is not UTF-8")]
pub(crate) struct InvalidStream;

impl Frames {
    /// Adds the next chunk and returns the frames that it completes.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Vec<Frame>, InvalidStream> {
        let mut complete = Vec::new();
        self.buffer.extend_from_slice(chunk);
        let mut begin = 0;
        while let Some(length) = self.buffer[begin..].iter().position(|byte| *byte == b'\n') {
            let line = &self.buffer[begin..begin + length];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = std::str::from_utf8(line).map_err(|_| InvalidStream)?;
            if line.is_empty() {
                complete.push(std::mem::take(&mut self.partial));
            } else {
                parse_line(&mut self.partial, line);
            }
            begin += length + 1;
        }
        self.buffer.drain(..begin);
        if self.buffer.len() > MAX_LINE_BYTES || self.partial.data.len() > MAX_LINE_BYTES {
            return Err(InvalidStream);
        }
        Ok(complete)
    }
}

fn parse_line(frame: &mut Frame, line: &str) {
    let (field, value) = line.split_once(':').unwrap_or((line, ""));
    let value = value.strip_prefix(' ').unwrap_or(value);
    match field {
        "id" => frame.id = Some(value.to_owned()),
        "event" => frame.event = value.to_owned(),
        "data" if frame.data.is_empty() => frame.data = value.to_owned(),
        "data" => {
            frame.data.push('\n');
            frame.data.push_str(value);
        }
        // A comment begins with a colon. The SSE specification tells clients to ignore unknown fields.
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_do_not_depend_on_the_chunk_size() {
        let text = ": alive\n\nid: 7.0\nevent: granted\ndata: {\"a\":1}\n\nid:8\r\n\r\ndata: a\ndata: b\n\n";
        let frame = |id: Option<&str>, event: &str, data: &str| Frame {
            id: id.map(str::to_owned),
            event: event.to_owned(),
            data: data.to_owned(),
        };
        let expected = [
            frame(None, "", ""),
            frame(Some("7.0"), "granted", "{\"a\":1}"),
            frame(Some("8"), "", ""),
            frame(None, "", "a\nb"),
        ];
        for size in 1..text.len() {
            let mut frames = Frames::default();
            let found: Vec<Frame> = text
                .as_bytes()
                .chunks(size)
                .flat_map(|chunk| frames.feed(chunk).expect("the stream is valid"))
                .collect();
            assert_eq!(found, expected, "in chunks of {size} bytes");
        }
    }

    #[test]
    fn endless_line_and_invalid_utf8_are_refused() {
        let mut frames = Frames::default();
        let chunk = vec![b'x'; 64 * 1024];
        let fed = (0..32).map(|_| frames.feed(&chunk)).find(Result::is_err);
        assert_eq!(fed, Some(Err(InvalidStream)));
        assert_eq!(Frames::default().feed(b"data: \xff\n"), Err(InvalidStream));
    }

    #[test]
    fn lines_and_data_of_1_mib_are_accepted() {
        let mut frames = Frames::default();
        assert_eq!(frames.feed(&vec![b'x'; 1_048_576]), Ok(Vec::new()));
        assert_eq!(frames.feed(b"x"), Err(InvalidStream), "a line of 1 MiB and one byte");
        let data = |bytes: usize| {
            let line = [b"data: ".as_slice(), &vec![b'x'; bytes], b"\n"].concat();
            let mut frames = Frames::default();
            frames.feed(&line).map(|_| frames.feed(b"\n").expect("the frame is complete").remove(0).data.len())
        };
        assert_eq!((data(1_048_576), data(1_048_577)), (Ok(1_048_576), Err(InvalidStream)));
    }
}
