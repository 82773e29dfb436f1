//! A node inside a program.
