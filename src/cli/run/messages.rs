//! The messages between the supervisor and its guardian: lines of JSON over a socket pair. The first byte carries the
//! file descriptor of the command's stdin.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// The times at which the guardian stops the command, by the boot-time clock, which includes suspend. `None` is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deadlines {
    pub term_at: Option<Duration>,
    pub kill_at: Option<Duration>,
}

/// An instruction to the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Instruction {
    /// Start the command, unless a deadline has passed.
    Start {
        deadlines: Deadlines,
        /// Time between TERM and KILL if the supervisor dies. `None` sends no TERM.
        grace: Option<Duration>,
        /// The process group of the command. `None` creates one.
        group: Option<i32>,
    },
    /// The lease was renewed, with these deadlines.
    Extend(Deadlines),
    /// Forward a signal to the command.
    Forward(i32),
    /// The lease is lost: stop the command now, and send KILL at `kill_at`.
    Stop { kill_at: Duration },
}

/// A report from the guardian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardianReport {
    /// The guardian could not start the command, for this reason.
    Failed(String),
    /// A deadline had passed before the start of the command.
    TooLate,
    /// The command has exited, but processes that it started still run.
    Draining { code: u8 },
    /// The guardian is stopping the command.
    Stopping,
    /// The command and all its descendants have exited.
    Ended { code: u8, was_stopped: bool },
}

pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have numbers and strings only");
    line.push(b'\n');
    line
}

/// A message with a file descriptor needs at least one byte of data.
const FILE_BYTE: &[u8] = b"!";

/// Sends an open file.
pub fn send_file(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let files_of_message = [file];
    files.push(SendAncillaryMessage::ScmRights(&files_of_message));
    sendmsg(socket, &[IoSlice::new(FILE_BYTE)], &mut files, SendFlags::empty())?;
    Ok(())
}

/// Receives an open file.
pub fn receive_file(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut files, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = files.drain();
    let file = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| io::Error::other("the message has no file descriptor"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn receive_file_leaves_the_following_bytes() {
        let (mut here, mut there) = UnixStream::pair().expect("create a socket pair");
        let (mut kept, sent) = UnixStream::pair().expect("create a socket pair");
        send_file(here.as_fd(), sent.as_fd()).expect("send the file");
        here.write_all(b"more").expect("write to the socket");
        let mut received = UnixStream::from(receive_file(&there).expect("receive the file"));
        let mut rest = [0; 4];
        there.read_exact(&mut rest).expect("read from the socket");
        assert_eq!(&rest, b"more");
        kept.write_all(b"x").expect("write to the other pair");
        received.read_exact(&mut rest[..1]).expect("read from the received file");
        assert_eq!(rest[0], b'x');
    }
}
