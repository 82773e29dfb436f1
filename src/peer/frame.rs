//! Frames on a peer connection: `length u32, kind u8, id u64, body`, big-endian. The length excludes its own 4 bytes.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Lane, Payload};

const HEADER_BYTES: usize = 4 + 1 + 8;
/// Initial capacity of the buffer for a body, in bytes.
const INITIAL_CAPACITY: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A request for the Raft service.
    Raft = 1,
    Response = 2,
    /// The caller no longer wants the answer to the request of this id.
    Withdraw = 3,
    /// The answer to the request of this id cannot be sent. The body holds the reason.
    NoAnswer = 4,
    /// A request for the node's service.
    Node = 5,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub id: u64,
    pub body: Bytes,
}

impl Frame {
    pub fn request(id: u64, payload: Payload) -> Frame {
        match payload {
            Payload::Raft(body) => Frame { kind: FrameKind::Raft, id, body },
            Payload::Node(body) => Frame { kind: FrameKind::Node, id, body },
        }
    }

    /// The answer to the request of this id, or [`FrameKind::NoAnswer`] if the answer is too large. On an oversized frame,
    /// the reader would close the connection, and every other call on it would fail.
    pub fn answer(id: u64, body: Bytes, lane: Lane) -> Frame {
        match lane.refuses(&body) {
            None => Frame { kind: FrameKind::Response, id, body },
            Some(reason) => Frame { kind: FrameKind::NoAnswer, id, body: reason.into() },
        }
    }

    /// The number of its bytes on the connection.
    pub fn size(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Appends the bytes of the frame.
    pub fn encode(&self, bytes: &mut BytesMut) {
        bytes.reserve(self.size());
        bytes.extend_from_slice(&((self.size() - 4) as u32).to_be_bytes());
        bytes.extend_from_slice(&[self.kind as u8]);
        bytes.extend_from_slice(&self.id.to_be_bytes());
        bytes.extend_from_slice(&self.body);
    }
}

/// Reads one frame. Returns `None` if the stream ends between two frames or inside a length. Not cancel safe.
pub async fn read<R: AsyncRead + Unpin>(reader: &mut R, max_body: usize) -> io::Result<Option<Frame>> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    };
    let length = u32::from_be_bytes(length) as usize;
    if !(HEADER_BYTES - 4..=HEADER_BYTES - 4 + max_body).contains(&length) {
        return Err(invalid(format!("a frame of {length} bytes: its body may have at most {max_body}")));
    }
    let kind = match reader.read_u8().await? {
        1 => FrameKind::Raft,
        2 => FrameKind::Response,
        3 => FrameKind::Withdraw,
        4 => FrameKind::NoAnswer,
        5 => FrameKind::Node,
        other => return Err(invalid(format!("a frame of unknown kind {other}: expected 1 to 5"))),
    };
    let id = reader.read_u64().await?;
    let body = read_body(reader, length - (HEADER_BYTES - 4)).await?;
    Ok(Some(Frame { kind, id, body }))
}

