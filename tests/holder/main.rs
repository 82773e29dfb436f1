//! The guarantees of the client, tested over both transports: a node in the same process, and the network. Users know
//! these guarantees from wisp.lease (Misk), Akka Coordination and actor-ts.

mod acquiring;
mod batches;
#[path = "../support/calm.rs"]
mod calm;
mod dropping;
mod elsewhere;
mod ending;
mod faking;
mod freezer;
mod guarding;
mod handing_over;
mod keeping;
mod late_answers;
mod link;
mod listening;
mod losing;
mod releasing;
mod runtimes;
mod shutting_down;
mod states;
#[path = "../support/steady.rs"]
mod steady;
mod world;
