//! The reference: single small writes with fdatasync on the disk of the nodes.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::percentiles::percentiles;

const SAMPLES: usize = 500;
/// The approximate size of one small commit, in bytes.
const WRITE_BYTES: usize = 512;

pub fn run(dir: &Path) -> Value {
    let path = dir.join("fsync-samples");
    let mut file = File::create(&path).expect("the directory is writable");
    let sample = |_| {
        let begun = Instant::now();
        file.write_all(&[0; WRITE_BYTES]).and_then(|()| file.sync_data()).expect("the disk is writable");
        begun.elapsed()
    };
    let samples: Vec<_> = (0..SAMPLES).map(sample).collect();
    fs::remove_file(&path).expect("the file exists");
    let mut result = json!({"workload": "raw-fdatasync", "operations": SAMPLES});
    result.as_object_mut().expect("a JSON object").extend(percentiles(samples));
    result
}
