//! What `tenure run` and its guardian say to each other: lines of JSON over a socket, after one byte that brings the
//! standard input of the command.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

/// When the command has to end unless this is moved, by the clock that counts suspend. `None`: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    pub term_at: Option<Duration>,
    pub kill_at: Option<Duration>,
}

/// To the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Start the command, if there is time.
    Start {
        times: Times,
        /// Between TERM and KILL when the keeper is gone; `None`: no TERM.
        grace: Option<Duration>,
        /// The process group to start it in; `None`: one of its own.
        group: Option<i32>,
    },
    /// The lease was renewed.
    Keep(Times),
    /// Pass a signal on.
    Pass(i32),
    /// The lease is lost: stop the command now, and KILL it then.
    Stop { kill_at: Duration },
}

/// From the guardian.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The command could not be started, for this reason of ours.
    Failed(String),
    /// There was no time left to start it.
    TooLate,
    /// The command has ended, and something that it started runs on.
    Draining { code: u8 },
    /// The command is being stopped.
    Stopping,
    /// Nothing runs any more.
    Ended { code: u8, was_stopped: bool },
}

pub fn line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("numbers and text");
    line.push(b'\n');
    line
}

const HANDED: &[u8] = b"!";

/// Hands an open file over.
pub fn hand(socket: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let files_of_message = [file];
    files.push(SendAncillaryMessage::ScmRights(&files_of_message));
    sendmsg(socket, &[IoSlice::new(HANDED)], &mut files, SendFlags::empty())?;
    Ok(())
}

/// Takes it.
pub fn take(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut files, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = files.drain();
    let file = messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.ok_or_else(|| io::Error::other("no file was handed over"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_file_is_handed_over_and_what_follows_is_left() {
        let (mut here, mut there) = UnixStream::pair().expect("a pair");
        let (mut kept, handed) = UnixStream::pair().expect("a pair");
        hand(here.as_fd(), handed.as_fd()).expect("there is room");
        here.write_all(b"more").expect("there is room");
        let mut taken = UnixStream::from(take(&there).expect("it was sent"));
        let mut rest = [0; 4];
        there.read_exact(&mut rest).expect("it was sent");
        assert_eq!(&rest, b"more");
        kept.write_all(b"x").expect("there is room");
        taken.read_exact(&mut rest[..1]).expect("it is the other end");
        assert_eq!(rest[0], b'x');
    }
}
