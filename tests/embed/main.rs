//! Nodes inside a program: started from values, asked in process, mounted in its own application, and gone without a
//! trace.

mod alone;
mod example;
mod guest;
mod leaks;
mod local;
mod mounted;
mod replica;
#[path = "../support/steady.rs"]
mod steady;
mod takeovers;
mod trio;
