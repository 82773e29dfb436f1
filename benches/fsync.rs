//! The reference: single small writes with fdatasync on the disk of the nodes.

use std::path::Path;

use serde_json::{Value, json};

use crate::load::percentiles;

const SAMPLES: usize = 500;

pub fn run(dir: &Path) -> Value {
    let samples = tenure::storage::measure_fsync(dir, SAMPLES).expect("the disk is writable");
    let mut result = json!({"workload": "raw-fdatasync", "operations": SAMPLES});
    result.as_object_mut().expect("a JSON object").extend(percentiles(samples));
    result
}