/// Allocates memory as the bytes arrive, so that a sender cannot reserve memory with a large length alone.
async fn read_body<R: AsyncRead + Unpin>(reader: &mut R, length: usize) -> io::Result<Bytes> {
    let mut body = BytesMut::with_capacity(length.min(INITIAL_CAPACITY));
    let mut rest = reader.take(length as u64);
    while body.len() < length {
        if body.len() == body.capacity() {
            body.reserve(body.len().min(length - body.len()));
        }
        if rest.read_buf(&mut body).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(body.freeze())
}

/// Writes one frame in one buffer, so that it usually takes one system call. Not cancel safe.
pub async fn write<W: AsyncWrite + Unpin>(writer: &mut W, frame: &Frame) -> io::Result<()> {
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes);
    writer.write_all(&bytes).await?;
    // TLS buffers a part of the frame if the socket is full.
    writer.flush().await
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frame_reads_back_as_sent() {
        let frame = Frame { kind: FrameKind::Raft, id: 7, body: Bytes::from_static(b"body") };
        let mut wire = Vec::new();
        write(&mut wire, &frame).await.expect("a vector accepts all bytes");
        let mut reader = &wire[..];
        assert_eq!(read(&mut reader, 4).await.expect("readable"), Some(frame));
        assert_eq!(read(&mut reader, 4).await.expect("a clean end"), None);
    }

    #[tokio::test]
    async fn large_body_arrives_whole_in_any_pieces() {
        let body: Vec<u8> = (0..100_000u32).map(|byte| byte as u8).collect();
        let frame = Frame { kind: FrameKind::Raft, id: 7, body: body.into() };
        let (mut near, mut far) = tokio::io::duplex(777);
        let (written, found) = tokio::join!(write(&mut near, &frame), read(&mut far, 100_000));
        written.expect("the other end reads the frame");
        assert_eq!(found.expect("readable"), Some(frame));
    }

    #[tokio::test]
    async fn invalid_frames_are_errors() {
        let frame = Frame { kind: FrameKind::Response, id: 7, body: Bytes::from_static(b"body") };
        let mut wire = Vec::new();
        write(&mut wire, &frame).await.expect("a vector accepts all bytes");
        assert!(read(&mut &wire[..], 3).await.is_err(), "larger than allowed");
        assert!(read(&mut &wire[..wire.len() - 1], 4).await.is_err(), "cut");
        let mut unknown = wire.clone();
        unknown[4] = 9;
        assert!(read(&mut &unknown[..], 4).await.is_err(), "unknown kind");
        assert!(read(&mut &[0, 0, 0, 1, 1][..], 4).await.is_err(), "shorter than its header");
        assert!(read(&mut &[0xff; 64][..], 4).await.is_err(), "random bytes");
    }

    /// The bytes of two frames: one with a body and one without.
    async fn two_frames() -> ([Frame; 2], Vec<u8>) {
        let frames = [
            Frame { kind: FrameKind::Raft, id: 7, body: Bytes::from_static(b"body") },
            Frame { kind: FrameKind::NoAnswer, id: u64::MAX, body: Bytes::new() },
        ];
        let mut wire = Vec::new();
        for frame in &frames {
            write(&mut wire, frame).await.expect("a vector takes all");
        }
        (frames, wire)
    }

    #[tokio::test]
    async fn frames_are_read_whole_wherever_their_bytes_are_cut() {
        let (frames, wire) = two_frames().await;
        for cut in 0..=wire.len() {
            let (first, rest) = wire.split_at(cut);
            let mut reader = first.chain(rest);
            for frame in &frames {
                let found = read(&mut reader, 4).await.expect("readable");
                assert_eq!(found.as_ref(), Some(frame), "cut after {cut} bytes");
            }
            assert_eq!(read(&mut reader, 4).await.expect("a clean end"), None, "cut after {cut} bytes");
        }
    }

    #[tokio::test]
    async fn frame_that_ends_early_is_never_a_frame() {
        let (frames, wire) = two_frames().await;
        let first = HEADER_BYTES + frames[0].body.len();
        for end in 0..wire.len() {
            let mut reader = &wire[..end];
            if end >= first {
                assert_eq!(read(&mut reader, 4).await.expect("readable").as_ref(), Some(&frames[0]));
            }
            let last = read(&mut reader, 4).await;
            assert!(!matches!(last, Ok(Some(_))), "{last:?} from {end} bytes");
            let is_cut = !matches!(end.checked_sub(first).unwrap_or(end), 0..4);
            assert_eq!(last.is_err(), is_cut, "{end} bytes");
        }
    }

    #[tokio::test]
    async fn frame_of_each_kind_comes_back_as_it_was_sent() {
        for kind in [FrameKind::Raft, FrameKind::Response, FrameKind::Withdraw, FrameKind::NoAnswer, FrameKind::Node] {
            for id in [0, 1, u64::from(u32::MAX) + 1, u64::MAX] {
                let frame = Frame { kind, id, body: Bytes::from_static(b"body") };
                let mut wire = Vec::new();
                write(&mut wire, &frame).await.expect("a vector takes all");
                assert_eq!(wire[4], kind as u8);
                assert_eq!(read(&mut &wire[..], 4).await.expect("readable"), Some(frame));
            }
        }
    }
}
