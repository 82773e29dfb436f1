//! Free ports for nodes.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// The ports of nodes lie below the first port for outgoing connections (`net.ipv4.ip_local_port_range`, from 32768):
/// no connection may take the port of a node that is down for a moment.
const FIRST: u16 = 10240;
const COUNT: u16 = 32768 - FIRST;
/// Ports that one test program takes at a time.
const BLOCK: u16 = 256;

/// Blocks that belong to this program while it runs.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

struct Block {
    /// The ports that were not returned yet.
    left: std::ops::Range<u16>,
    /// Another test program that runs now cannot lock the same file.
    _lock: File,
}

/// Returns a port that was free at the time of the call. No port is returned a second time, also not by another test
/// program that runs now.
pub fn free() -> u16 {
    let mut blocks = BLOCKS.lock().expect("no test panics while it holds the lock");
    loop {
        let mut ports = blocks.last_mut().into_iter().flat_map(|block| &mut block.left);
        if let Some(port) = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()) {
            return port;
        }
        blocks.push(Block::lock().expect("one of the blocks of ports is free"));
    }
}

impl Block {
    /// Takes a block from a random one on.
    fn lock() -> Option<Block> {
        let folder = std::env::temp_dir().join("tenure-test-ports");
        std::fs::create_dir_all(&folder).expect("a folder for the locks of ports");
        let (count, first) = (COUNT / BLOCK, rand::random::<u16>());
        (0..count).map(|place| (first % count + place) % count).find_map(|number| {
            let lock = File::create(folder.join(number.to_string())).expect("a file for the lock of a block");
            let first = FIRST + number * BLOCK;
            lock.try_lock().ok()?;
            Some(Block { left: first..first + BLOCK, _lock: lock })
        })
    }
}
