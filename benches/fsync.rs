//! The yardstick: one small write and fdatasync at a time, on the disk that the nodes use.

use std::path::Path;

use serde_json::{Value, json};

use crate::load::spread;

const SAMPLES: usize = 500;

pub fn run(dir: &Path) -> Value {
    let samples = tenure::storage::measure_fsync(dir, SAMPLES).expect("a disk that can be written");
    let mut result = json!({"workload": "raw-fdatasync", "operations": SAMPLES});
    result.as_object_mut().expect("an object").extend(spread(samples));
    result
}
