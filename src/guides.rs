//! The guides as rustdoc, so that doc tests compile their Rust examples. Only doc tests use this module.

macro_rules! guide {
    ($name:ident, $path:literal) => {
        #[doc = include_str!($path)]
        pub struct $name;
    };
}

guide!(Readme, "../README.md");
guide!(Library, "../docs/library.md");
guide!(ChoosingATtl, "../docs/choosing-a-ttl.md");
guide!(WhatALeaseCannotDo, "../docs/what-a-lease-cannot-do.md");
guide!(ComingFrom, "../docs/coming-from.md");
guide!(ElectionAndGroups, "../docs/election-and-groups.md");
guide!(Embedding, "../docs/embedding.md");
guide!(Fencing, "../docs/fencing.md");
