//! Feeds one kind of input, that of the variable `TENURE_FUZZ_INPUT`, with what libFuzzer thinks of.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use tenure::testing::inputs::{self, Input};

static CHOSEN: OnceLock<Input> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("TENURE_FUZZ_INPUT").unwrap_or_default();
        let chosen = inputs::all().into_iter().find(|input| input.name == name);
        let chosen = chosen.unwrap_or_else(|| panic!("TENURE_FUZZ_INPUT={name:?} is no input"));
        assert!(CHOSEN.set(chosen).is_ok(), "it is chosen once");
    },
    |bytes: &[u8]| {
        (CHOSEN.get().expect("it was chosen").check)(bytes);
    }
);
