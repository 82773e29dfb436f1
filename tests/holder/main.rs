//! What a holder is promised, each promise a test of its name, over both ways to a cluster: a node in the same process,
//! and the network. The promises are those that users know from wisp.lease (Misk), Akka Coordination and actor-ts.

mod acquiring;
mod faking;
mod freezer;
mod guarding;
mod keeping;
mod late_answers;
mod listening;
mod losing;
mod releasing;
#[path = "../support/steady.rs"]
mod steady;
mod world;
