//! The files of the log's segments: their names, their first zeros and headers.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rand::RngExt;

use super::directory;
use super::replay::Segment;
use super::segment::{SEGMENT_BYTES, SegmentHeader};
use crate::rng::rng;
use crate::storage::{Position, StorageError};

/// A file that no segment uses yet.
pub(super) const NEW: &str = "new";
/// The zeros of a new segment are written in pieces of this size.
const ZEROS_BYTES: usize = 1 << 20;

/// Whether a directory has a segment.
pub(super) fn has_segments(dir: &Path) -> Result<bool, StorageError> {
    Ok(directory::exists(dir)? && !list(dir)?.is_empty())
}

pub(super) fn segment_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:016x}.log"))
}

/// Opens a segment and reads it from the device.
pub(super) fn read_file(path: &Path) -> Result<(File, Vec<u8>), StorageError> {
    directory::drop_cached_pages(path)?;
    let mut bytes = Vec::with_capacity(SEGMENT_BYTES);
    let mut file = File::open(path).map_err(|error| StorageError::io("open", path, &error))?;
    file.read_to_end(&mut bytes).map_err(|error| StorageError::io("read", path, &error))?;
    Ok((file, bytes))
}

/// The numbers of all segments in ascending order.
pub(super) fn list(dir: &Path) -> Result<Vec<u64>, StorageError> {
    let names =
        fs::read_dir(dir).and_then(|items| items.map(|item| Ok(item?.file_name())).collect::<io::Result<Vec<_>>>());
    let names = names.map_err(|error| StorageError::io("list", dir, &error))?;
    let number = |name: &str| u64::from_str_radix(name.strip_suffix(".log").filter(|hex| hex.len() == 16)?, 16).ok();
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| number(name.to_str()?)).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Creates the file `new` with zeros.
pub(super) fn create_new(dir: &Path) -> Result<(), StorageError> {
    let path = dir.join(NEW);
    let file = File::create(&path).map_err(|error| StorageError::io("create", &path, &error))?;
    let zeros = vec![0; ZEROS_BYTES];
    (0..SEGMENT_BYTES).step_by(ZEROS_BYTES).try_for_each(|offset| write(&file, &path, &zeros, offset))?;
    sync_all(&file, &path)
}

/// Makes the file `new` the segment `number`.
pub(super) fn activate(
    dir: &Path,
    number: u64,
    first_group: u64,
    last_before: Option<Position>,
) -> Result<(Arc<File>, Segment), StorageError> {
    let (new, path) = (dir.join(NEW), segment_path(dir, number));
    let salt = rng().random();
    let file = Arc::new(open(&new)?);
    write(&file, &new, &SegmentHeader { number, first_group, salt }.encode(), 0)?;
    sync_all(&file, &new)?;
    rename(&new, &path)?;
    directory::sync(dir)?;
    Ok((file, Segment { number, salt, last_before }))
}

pub(super) fn open(path: &Path) -> Result<File, StorageError> {
    File::options().read(true).write(true).open(path).map_err(|error| StorageError::io("open", path, &error))
}

pub(super) fn write(file: &File, path: &Path, bytes: &[u8], offset: usize) -> Result<(), StorageError> {
    file.write_all_at(bytes, offset as u64).map_err(|error| StorageError::io("write", path, &error))
}

pub(super) fn sync_data(file: &File, path: &Path) -> Result<(), StorageError> {
    file.sync_data().map_err(|error| StorageError::io("sync", path, &error))
}

fn sync_all(file: &File, path: &Path) -> Result<(), StorageError> {
    file.sync_all().map_err(|error| StorageError::io("sync", path, &error))
}

pub(super) fn rename(from: &Path, to: &Path) -> Result<(), StorageError> {
    fs::rename(from, to).map_err(|error| StorageError::io("rename", from, &error))
}

pub(super) fn remove(path: &Path) -> Result<(), StorageError> {
    fs::remove_file(path).map_err(|error| StorageError::io("remove", path, &error))
}
