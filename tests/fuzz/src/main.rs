//! Passes the inputs of libFuzzer to the parser that the variable `TENURE_FUZZ_INPUT` names.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tenure::testing::inputs::{self, Input};

static CHOSEN: OnceLock<Input> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("TENURE_FUZZ_INPUT").unwrap_or_default();
        let chosen = inputs::all().into_iter().find(|input| input.name == name);
        let chosen = chosen.unwrap_or_else(|| panic!("unknown TENURE_FUZZ_INPUT {name:?}: expected a name of `tenure::testing::inputs::all`"));
        assert!(CHOSEN.set(chosen).is_ok(), "libFuzzer initializes once");
    },
    |bytes: &[u8]| {
        (CHOSEN.get().expect("libFuzzer initializes first").check)(bytes);
    }
);
